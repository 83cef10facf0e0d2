"""CTranslate2's `model.bin`: named arrays. Every length in the file is checked before it is used."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

VERSIONS = range(1, 7)  # of the file format; CTranslate2 writes 6 from its version 3.0 on
HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}  # of specs before TransformerSpec, by their name
INT16_SCALE = 1000.0  # of int16 weights without a scale of their own, as in old files
# Parts of names in the first revision, which are OpenNMT-tf's, and the same today; the side decides on multi_head.
FIRST_NAMES = {
    "transformer/": "",
    ":0": "",
    "w_embs": "embeddings/weight",
    "kernel": "weight",
    "LayerNorm": "layer_norm",
    "dense": "projection",
    "masked_multi_head": "self_attention",
    "conv1d_": "linear_",
    "conv1d": "linear_0",
}
MOST_ELEMENTS = 2**48  # sizes of a shape multiplied, those of 0 left out: torch's strides must hold them
SCALE = "weight_scale"
DTYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
SIZES = {"float32": 4, "int8": 1, "int16": 2, "int32": 4, "float16": 2, "bfloat16": 2}


@dataclass
class ModelFile:
    spec: str
    version: int
    revision: int  # of the spec
    arrays: dict[str, Tensor] = field(default_factory=dict)
    turned_back: set[str] = field(default_factory=set)  # integer types that became f32

    def text(self, name: str, default: str) -> str:
        """A text, stored as bytes."""
        found = self.arrays.get(name)
        if found is None or found.dtype != torch.int8:
            return default
        return found.numpy().tobytes().decode("utf-8", "replace")

    def value(self, name: str, default: float) -> float:
        """A single number, stored as a variable."""
        found = self.arrays.get(name)
        return default if found is None or found.numel() != 1 else float(found.float().reshape(()))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise ValueError("it is cut short")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0])

    def text(self) -> str:
        return self.take(self.number("H")).rstrip(b"\0").decode("utf-8")


def read(path: Path) -> ModelFile:
    """Raises ValueError with what is wrong. int8 and int16 weights are divided by their scales."""
    reader = _Reader(path.read_bytes())
    version = reader.number("I")
    if version not in VERSIONS:
        known = f"{VERSIONS[0]} to {VERSIONS[-1]}"
        raise ValueError(f"it has format {version}, and formats {known} can be read; convert the model again")
    model = ModelFile(reader.text(), version, reader.number("I")) if version > 1 else ModelFile("", version, 1)
    for _ in range(reader.number("I")):
        name = _current_name(reader.text()) if model.revision == 1 else reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        kind, length = _kind(name, reader.number("B"), version), reader.number("I")
        content = reader.take(length if version > 3 else length * SIZES[kind])
        if len(content) != math.prod(shape) * SIZES[kind] or math.prod(size or 1 for size in shape) > MOST_ELEMENTS:
            raise ValueError(f"{name[:80]} has {len(content)} bytes, not those of its shape {shape[:8]}")
        model.arrays[name] = _tensor(content, kind).reshape(shape)
    if model.spec in HEADS:
        model.arrays.setdefault("num_heads", torch.tensor(HEADS[model.spec], dtype=torch.int8))
    _turn_back(model)
    for _ in range(reader.number("I") if version > 2 else 0):
        alias, name = reader.text(), reader.text()
        if name.endswith(SCALE):
            continue
        if name not in model.arrays:
            raise ValueError(f"{alias} stands for {name}, which is not there")
        model.arrays[alias] = model.arrays[name]
    return model


def _current_name(name: str) -> str:
    for old, new in FIRST_NAMES.items():
        name = name.replace(old, new, 1)
    return name.replace("multi_head", "self_attention" if "encoder" in name else "attention", 1)


def _kind(name: str, number: int, version: int) -> str:
    """The type of an array: by its number, or in format 3 by the bytes of an element."""
    kinds = dict(enumerate(DTYPES)) if version > 3 else {4: "float32", 2: "int16", 1: "int8"}
    if number not in kinds:
        raise ValueError(f"{name} has the unknown type {number}")
    return kinds[number]


def _tensor(content: bytes, kind: str) -> Tensor:
    if kind == "bfloat16":
        return torch.frombuffer(bytearray(content), dtype=torch.bfloat16) if content else torch.zeros(0)
    return torch.from_numpy(np.frombuffer(content, dtype=np.dtype(kind).newbyteorder("<")).astype(kind))


def _turn_back(model: ModelFile) -> None:
    for name in [name for name in model.arrays if name.endswith("weight") and f"{name}_scale" not in model.arrays]:
        if model.arrays[name].dtype == torch.int16:
            model.arrays[f"{name}_scale"] = torch.tensor(INT16_SCALE)
    for name in [name for name in model.arrays if name.endswith(SCALE)]:
        weight, scale = name.removesuffix("_scale"), model.arrays.pop(name)
        if weight not in model.arrays:
            raise ValueError(f"{name} has no weight")
        stored = model.arrays[weight]
        if stored.is_floating_point():
            continue
        model.turned_back.add(str(stored.dtype).removeprefix("torch."))
        if stored.dim() == 0 or scale.numel() not in (1, len(stored)) or not bool((scale != 0).all()):
            raise ValueError(f"{name} does not fit its weight")
        model.arrays[weight] = stored.float() / scale.float().reshape(-1, *[1] * (stored.dim() - 1))
