"""For tests of what only the compiled kernels do."""

from __future__ import annotations

import pytest

from attendant import kernels

needs_kernels = pytest.mark.skipif(kernels.library() is None, reason=kernels.why_missing() or "the kernels are there")
