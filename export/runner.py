"""Runs a variant's graphs on onnxruntime for evaluation and verification; serving has a faster way of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant import kernels
from attendant.common.cpus import allowed_cpus
from attendant.export.signature import LEAST_WIDTH, REQUIRED, Sizes, padded_width
from attendant.model.text.tokenizer import EOS, PAD

NEW_SLOTS = 32  # by which a full KV cache grows
PLAIN, DEFINITIONS, KERNELS = "plain", "definitions", "kernels"
Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def ways_to_run(graphs: dict[str, Path]) -> list[str]:
    """How a variant can decode here: by its plain graphs, by our own operators' definitions, by the compiled operators.

    Compiled operators are last, if there are any: what the service decodes with on a CPU; else it is the plain graphs.
    """
    if "kernel_step" not in graphs:
        return [PLAIN]
    return [PLAIN, DEFINITIONS, *([KERNELS] if kernels.library() else [])]


class Runner:
    """The graphs of one variant, run in one of the ways of `ways_to_run`; by default, as the service does on a CPU."""

    def __init__(
        self, graphs: dict[str, Path], sizes: Sizes, way: str = "", threads: int = 0, spin: bool = False
    ) -> None:
        """`threads` of onnxruntime, 0 for its own number; without `spin` they sleep while they wait."""
        self.sizes = sizes
        self.way = way or (KERNELS if KERNELS in ways_to_run(graphs) else PLAIN)
        self.kind = "" if self.way == PLAIN else "kernel_"
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
        if self.way == KERNELS:
            kernels.register(options, threads or allowed_cpus())
        self.sessions = {
            name: ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for name, path in graphs.items()
            if (name in REQUIRED) == (self.way == PLAIN)
        }

    def run(self, graph: str, feeds: Feeds, *wanted: str) -> Feeds:
        """The outputs whose names begin with one of `wanted`; all of them by default."""
        session = self.sessions[graph]
        names = [output.name for output in session.get_outputs() if output.name.startswith(wanted or "")]
        return dict(zip(names, session.run(names, feeds), strict=True))

    def full(self, source: Array, source_length: Array, target: Array) -> Feeds:
        """Of the plain graphs."""
        width = source.shape[1]
        outputs = self.run("full", {"source": widened(source), "source_length": source_length, "target": target})
        outputs["encoder_attention"] = outputs["encoder_attention"][..., :width, :width]
        outputs["cross_attention"] = outputs["cross_attention"][..., :width]
        return outputs

    def stepwise(self, source: Array, source_length: Array, target: Array) -> Array:
        """The log-probabilities of the full pass, (B, T, V), computed token by token with the KV cache."""
        stepper = GraphStepper(self)
        stepper.encode(source, source_length)
        return np.stack([stepper.run(tokens, 1, "logprobs")["logprobs"] for tokens in target.T], axis=1)


class GraphStepper:
    """A variant's graphs as the `Stepper` that `model.decode` searches with. All rows are at the same position."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._kind = runner, runner.kind
        self.max_length, self.target_vocab = runner.sizes.max_length, runner.sizes.target_vocab

    def start(self, sources: list[list[int]]) -> None:
        self.encode(*padded([[*ids, EOS] for ids in sources], PAD))

    def encode(self, source: Array, source_length: Array) -> None:
        """Sources (B, S), padded, and their lengths (B,): one row each."""
        feeds = {"source": widened(source), "source_length": source_length}
        encoded = self._runner.run(f"{self._kind}encoder", feeds)
        self._position, self._cross = 0, encoded | {"source_length": source_length}
        self._source_row = np.arange(len(source))
        names = [value.name for value in self._runner.sessions[f"{self._kind}step"].get_inputs()]
        self._past = {
            name: _with_slots(name, encoded[name.replace("self_", "cross_")], 0)
            for name in names
            if name.startswith("self_")
        }

    def step(self, tokens: Array, k: int) -> tuple[Array, Array]:
        outputs = self.run(tokens, k, "top_")
        return outputs["top_logprobs"], outputs["top_ids"]

    def run(self, tokens: Array, k: int, *wanted: str) -> Feeds:
        """Append a token to each row: the outputs of the step graph whose names begin with one of `wanted`."""
        if self._position == self._past["self_key_0"].shape[2]:
            slots = self._position + NEW_SLOTS
            self._past = {name: _with_slots(name, value, slots) for name, value in self._past.items()}
        feeds = {"token": tokens, "position": np.full(len(tokens), self._position), "top": np.array([k])}
        if self._kind:
            whole = int("logprobs" in wanted or not wanted)
            feeds |= {"source_row": self._source_row, "whole": np.full(len(tokens), whole)}
        outputs = self._runner.run(f"{self._kind}step", feeds | self._cross | self._past, "present_", *wanted)
        self._past = {name: outputs[name.replace("self_", "present_")] for name in self._past}
        self._position += 1
        return outputs

    def reorder(self, rows: Array) -> None:
        self._past = {name: value[rows] for name, value in self._past.items()}
        if self._kind:
            self._source_row = self._source_row[rows]
        else:
            self._cross = {name: value[rows] for name, value in self._cross.items()}


def _with_slots(name: str, cache: Array, slots: int) -> Array:
    """A cache of keys or values (R, H, P, d), or of scales (R, 2, H, P), cut or padded to this many slots."""
    axis = 3 if "_scale_" in name else 2
    cut = cache[:, :, :slots] if axis == 2 else cache[..., :slots]
    missing = [(0, slots - cut.shape[axis] if i == axis else 0) for i in range(4)]
    return np.pad(cut, missing)


def widened(source: Array) -> Array:
    """Sources (B, S), padded further to a width at which a row has the same bits in every batch."""
    return np.pad(source, [(0, 0), (0, padded_width(source.shape[1]) - source.shape[1])], constant_values=PAD)


def padded(rows: list[list[int]], pad: int) -> tuple[Array, Array]:
    """Id lists as one right-padded array, at least LEAST_WIDTH wide, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), max(LEAST_WIDTH, int(lengths.max()))), pad)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids, lengths


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
