"""A short form of the random shapes; and that a wrong result is seen."""

from __future__ import annotations

import numpy as np
import pytest

from attendant import kernels
from tests.kernels import shapes

pytestmark = pytest.mark.skipif(kernels.library() is None, reason=kernels.why_missing())


def test_random_shapes_are_their_definitions() -> None:
    drawn = list(shapes.drawn(seed=2, count=60))
    assert {kind for kind, _ in drawn} == set(shapes.MAKERS)
    for kind, arguments in drawn:
        shapes.check(kind, arguments)


def test_what_is_no_rounding_is_found() -> None:
    expected = np.ones((8, 16), np.float32)
    wrong = expected.copy()
    wrong[3, 5] += 1e-4
    shapes.compare(wrong, expected, int8=True, other_rows=0.0)
    with pytest.raises(AssertionError, match="1 of 8 rows are off"):
        shapes.compare(wrong, expected, int8=False, other_rows=0.0)
    with pytest.raises(AssertionError, match="one is off by"):
        shapes.compare(expected + np.float32(0.5), expected, int8=True, other_rows=1.0)
    with pytest.raises(AssertionError, match="on average"):
        shapes.compare(expected + np.float32(0.05), expected, int8=True, other_rows=1.0)
