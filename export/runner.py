"""Runs a variant's graphs on onnxruntime, simply: for verification and calibration, not for speed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from export import signature
from export.signature import LEAST_WIDTH, Sizes

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


class Runner:
    """The graphs of one variant; the fast ones decode where it has them, unless `plain`."""

    def __init__(self, graphs: dict[str, Path], sizes: Sizes, plain: bool = False) -> None:
        self.sizes = sizes
        self.kind = "" if plain or "fast_step" not in graphs else "fast_"
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self.sessions = {
            name: ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for name, path in graphs.items()
        }

    def fast(self) -> Runner:
        """The same sessions, decoding with the fast graphs."""
        other = copy.copy(self)
        other.kind = "fast_"
        return other

    def run(self, graph: str, feeds: Feeds) -> Feeds:
        session = self.sessions[graph]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    def full(self, source: Array, source_length: Array, target: Array) -> Feeds:
        return self.run("full", {"source": source, "source_length": source_length, "target": target})

    def stepwise(self, source: Array, source_length: Array, target: Array) -> Array:
        """The log-probabilities of the full pass, (B, T, V), computed token by token with the cache."""
        decoder = Decoder(self, source, source_length, rows=len(target), length=target.shape[1])
        request = np.arange(len(target))
        steps = [decoder.step(target[:, i], np.full(len(target), i), request) for i in range(target.shape[1])]
        return np.stack(steps, axis=1)


class Decoder:
    """A batch being decoded: the encoder's memory, and a cache with a slot for every row and position."""

    def __init__(self, runner: Runner, source: Array, source_length: Array, rows: int, length: int) -> None:
        self.runner, sizes = runner, runner.sizes
        self.memory = runner.run(f"{runner.kind}encoder", {"source": source, "source_length": source_length})
        self.memory["source_length"] = source_length
        real = self.memory["cross_key_0"].dtype
        self.cache = {
            value.name: np.zeros((rows, sizes.heads, length, sizes.head), real)
            for value in signature.inputs("step", sizes)
            if value.name.startswith("self_")
        }

    def step(self, token: Array, position: Array, request: Array) -> Array:
        """The log-probabilities after each row's token, (R, V); the cache takes the token in."""
        past = int(position.max()) + 1
        feeds = {"token": token, "position": position, "top": np.array([1])}
        feeds |= {name: value[request] for name, value in self.memory.items()}
        feeds |= {name: value[:, :, :past] for name, value in self.cache.items()}
        outputs = self.runner.run(f"{self.runner.kind}step", feeds)
        for name in self.cache:
            self.cache[name][:, :, :past] = outputs[name.replace("self_", "present_")]
        return outputs["logprobs"]

    def reorder(self, rows: Array) -> None:
        self.cache = {name: value[rows] for name, value in self.cache.items()}


def padded(rows: list[list[int]], pad: int) -> tuple[Array, Array]:
    """Id lists as one right-padded array, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), max(LEAST_WIDTH, int(lengths.max()))), pad)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids, lengths


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
