"""Weights of a file against what the file stores: a small file may describe large tensors, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attendant.model.importers.problems import Problems

MOST_NAMES = 8  # names of a stored weight, on average: tied matrices have up to four
FREE = 2**18  # bytes that may be described in any case


def stored_tensors(
    values: Mapping[Any, Any], name: str, problems: Problems, size: int | None = None
) -> dict[str, Tensor]:
    """The tensors among `values`, of the file `name`; those with elements that it does not store are refused.

    With `size`, the file's bytes, also all together, if they take more than that.
    """
    found: dict[str, Tensor] = {}
    storages: dict[int, int] = {}  # bytes by address
    for key, tensor in values.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            continue
        why = _unusable(tensor) or _stretched(tensor)
        if why:
            problems.add(f"{name}: the weight {key[:80]} {why}")
            continue
        found[key] = tensor
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    if size is not None and sum(storages.values()) > size:
        problems.add(f"{name}: its weights take {sum(storages.values()):,} bytes, and the file has {size:,}")
    _check_names(found, storages, name, problems)
    return found


def _unusable(tensor: Tensor) -> str:
    if tensor.is_meta:
        return "has no values (it is a meta tensor)"
    if tensor.layout != torch.strided:
        return "is a sparse tensor; save it with .to_dense()"
    return "" if type(tensor) in (Tensor, torch.nn.Parameter) else "is no plain tensor; save it as one"


def _stretched(tensor: Tensor) -> str:
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() <= stored:
        return ""
    return f"has {tensor.numel():,} elements, of which {stored:,} {'is' if stored == 1 else 'are'} stored"


def _check_names(tensors: dict[str, Tensor], storages: dict[int, int], name: str, problems: Problems) -> None:
    """One storage under very many names would be copied for each of them."""
    described = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    stored = sum(storages.values())
    if described > max(FREE, MOST_NAMES * stored):
        problems.add(f"{name}: its weights describe {described:,} bytes, of which {stored:,} are stored")
