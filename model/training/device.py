"""The device and the precision that a run computes in."""

from __future__ import annotations

import torch

from attendant.model.errors import UserError

CPU_BF16 = "avx512_bf16"  # torch's name of the instructions


def pick_device(wanted: str, local_rank: int) -> torch.device:
    """auto, cpu or cuda -> a device; under torchrun each process has the CUDA device of its local rank."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--set device=cuda needs a CUDA device, and torch finds none; take device=cpu or device=auto.")
    return torch.device("cuda", local_rank)


def pick_precision(wanted: str, device: torch.device) -> str:
    """auto, fp32 or bf16 -> fp32 or bf16; auto is bf16 where the device has instructions for it."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if torch.cpu.get_capabilities().get(CPU_BF16, False) else "fp32"
