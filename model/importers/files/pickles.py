"""Checkpoints that torch pickled, read without executing anything in them.

`torch.load(weights_only=True)` interprets the pickle itself. Before that, the pickle's own instructions are looked at:
every class and function that it names must be one of those below, and nothing else may be called. What fairseq adds to
torch's is `argparse.Namespace` and numpy's scalars, which become plain numbers. numpy's arrays are passed over.
"""

from __future__ import annotations

import argparse
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from attendant.model.importers.files.stored import stored_tensors
from attendant.model.importers.problems import Problems, first_line

NUMBERS = re.compile(r"[?bhilqBHILQefd]|b1|[iu][1248]|f[248]")  # numpy's names of plain numbers
DTYPES = "|".join(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
HARMLESS = re.compile(
    r"collections\.(OrderedDict|Counter)|argparse\.Namespace|_codecs\.encode|(builtins|__builtin__)\.(set|complex)"
    r"|numpy\.(ndarray|dtype|_?core\.multiarray\.(_reconstruct|scalar))"
    rf"|torch\.(Size|device|{DTYPES}|(storage\.)?\w+Storage|nn\.parameter\.Parameter|serialization\._get_layout)"
    r"|torch\._utils\._rebuild_(tensor(_v[23])?|parameter|sparse_tensor|meta_tensor_no_storage)"
)
OLD_HEADS = 3  # pickles before the one that counts, in torch's format before 1.6: a magic number, a version, the system


class _Dtype:
    """In place of numpy's dtype, which a file could change after an array was made with it."""

    def __init__(self, kind: Any = "", *_: Any) -> None:
        if not isinstance(kind, str) or not NUMBERS.fullmatch(kind):
            shown = kind[:40] if isinstance(kind, str) else type(kind).__name__
            raise ValueError(f"numpy's type {shown} is refused: only numbers are read")
        self.kind, self.order = kind, "="

    def __setstate__(self, state: Any) -> None:
        """numpy puts the byte order second; nothing else of it matters for numbers."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        self.order = order if order in ("<", ">") else "="


class _Array:
    """In place of numpy's array, which no model needs."""

    def __setstate__(self, state: Any) -> None:
        pass


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _scalar(kind: Any, content: Any) -> Any:
    if not isinstance(kind, _Dtype) or not isinstance(content, bytes):
        raise ValueError("it has a number of numpy's without its type or bytes")
    return np.frombuffer(content, np.dtype(f"{kind.order}{kind.kind}"), count=1)[0].item()


STAND_INS: list[Any] = [
    argparse.Namespace,
    (_Array, "numpy.ndarray"),
    (_Dtype, "numpy.dtype"),
    *((_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


def load(path: Path, problems: Problems) -> Any:
    """What the file holds; None, and a problem that names every class that is not allowed, if it cannot be read."""
    if not path.is_file():
        problems.add(f"{path.name} is missing" if not path.exists() else "it is not a file")
        return None
    try:
        names = _refused(path)
        if not names:
            with torch.serialization.safe_globals(STAND_INS):
                return torch.load(path, map_location="cpu", weights_only=True)
        problems.add(
            f"{path.name} wants to create {', '.join(names[:20])}, which is refused: only plain values, tensors, "
            "numpy's numbers and argparse.Namespace are read. Save the weights and options alone, and try again"
        )
    except Exception as error:  # a file that is no pickle breaks the reader in many ways
        problems.add(f"{path.name} cannot be read as a torch checkpoint: {first_line(error)}")
    return None


def table(value: Any) -> dict[Any, Any] | None:
    """The entries of a dict or Namespace, whatever attributes the file gave it; None of anything else."""
    if isinstance(value, argparse.Namespace):
        return dict(vars(value))
    return dict(dict.items(value)) if isinstance(value, dict) else None


def tensors_of(values: dict[Any, Any], path: Path, problems: Problems) -> dict[str, torch.Tensor]:
    """The weights in a table that the file holds; those that cannot be used are problems."""
    return stored_tensors(values, path.name, problems, path.stat().st_size)


def load_tensors(path: Path, problems: Problems) -> dict[str, torch.Tensor]:
    """The weights of a file that holds a table of them and nothing else; empty, with problems, if it does not."""
    held = load(path, problems)
    values = table(held)
    if held is not None and values is None:
        problems.add(f"{path.name} holds no table of weights")
    return tensors_of(values or {}, path, problems)


def _refused(path: Path) -> list[str]:
    """The classes and functions that the file's pickles name and that are not allowed."""
    names: list[str] = []
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            with zipfile.ZipFile(file) as archive:
                _check_size(archive.infolist(), path.stat().st_size)
                for entry in archive.infolist():
                    if entry.filename.endswith("/data.pkl"):
                        with archive.open(entry) as content:
                            names += _check_pickle(content)
        else:
            file.seek(0)
            for _ in range(OLD_HEADS + 1):
                names = names or list(_check_pickle(file))
    return sorted(set(names))


def _check_size(entries: list[zipfile.ZipInfo], size: int) -> None:
    """torch.save packs nothing, so an archive of `size` bytes cannot hold more than that."""
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > size:
        raise ValueError(f"it unpacks to {unpacked:,} bytes, and has {size:,}; save it with torch.save, unpacked")


def _check_pickle(file: IO[bytes]) -> Iterator[str]:
    """Follow a pickle's instructions on a stack that only says which values are classes or functions of the file.

    Anything else that is called is refused here: torch would put it into its message, however large it is.
    """
    stack: list[bool | None] = []  # None: a mark
    memo: dict[Any, bool | None] = {}
    for code, argument, _ in pickletools.genops(file):
        name = code.name
        if name == "GLOBAL":
            found = str(argument).replace(" ", ".")
            stack.append(True)
            if not HARMLESS.fullmatch(found):
                yield found[:100]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        else:
            if name in ("REDUCE", "NEWOBJ") and stack[-2] is not True:
                raise ValueError("its pickle calls what is no function")
            _pop(stack, [kind.name for kind in code.stack_before])
            stack += [None if kind.name == "mark" else False for kind in code.stack_after]


def _pop(stack: list[bool | None], taken: list[str]) -> None:
    if "mark" in taken:
        while stack.pop() is not None:
            pass
        taken = taken[: taken.index("mark")]
    del stack[len(stack) - len(taken) :]
