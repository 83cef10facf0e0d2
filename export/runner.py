"""Runs a variant's graphs on onnxruntime for evaluation and verification; serving has a faster way of its own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant import kernels
from attendant.common.cpus import allowed_cpus
from attendant.export.bundle import stored_weights
from attendant.export.signature import LEAST_WIDTH, REQUIRED, Sizes, padded_width
from attendant.model.text.tokenizer import EOS, PAD

NEW_SLOTS = 32  # by which a full KV cache grows
PLAIN, DEFINITIONS, KERNELS = "plain", "definitions", "kernels"
BESIDE = {  # which other graphs stay loaded when one runs
    "encoder": ("step",),
    "step": ("encoder",),
    "kernel_encoder": ("kernel_step",),
    "kernel_step": ("kernel_encoder",),
}
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
    """The graphs of one variant, run in one of the ways of `ways_to_run`; by default, as the service does on a CPU.

    A graph is loaded when it is first run, and let go when one runs that is not used beside it: `full` by itself,
    encoder and step together.
    """

    def __init__(
        self, graphs: dict[str, Path], sizes: Sizes, way: str = "", threads: int = 0, spin: bool = False
    ) -> None:
        """`threads` of onnxruntime, 0 for its own number; without `spin` they sleep while they wait."""
        self.sizes = sizes
        self.way = way or (KERNELS if KERNELS in ways_to_run(graphs) else PLAIN)
        self.kind = "" if self.way == PLAIN else "kernel_"
        self.threads, self.spin = threads, spin
        self.graphs = {name: path for name, path in graphs.items() if (name in REQUIRED) == (self.way == PLAIN)}
        self._loaded: dict[str, ort.InferenceSession] = {}
        self._weights: dict[str, ort.OrtValue] = {}

    def session(self, graph: str) -> ort.InferenceSession:
        """A graph, loaded; those that are not used beside it are let go."""
        if graph not in self._loaded:
            beside = BESIDE.get(graph, ())
            self._loaded = {name: session for name, session in self._loaded.items() if name in beside}
            give_back()
            self._loaded[graph] = self._load(graph)
            give_back()
        return self._loaded[graph]

    def _load(self, graph: str) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # a pattern is kept for every shape ever seen
        options.enable_cpu_mem_arena = False  # an arena doubles as it grows, and keeps what a long input took
        options.intra_op_num_threads = self.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spin)))
        if self.way == KERNELS:
            kernels.register(options, self.threads or allowed_cpus())
        add_mapped(options, self.graphs[graph], self._weights)
        return ort.InferenceSession(str(self.graphs[graph]), options, providers=["CPUExecutionProvider"])

    def let_go(self) -> None:
        """Unload every graph, until it is run again."""
        self._loaded = {}
        give_back()

    def run(self, graph: str, feeds: Feeds, *wanted: str) -> Feeds:
        """The outputs whose names begin with one of `wanted`; all of them by default."""
        session = self.session(graph)
        names = [output.name for output in session.get_outputs() if output.name.startswith(wanted or "")]
        options = ort.RunOptions()
        options.only_execute_path_to_fetches = True
        return dict(zip(names, session.run(names, feeds, options), strict=True))

    def full(self, source: Array, source_length: Array, target: Array, maps: bool = True) -> Feeds:
        """Of the plain graphs; without `maps`, log-probabilities alone."""
        width, wanted = source.shape[1], () if maps else ("logprobs",)
        feeds = {"source": widened(source), "source_length": source_length, "target": target}
        outputs = self.run("full", feeds, *wanted)
        if not maps:
            return outputs
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
        names = [value.name for value in self._runner.session(f"{self._kind}step").get_inputs()]
        self.past = {
            name: _with_slots(name, encoded[name.replace("self_", "cross_")], 0)
            for name in names
            if name.startswith("self_")
        }

    def step(self, tokens: Array, k: int) -> tuple[Array, Array]:
        outputs = self.run(tokens, k, "top_")
        return outputs["top_logprobs"], outputs["top_ids"]

    def run(self, tokens: Array, k: int, *wanted: str) -> Feeds:
        """Append a token to each row: the outputs of the step graph whose names begin with one of `wanted`."""
        if self._position == self.past["self_key_0"].shape[2]:
            slots = self._position + NEW_SLOTS
            self.past = {name: _with_slots(name, value, slots) for name, value in self.past.items()}
        feeds = {"token": tokens, "position": np.full(len(tokens), self._position), "top": np.array([k])}
        if self._kind:
            whole = int("logprobs" in wanted or not wanted)
            feeds |= {"source_row": self._source_row, "whole": np.full(len(tokens), whole)}
        outputs = self._runner.run(f"{self._kind}step", feeds | self._cross | self.past, "present_", *wanted)
        self.past = {name: outputs[name.replace("self_", "present_")] for name in self.past}
        self._position += 1
        return outputs

    def adopt(self, position: int, past: Feeds) -> None:
        """Go on after `position` tokens whose caches are given, by the names of the step's inputs."""
        self._position, self.past = position, past

    def reorder(self, rows: Array) -> None:
        self.past = {name: value[rows] for name, value in self.past.items()}
        if self._kind:
            self._source_row = self._source_row[rows]
        else:
            self._cross = {name: value[rows] for name, value in self._cross.items()}


def add_mapped(
    options: ort.SessionOptions, graph: Path, mapped: dict[str, ort.OrtValue], names: Collection[str] | None = None
) -> None:
    """Give a session a graph's weights, all or those named, as pages of their file: kept in `mapped` for others."""
    for name, where in stored_weights(graph).items():
        if names is not None and name not in names:
            continue
        if name not in mapped:
            count = np.dtype(where.kind).itemsize * math.prod(where.shape)
            pages = np.memmap(graph.parent / where.location, np.uint8, "r", where.offset, (count,))
            mapped[name] = ort.OrtValue.ortvalue_from_numpy(pages.view(where.kind).reshape(where.shape))
        options.add_initializer(name, mapped[name])


def give_back() -> None:
    """Return freed memory to the system, where the C library has a call for it: it keeps what large models freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
