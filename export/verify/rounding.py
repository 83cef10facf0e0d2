"""How far results may be from torch's: within the tolerance, or further where torch's own f32 is as far from f64.

No torch is needed.
"""

from __future__ import annotations

from attendant.export.precisions import Precision

ROUNDING = 4  # this many times torch's own difference between f32 and f64 is tolerated
ROUNDING_CAP = 10  # but at most this many times the tolerance
QUANTIZED = 2  # times the drift that was measured of int8


def with_rounding(tolerance: float, rounding: float) -> float:
    """The tolerance, or 4 times torch's own rounding of the same values, but at most 10 times the tolerance."""
    return max(tolerance, min(ROUNDING * rounding, ROUNDING_CAP * tolerance))


def drift_tolerance(precision: Precision, rounding: float, measured: float = 0.0) -> float:
    """The largest drift of a certificate, by torch's own rounding along its answers; of int8, by the drift `measured`.

    The graphs are compared with int8 in torch, so this is only to find that they compute otherwise elsewhere.
    """
    if precision.quantized:
        wide = min(float(f"{QUANTIZED * measured:.3g}"), ROUNDING_CAP * precision.tolerance)
        return max(precision.tolerance, wide)
    return with_rounding(precision.tolerance, rounding)
