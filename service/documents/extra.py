"""Libraries of the extra `texts`, imported when a request first asks for what they do."""

from __future__ import annotations

import importlib
from typing import Any

from attendant.common.version import install_command
from attendant.service.errors import InvalidFieldError


def need(library: str, field: str) -> Any:
    """The library; InvalidFieldError if it is not installed."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        sentence = f"{field} needs {error.name}, which is not installed here; run: {install_command('texts')}."
        raise InvalidFieldError(sentence, field) from None
