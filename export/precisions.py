"""The precisions of a bundle: what they compute in, and how far from torch they may be. No onnx is needed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    tolerance: float  # the largest distance of a certified log-probability from torch's
    differing: float  # the share of held-out inputs whose answer may differ from torch's
    dtype: str = "float32"  # of floating-point values
    row_distance: float = 0.0  # largest difference of a row's log-probabilities alone and in a batch; 0: the same bits
    quantized: bool = False

    def dtype_of(self, kind: str, graph: str) -> str:
        """The dtype of a value of `signature.GRAPHS`, by its kind."""
        if kind == "cache" and graph.startswith("kernel_") and self.quantized:
            return "int8"
        return self.dtype if kind in ("cache", "float") else kind


PRECISIONS = {
    "fp32": Precision(tolerance=1e-4, differing=0.0),
    "int8": Precision(tolerance=0.5, differing=0.1, quantized=True),
    "fp16": Precision(tolerance=0.05, differing=0.02, dtype="float16", row_distance=1e-2),
}
DEFAULT = ("fp32", "int8")  # fp16 is for CUDA
