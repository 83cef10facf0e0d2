"""Weights that are mapped into memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attendant.service.engine.batch.runtime import mapped_weights, shared_weights
from attendant.service.errors import StartError
from attendant.service.settings import DEFAULT_BUNDLE


@pytest.mark.parametrize(("read", "names"), [(mapped_weights, ["kernel_step"]), (shared_weights, ["step"])])
def test_a_file_that_was_cut_short_is_refused_by_its_name(
    read: Callable[..., dict[str, Any]], names: list[str], tmp_path: Path
) -> None:
    shutil.copytree(DEFAULT_BUNDLE / "int8", tmp_path / "int8")
    graphs = [tmp_path / "int8" / f"{name}.onnx" for name in names]
    assert read(*graphs)
    for weights in (tmp_path / "int8").glob("*.bin"):
        with weights.open("r+b") as file:
            file.truncate(64)
    with pytest.raises(StartError, match=r"\.bin has 64 bytes, .* cut short"):
        read(*graphs)
