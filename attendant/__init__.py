"""Attendant trains an encoder-decoder Transformer, exports it to ONNX and serves it. This is its Python API.

    from attendant import Model

`attendant.model` trains, `attendant.export` converts to ONNX, `attendant.service` decodes and serves. They are imported
only when a name below is used, and torch never is.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendant.cli import main
from attendant.common.version import VERSION

if TYPE_CHECKING:
    from attendant.service.api import (
        BundleError,
        DeadlineError,
        Hypothesis,
        InvalidFieldError,
        MetTerm,
        Model,
        NextToken,
        NotReadyError,
        Output,
        Score,
        ScoredToken,
        Segment,
        SettingsError,
        StartError,
        StreamedToken,
        TokenProbability,
        TokenStream,
    )

__version__ = VERSION
__all__ = [
    "BundleError", "DeadlineError", "Hypothesis", "InvalidFieldError", "MetTerm", "Model", "NextToken", "NotReadyError",
    "Output", "Score", "ScoredToken", "Segment", "SettingsError", "StartError", "StreamedToken", "TokenProbability",
    "TokenStream", "__version__", "main",
]  # fmt: skip

# In a checkout `model`, `export` and `service` lie beside this folder; installed, they lie in it.
_beside = Path(__file__).resolve().parent.parent
if (_beside / "pyproject.toml").is_file() and (_beside / "service" / "api" / "__init__.py").is_file():
    __path__.append(str(_beside))


def __getattr__(name: str) -> Any:
    """A name of the API, imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'attendant' has no attribute {name!r}")
    return getattr(importlib.import_module("attendant.service.api"), name)
