"""The loaded graphs: a variant of a bundle on onnxruntime, with some number of threads. Lanes may share it."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attendant import kernels
from attendant.export.bundle import Bundle, stored_weights
from attendant.kernels.graph import Graph, GraphError, Tensor
from attendant.service.errors import StartError
from attendant.service.settings import SettingsError

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
CACHE_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int8)": "int8"}
SLOW_OPTIMIZERS = ["SkipLayerNormFusion"]  # onnxruntime's fused node takes five times as long as the two it replaces
log = logging.getLogger("attendant")


class Runtime:
    """The encoder graph and the step graph of one variant. With the kernels, the step is run by compiled code."""

    def __init__(self, bundle: Bundle, provider: str, precision: str, threads: int) -> None:
        self.sizes, ids = bundle.sizes, bundle.special_ids
        self.pad, self.bos, self.eos = ids["pad"], ids["bos"], ids["eos"]
        self.provider = choose_provider(provider)
        self.fallback: str | None = None  # why the CPU computes although CUDA was to
        self.precision = choose_precision(bundle, precision, self.provider)
        self.threads, self.lanes = threads, 1
        self._load_graphs(bundle)
        if self.provider == "cuda" and CUDA not in self.encoder.get_providers():
            self._fall_back(provider, "onnxruntime could not start CUDA on this machine")
            self.precision = choose_precision(bundle, precision, self.provider)
            self._load_graphs(bundle)
        self.cache_dtype = self._cache_dtype()
        self.merge = None if self.has_kernels else self._load("merge")

    def _cache_dtype(self) -> str:
        if self.has_kernels:
            return "int8" if self.precision == "int8" else "float32"
        return next(CACHE_DTYPES[value.type] for value in self.step.get_outputs() if value.name == "present_key_0")

    @property
    def has_kernels(self) -> bool:
        """Whether the compiled kernels compute."""
        return self.kernels_reason is None

    @property
    def lane_threads(self) -> int:
        """A lane's share of the threads."""
        return max(1, self.threads // self.lanes)

    def with_threads(self, threads: int, lanes: int = 1) -> Runtime:
        """The same graphs on `threads` threads, which include the calling thread of each of the `lanes`.

        The kernel graphs share their weights; of the plain ones, what onnxruntime packs is held a second time.
        """
        if (threads, lanes) == (self.threads, self.lanes):
            return self
        other = copy.copy(self)
        other.threads, other.lanes = threads, lanes
        other.encoder, other.step = other._load("encoder"), other._load("step")
        return other

    def weight_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.graphs["step"].parent.iterdir())

    def _load_graphs(self, bundle: Bundle) -> None:
        self.graphs = bundle.variants[self.precision].graphs
        self.kernels_reason = why_no_kernels(self.provider, self.graphs)
        paths = [self._path("encoder"), self._path("step")]
        if self.has_kernels:
            kernels.register(ort.SessionOptions(), 1)  # which tells the library where onnxruntime is
        self._shared = mapped_weights(*paths) if self.has_kernels else shared_weights(*paths)
        self.encoder, self.step = self._load("encoder"), self._load("step")

    def _path(self, name: str) -> Path:
        return self.graphs[f"kernel_{name}" if self.has_kernels else name]

    @property
    def session_threads(self) -> int:
        """The calling thread is one of these: every lane computes in its own, and all lanes share the others."""
        return max(1, self.threads - self.lanes + 1)

    def _load(self, name: str) -> Any:
        return self._load_compiled(name) if self.has_kernels and name != "merge" else self._load_session(name)

    def _load_compiled(self, name: str) -> Graph:
        """A graph that compiled code runs, on the weights as they are mapped."""
        path = self._path(name)
        weights = [
            Tensor(weight, where.kind, self._shared[weight].shape(), self._shared[weight].data_ptr())
            for weight, where in stored_weights(path).items()
        ]
        try:
            return Graph(path, self.session_threads, weights, owners=[*self._shared.values()])
        except GraphError as error:
            why = str(error).removeprefix("onnxruntime refused: ").splitlines()[0]
            raise StartError(f"onnxruntime cannot load {path}: {why}") from None

    def _load_session(self, name: str) -> Any:
        path = self._path(name)
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.session_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # a pattern is kept for every shape ever seen
        # Each session has its own threads: if they spun after a run, they would take the other session's processors.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if self.provider == "cpu" and name != "merge":
            for weight in self._shared.keys() & stored_weights(path).keys():
                options.add_initializer(weight, self._shared[weight])
        cuda = [(CUDA, {"device_id": 0})] if self.provider == "cuda" else []
        try:
            return ort.InferenceSession(str(path), options, providers=[*cuda, CPU], disabled_optimizers=SLOW_OPTIMIZERS)
        except Exception as error:  # onnxruntime raises its own kinds, with no common base
            raise StartError(f"onnxruntime cannot load {path}: {str(error).splitlines()[0]}") from None

    def _fall_back(self, asked: str, reason: str) -> None:
        if asked == "cuda":
            raise StartError(f"--provider cuda was asked for, but {reason}; use --provider cpu or auto.")
        self.provider, self.fallback = "cpu", reason
        log.warning("running on the CPU: %s", reason)


def mapped_weights(*graphs: Path) -> dict[str, Any]:
    """All weights of the graphs, mapped into memory once: every session reads the same pages, and packs none."""
    files: dict[Path, Any] = {}
    found = {}
    for graph in graphs:
        for name, where in stored_weights(graph).items():
            path = graph.parent / where.location
            count = np.dtype(where.kind).itemsize * math.prod(where.shape)
            _check_size(path, where.offset + count)
            if path not in files:
                files[path] = np.memmap(path, np.uint8, "r")
            values = files[path][where.offset : where.offset + count].view(where.kind).reshape(where.shape)
            found[name] = ort.OrtValue.ortvalue_from_numpy(values)
    return found


def shared_weights(*graphs: Path) -> dict[str, Any]:
    """The weights that all of the graphs use (a tied embedding), mapped into memory once."""
    weights = [stored_weights(graph) for graph in graphs]
    found = {}
    for name in set.intersection(*map(set, weights)):
        where = weights[0][name]
        path = graphs[0].parent / where.location
        _check_size(path, where.offset + np.dtype(where.kind).itemsize * math.prod(where.shape))
        array = np.memmap(path, where.kind, "r", where.offset, where.shape)
        found[name] = ort.OrtValue.ortvalue_from_numpy(array)
    return found


def _check_size(path: Path, least: int) -> None:
    if (size := path.stat().st_size) < least:
        raise StartError(f"{path} has {size:,} bytes, and its graphs want {least:,}: it was cut short.")


def why_no_kernels(provider: str, graphs: Mapping[str, Path]) -> str | None:
    """Why a variant runs on onnxruntime's own operators, as a sentence; None: on the compiled kernels."""
    if provider != "cpu":
        return f"The kernels compute on the CPU, and this is {provider}."
    if "kernel_step" not in graphs:
        return "This variant of the model has no graphs for the kernels."
    try:
        return kernels.why_missing() or None
    except kernels.UnusableError as error:
        raise SettingsError([str(error)], error.exit_code) from None


def choose_provider(asked: str) -> str:
    """`auto` without a CUDA provider is the CPU, which does not count as a fallback."""
    if asked != "cpu" and CUDA in ort.get_available_providers():
        return "cuda"
    if asked == "cuda":
        raise StartError(
            "--provider cuda was asked for, but this onnxruntime has no CUDA provider (the package onnxruntime-gpu "
            "has); use --provider cpu or auto."
        )
    return "cpu"


def choose_precision(bundle: Bundle, asked: str, provider: str) -> str:
    if asked != "auto":
        if asked not in bundle.variants:
            raise StartError(f"--precision {asked} is not in the bundle; it has {', '.join(bundle.variants)}.")
        return asked
    return preferred_precision(list(bundle.variants), provider)


def preferred_precision(precisions: Sequence[str], provider: str) -> str:
    """The default precision of a provider."""
    order = ("fp16", "fp32", "int8") if provider == "cuda" else ("int8", "fp32", "fp16")
    return next((name for name in order if name in precisions), precisions[0])
