"""The precision that `auto` picks follows the instructions that torch finds."""

from __future__ import annotations

import platform

import pytest
import torch

from attendant.model.training.device import CPU_BF16, pick_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("found", "precision"), [({CPU_BF16: True}, "bf16"), ({CPU_BF16: False}, "fp32"), ({}, "fp32")]
)
def test_auto_is_bf16_where_the_cpu_has_instructions_for_it(
    found: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    assert pick_precision("auto", CPU) == precision
    assert pick_precision("fp32", CPU) == "fp32"
    assert pick_precision("bf16", CPU) == "bf16"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other processors have other instructions")
def test_torch_reports_the_instructions_under_the_name_that_is_read() -> None:
    found = torch.cpu.get_capabilities()
    assert isinstance(found.get(CPU_BF16), bool), (
        f"torch {torch.__version__} does not report {CPU_BF16}, so auto would silently be fp32 on every CPU; "
        f"name it in model/training/device.py as one of {sorted(found)}"
    )
