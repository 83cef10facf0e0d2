"""Checkpoints that torch pickled, read without executing anything in them.

`torch.load(weights_only=True)` interprets the pickle itself and knows tensors and plain values. What fairseq adds is
allowed here by name: `argparse.Namespace`, numpy arrays and numpy scalars. Anything else is refused by its name.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.importers.problems import Problems, first_line

_RECONSTRUCT, _SCALAR = np._core.multiarray._reconstruct, np._core.multiarray.scalar
HARMLESS: list[Any] = [
    argparse.Namespace,
    np.ndarray,
    np.dtype,
    *{type(np.dtype(kind)) for kind in "?bhilqBHILQefdUS"},
    _RECONSTRUCT,
    (_RECONSTRUCT, "numpy.core.multiarray._reconstruct"),  # its name in numpy 1
    _SCALAR,
    (_SCALAR, "numpy.core.multiarray.scalar"),
]


def load(path: Path, problems: Problems) -> Any:
    """What the file holds; None, and a problem that names every class that is not allowed, if it cannot be read."""
    if not path.is_file():
        problems.add("it is not a file")
        return None
    try:
        with torch.serialization.safe_globals(HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no pickle breaks the reader in many ways
        names = _refused(path, str(error))
        if names:
            problems.add(
                f"it wants to create {', '.join(names)}, which is refused: only plain values, tensors, numpy arrays "
                "and argparse.Namespace are read. Save the weights and options alone, and try again"
            )
        else:
            problems.add(f"it cannot be read as a torch checkpoint: {first_line(error)}")
        return None


def _refused(path: Path, message: str) -> list[str]:
    """Every global of the pickle that is not allowed, where torch can list them, else the one that it stopped at."""
    try:
        with torch.serialization.safe_globals(HARMLESS):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # a file in torch's format before 1.6
        found = []
    return sorted(set(found)) or re.findall(r"(?:GLOBAL|class) ([\w.]+)", message)[:1]
