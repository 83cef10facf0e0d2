"""The Python API: a bundle's model in this process, without HTTP. `from attendant import Model`.

Importing it is cheap: onnxruntime and the rest are imported with the first Model. Options, their ranges and error
messages are those of the HTTP API, whose planning code is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendant.export.bundle import BundleError
from attendant.service.api.model import Model
from attendant.service.api.results import (
    Hypothesis,
    MetTerm,
    NextToken,
    Output,
    Score,
    ScoredToken,
    Segment,
    StreamedToken,
    TokenProbability,
)
from attendant.service.errors import DeadlineError, InvalidFieldError, NotReadyError, StartError
from attendant.service.settings import SettingsError

if TYPE_CHECKING:
    from attendant.service.api.awaiting import TokenStream

__all__ = [
    "BundleError",
    "DeadlineError",
    "Hypothesis",
    "InvalidFieldError",
    "MetTerm",
    "Model",
    "NextToken",
    "NotReadyError",
    "Output",
    "Score",
    "ScoredToken",
    "Segment",
    "SettingsError",
    "StartError",
    "StreamedToken",
    "TokenProbability",
    "TokenStream",
]


def __getattr__(name: str) -> Any:
    """TokenStream, whose module imports asyncio."""
    if name != "TokenStream":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attendant.service.api.awaiting import TokenStream

    return TokenStream
