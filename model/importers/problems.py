"""Reading other frameworks' files: every problem is collected, and all are raised together.

ImportRefusedError    a sentence per problem; nothing was written
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from attendant.model.errors import UserError

LARGEST_JSON = 256 * 2**20  # bytes
LARGEST_SIZE = 2**20  # of features and positions
MOST_LAYERS = 256
AT_ONCE = 2**12  # rows of a weight that are looked at together
T = TypeVar("T")
# What wraps a model and puts a prefix before the names of its weights: and how to save the model itself.
WRAPPERS = {
    "module.": ("DistributedDataParallel", "model.module.state_dict()"),
    "_orig_mod.": ("torch.compile", "model._orig_mod.state_dict()"),
    "model.": ("Lightning", "module.model.state_dict()"),
}


class ImportRefusedError(UserError):
    pass


class Problems:
    """The problems found so far, to be raised together."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path, list[str]()

    def add(self, problem: str) -> None:
        if problem not in self.found:
            self.found.append(problem)

    def refuse(self, problem: str) -> NoReturn:
        """Raise at once: a problem after which no other says anything."""
        self.add(problem)
        self.raise_if_any()
        raise AssertionError("there is a problem")

    def raise_if_any(self) -> None:
        if self.found:
            raise ImportRefusedError(
                "\n".join([f"{self.path} cannot be imported, and nothing was written:", *self.found])
            )

    def required(self, value: T | None) -> T:
        """The value, or every problem, if it could not be read; who returns None adds a problem that says why."""
        if value is None:
            self.raise_if_any()
            raise AssertionError("nothing was read, and no problem says why")
        return value


class Settings:
    """Options of another framework; a value that does not fit adds a problem and yields a stand-in."""

    def __init__(self, values: Any, name: str, problems: Problems) -> None:
        self.name, self.problems = name, problems
        if not isinstance(values, Mapping):
            problems.add(f"{name} is no table of options")
        self.values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}

    def size(self, *names: str, most: int = LARGEST_SIZE) -> int:
        """A whole number from 1 to `most`, under the first name that is there; 1, and a problem, if there is none."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
                return value
            if value is not None:
                self.problems.add(f"{self.name}: {name} is {shown(value)}, not a whole number from 1 to {most:,}")
                return 1
        self.problems.add(f"{self.name} lacks {' or '.join(names)}")
        return 1

    def index(self, name: str, below: int, default: int | None = None) -> int:
        """An id below a vocabulary's size; the default where there is none, or null."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below:
            return value
        self.problems.add(f"{self.name}: {name} is {shown(value)}, not an id below {below:,}")
        return 0

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is not None and (not isinstance(value, bool | int) or value not in (0, 1)):
            self.problems.add(f"{self.name}: {name} is {shown(value)}, not true or false")
        return default if value is None else bool(value)

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        value = self.values.get(name, default)
        if isinstance(value, str) and value in choices:
            return choices[value]
        self.problems.add(f"{self.name}: {name} is {shown(value)}; it takes one of {', '.join(choices)}")
        return next(iter(choices.values()))

    def same(self, name: str, other: str) -> int:
        """A size that must be equal under both names."""
        first, second = self.size(name), self.size(other)
        if first != second:
            self.problems.add(f"{self.name}: {name} is {first} and {other} is {second}; they must be equal")
        return first

    def refuse_if(self, name: str, why: str) -> None:
        if self.values.get(name):
            self.problems.add(f"{self.name}: {name} is {shown(self.values[name])}; {why}")


class Tensors:
    """Another framework's weights by name. One that is never read is a problem too: the model would not be the same."""

    def __init__(self, tensors: Mapping[str, Tensor], problems: Problems) -> None:
        self.tensors, self.problems, self._used = dict(tensors), problems, set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str, *shape: int) -> Tensor | None:
        """The tensor in f32, of this shape (-1: any size); None, with a problem added, if there is none such."""
        self._used.add(name)
        if name not in self.tensors:
            self.problems.add(f"the weight {name} is missing")
            return None
        tensor = self.tensors[name]
        fits = len(tensor.shape) == len(shape) and all(w in (-1, n) for w, n in zip(shape, tensor.shape, strict=True))
        if not fits or not tensor.is_floating_point():
            wanted = " x ".join("any" if n == -1 else str(n) for n in shape)
            found = " x ".join(map(str, tensor.shape)) or "a single number"
            self.problems.add(f"the weight {name} is {found} of {tensor.dtype}, not {wanted} of floating point")
            return None
        tensor = tensor.float()
        if not all(bool(part.isfinite().all()) for part in tensor.split(AT_ONCE)):
            self.problems.add(f"the weight {name} holds infinities or what is not a number")
        return tensor

    def first(self, names: Iterable[str], *shape: int) -> Tensor | None:
        """The tensor under the first of the names that is there; the other names are copies of it or absent.

        Asked for again it is the same one, also where it became f32.
        """
        names = list(names)
        self._used |= set(names)
        name = next((name for name in names if name in self.tensors), names[0])
        tensor = self.get(name, *shape)
        if tensor is not None:
            self.tensors[name] = tensor
        return tensor

    def joined(self, names: Iterable[str], *shape: int) -> Tensor | None:
        """Several tensors of one shape, concatenated along the first axis."""
        parts = [self.get(name, *shape) for name in names]
        return join(parts)

    def ignore(self, pattern: str) -> None:
        self._used |= {name for name in self.tensors if re.fullmatch(pattern, name)}

    def refuse_leftovers(self) -> None:
        left = sorted(set(self.tensors) - self._used)
        if left:
            more = f" and {len(left) - 8} more" if len(left) > 8 else ""
            self.problems.add(f"there is no place for the weights {', '.join(left[:8])}{more}")

    def refuse_wrapped(self, prefixes: Iterable[str] = ("module.", "_orig_mod.")) -> None:
        """Refuse weights whose names all begin with what a wrapper of torch's put there."""
        for prefix in prefixes:
            if self.tensors and all(name.startswith(prefix) for name in self.tensors):
                who, how = WRAPPERS[prefix]
                self.problems.refuse(f"its weights' names all begin with {prefix}, which {who} puts there; save {how}")

    def layers(self, pattern: str) -> int:
        """The number of layers; `pattern` matches a weight's name and has the layer's number, from 0, as its group."""
        matches = (re.match(pattern, name) for name in self.tensors)
        return max((int(match[1]) + 1 for match in matches if match and len(match[1]) < 6), default=0)


def shown(value: Any) -> str:
    """A value of a file for a sentence: plain ones as they are written, cut; of anything else its type."""
    if isinstance(value, str):
        return repr(value[:60])
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
    return f"a {type(value).__name__:.60}"


def join(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Concatenated along the first axis; None if one is missing."""
    parts = list(parts)
    return None if any(part is None for part in parts) else torch.cat([part for part in parts if part is not None])


def read_json(path: Path, problems: Problems, optional: bool = False) -> dict[str, Any]:
    """A JSON object; empty, with a problem added, if the file holds none."""
    if optional and not path.exists():
        return {}
    try:
        if path.stat().st_size > LARGEST_JSON:
            problems.add(f"{path.name} is larger than {LARGEST_JSON // 2**20} MiB")
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.add(f"{path.name} is missing")
        return {}
    except OSError as error:
        problems.add(f"{path.name} cannot be read: {error.strerror}")
        return {}
    except (ValueError, RecursionError) as error:
        problems.add(f"{path.name} cannot be read as JSON: {error}")
        return {}
    if not isinstance(value, dict):
        problems.add(f"{path.name} holds no table")
        return {}
    return value


def first_line(error: BaseException) -> str:
    """The first line of an error's message, for use in a sentence of ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
