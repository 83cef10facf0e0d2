"""A bundle's variant on onnxruntime: sources in, memory out; tokens in, candidates out. It knows no policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from export.bundle import LEAST_WIDTH, Bundle, stored_weights
from service.errors import StartError
from service.memory import WIDTHS, DeviceMemory, HostMemory, Memory, round_up, tensor_names
from service.tasks import Array, Ids

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
SLOWER = ["SkipLayerNormFusion"]  # onnxruntime's fused node takes five times as long as the two it replaces
PROBED_ROWS, PROBES = 8, 6
log = logging.getLogger("attendant")


@dataclass(frozen=True)
class Layout:
    """Where the rows of a step are, from the engine: rows of one source in one line of `cell`."""

    cell: Array  # (B, K) int64
    place: Array  # (R,) int64
    source_length: Array  # (B,) int64


@dataclass(frozen=True)
class Candidates:
    top_ids: Array  # (R, k)
    top_logprobs: Array  # (R, k)
    logprobs: Array  # (R, V); valid until the next step


class Session:
    """The encoder and the step of one variant."""

    def __init__(self, bundle: Bundle, provider: str, precision: str, threads: int, max_rows: int) -> None:
        self.sizes, self.pad, self.eos = bundle.sizes, bundle.special_ids["pad"], bundle.special_ids["eos"]
        self.provider, self.fallback = choose_provider(provider)
        self.precision = choose_precision(bundle, precision, self.provider)
        self.threads = threads
        self._load_graphs(bundle)
        if self.provider == "cuda" and CUDA not in self._step.get_providers():
            self._fall_back(provider, "onnxruntime could not start CUDA on this machine")
            self.precision = choose_precision(bundle, precision, self.provider)
            self._load_graphs(bundle)
        real = "float16" if "float16" in self._step.get_outputs()[-1].type else "float32"
        self.memory: Memory = (
            HostMemory(self.sizes, max_rows)
            if self.fast
            else DeviceMemory(self.sizes, self._load("", "merge"), self.provider, real)
        )
        self._io = self._step.io_binding()
        self._bound: tuple[int, ...] = ()
        rows, vocabulary = max_rows, self.sizes.target_vocab
        self._tokens, self._positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._places, self._lengths = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._cell, self._top = np.zeros((0, 0), np.int64), np.zeros(1, np.int64)
        self._shape = (0, 0, 0)  # rows, sources, places
        self._logprobs = np.zeros((rows, vocabulary), np.float32)

    def _load_graphs(self, bundle: Bundle) -> None:
        self.graphs = bundle.variants[self.precision].graphs
        self.fast = self.provider == "cpu" and "fast_step" in self.graphs
        kind = "fast_" if self.fast else ""
        self._shared = shared_weights(self.graphs[f"{kind}encoder"], self.graphs[f"{kind}step"])
        self._encoder, self._step = self._load(kind, "encoder"), self._load(kind, "step")

    def _load(self, kind: str, name: str) -> Any:
        path = self.graphs[kind + name]
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # a pattern is kept for every shape ever seen
        # Each session has threads of its own: those that spun on after a run would take the other's processors.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if self.provider == "cpu" and name != "merge":
            for weight, value in self._shared.items():
                options.add_initializer(weight, value)
        cuda = [(CUDA, {"device_id": 0})] if self.provider == "cuda" else []
        try:
            return ort.InferenceSession(str(path), options, providers=[*cuda, CPU], disabled_optimizers=SLOWER)
        except Exception as error:  # onnxruntime raises its own kinds, with no common base
            raise StartError(f"onnxruntime cannot load {path}: {str(error).splitlines()[0]}") from None

    def _fall_back(self, asked: str, reason: str) -> None:
        if asked == "cuda":
            raise StartError(f"--provider cuda was asked for, but {reason}; use --provider cpu or auto.")
        self.provider, self.fallback = "cpu", reason
        log.warning("running on the CPU: %s", reason)

    def encode(self, sources: Sequence[Ids], held: int, width: int) -> None:
        """Encode sources, and put what the decoder needs of them into memory after the `held` ones there."""
        longest = round_up(max(LEAST_WIDTH, *(len(source) + 1 for source in sources)), WIDTHS)
        ids = np.full((len(sources), longest), self.pad, dtype=np.int64)
        lengths = np.array([len(source) + 1 for source in sources], dtype=np.int64)
        for row, source in zip(ids, sources, strict=True):
            row[: len(source)], row[len(source)] = source, self.eos
        names = tensor_names("cross", self.sizes)
        if isinstance(self.memory, HostMemory) and longest < width:
            feeds = {"source": ids, "source_length": lengths}
            self.memory.add_sources(held, self._encoder.run(names, feeds), width)
            return
        io = self._encoder.io_binding()
        for name, value in (("source", ids), ("source_length", lengths)):
            io.bind_cpu_input(name, value)
        if isinstance(self.memory, HostMemory):  # no copy: the encoder writes where the decoder reads
            for name, place in zip(names, self.memory.places(held, len(sources), width), strict=True):
                io.bind_output(name, "cpu", 0, place.dtype, list(place.shape), place.ctypes.data)
            self._encoder.run_with_iobinding(io)
            return
        for name in names:
            io.bind_output(name, self.provider)
        self._encoder.run_with_iobinding(io)
        self.memory.add_sources(held, list(io.get_outputs()), width)

    def arrange(self, layout: Layout) -> None:
        """Take note of where rows are, until they are somewhere else."""
        sources, width = layout.cell.shape
        shape = (len(layout.place), sources, width)
        if shape != self._shape:
            self._shape, self._bound = shape, ()
            self._cell = np.zeros((sources, width), np.int64)
        self._cell[:], self._places[: shape[0]] = layout.cell, layout.place
        self._lengths[:sources] = layout.source_length

    def step(self, tokens: Sequence[int], positions: Sequence[int], top: int) -> Candidates:
        """One more token for each row."""
        rows = len(tokens)
        self._tokens[:rows], self._positions[:rows], self._top[0] = tokens, positions, top
        self.memory.make_room(rows, max(positions))
        bound = (rows, top, *self.memory.layout)
        if bound != self._bound:
            self._bind(top)
            self._bound = bound
        self._step.run_with_iobinding(self._io)
        self.memory.take(self._io)
        return Candidates(self._top_ids, self._top_logprobs, self._logprobs[:rows])

    def probe(self) -> float:
        """The least seconds that a few sources and steps took, for a choice between sessions."""
        rows = min(PROBED_ROWS, len(self._tokens))
        cell = np.arange(rows)[:, None].repeat(LEAST_WIDTH, axis=1)
        seconds = []
        for _ in range(PROBES):
            started = time.perf_counter()
            self.encode([(self.eos,) * 7] * rows, 0, round_up(8, WIDTHS))
            self.memory.keep_rows([-1] * rows, 0)
            self.arrange(Layout(cell, np.arange(rows) * LEAST_WIDTH, np.full(rows, 8)))
            for position in range(4):
                self.step([self.eos] * rows, [position] * rows, 1)
            seconds.append(time.perf_counter() - started)
        self.memory.keep_rows([], 0)
        self.memory.keep_sources([], WIDTHS)
        return min(seconds)

    def _bind(self, top: int) -> None:
        io, (rows, sources, _) = self._io, self._shape
        io.clear_binding_inputs()
        io.clear_binding_outputs()
        inputs: dict[str, Array] = {
            "token": self._tokens[:rows], "position": self._positions[:rows], "top": self._top,
            "cell": self._cell, "place": self._places[:rows], "source_length": self._lengths[:sources],
        }  # fmt: skip
        for name, value in inputs.items():
            io.bind_input(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        self._top_ids, self._top_logprobs = np.zeros((rows, top), np.int64), np.zeros((rows, top), np.float32)
        outputs: dict[str, Array] = {
            "logprobs": self._logprobs[:rows], "top_logprobs": self._top_logprobs, "top_ids": self._top_ids,
        }  # fmt: skip
        for name, value in outputs.items():
            io.bind_output(name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
        self.memory.bind(io, rows, sources)


def shared_weights(*graphs: Path) -> dict[str, Any]:
    """The weights that all of some graphs use (an embedding, where it is tied), mapped into memory once."""
    weights = [stored_weights(graph) for graph in graphs]
    found = {}
    for name in set.intersection(*map(set, weights)):
        where = weights[0][name]
        path = graphs[0].parent / where.location
        array = np.memmap(path, where.kind, "r", where.offset, where.shape)
        found[name] = ort.OrtValue.ortvalue_from_numpy(array)
    return found


def choose_provider(asked: str) -> tuple[str, str | None]:
    """The provider, and why it is not the one that would have been taken first."""
    if asked == "cpu":
        return "cpu", None
    if CUDA in ort.get_available_providers():
        return "cuda", None
    reason = "this onnxruntime has no CUDA provider (the package onnxruntime-gpu has)"
    if asked == "cuda":
        raise StartError(f"--provider cuda was asked for, but {reason}; use --provider cpu or auto.")
    return "cpu", None


def choose_precision(bundle: Bundle, asked: str, provider: str) -> str:
    if asked != "auto":
        if asked not in bundle.variants:
            raise StartError(f"--precision {asked} is not in the bundle; it has {', '.join(bundle.variants)}.")
        return asked
    return fastest(list(bundle.variants), provider)


def fastest(precisions: Sequence[str], provider: str) -> str:
    """The precision that a provider takes where nothing else is said."""
    order = ("fp16", "fp32", "int8") if provider == "cuda" else ("int8", "fp32", "fp16")
    return next((name for name in order if name in precisions), precisions[0])
