"""The bundle's `full` graph, which computes attention weights: its files are opened with the bundle, and loaded late.

A bundle's directory may be replaced while it serves. Files that are open stay those of the bundle that was loaded, even
once they are deleted; a file that was written over is found by its digest, and nothing is explained.
"""

from __future__ import annotations

import hashlib
import io
import logging
import mmap
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnxruntime as ort

from attendant.export.bundle import Bundle, OnnxGraph, Sizes, digest_of, external_files, padded_width, stored_in
from attendant.service.engine.explain.anchors import UnknownGraphError
from attendant.service.engine.explain.inside import Inside, open_inside
from attendant.service.engine.tasks import ATTENTION_KINDS, Ablation, Array, Ids
from attendant.service.errors import NotFoundError
from attendant.service.memory import MemoryAccount

WEIGHTS_SHARE = 0.375  # of the memory limit, for the graph's weights
log = logging.getLogger("attendant")
DTYPES = {1: np.float32, 3: np.int8, 10: np.float16}  # as ONNX numbers them
MEMORY_PER_WEIGHT = 1.5  # bytes in memory for each byte on disk: some are packed a second time


class GraphFiles:
    """The graph of one variant and its weights, open; closed when nothing refers to them any more."""

    def __init__(self, bundle: Bundle, precision: str) -> None:
        self.precision = precision
        self.sizes: Sizes = bundle.sizes
        path = bundle.variants[precision].graphs["full"]
        self._graph = self._open(path)
        self._weights = {name: self._open(path.parent / name) for name in sorted(external_files(path))}
        opened = {path: self._graph, **{path.parent / name: number for name, number in self._weights.items()}}
        self._digests = {place: (number, digest_of(bundle, place)) for place, number in opened.items()}
        self.bytes = sum(os.fstat(number).st_size for number in opened.values())

        self._weigh()

    def _weigh(self) -> None:
        """Which weights there are, and which of them are embeddings: what is gathered by the ids of each side."""
        with _stream(self._graph) as file:
            data = file.read()
        graph = OnnxGraph(data)
        self._stored = stored_in(data)
        gathers = [[_origin(graph, value) for value in node.inputs] for node in graph.nodes if node.op == "Gather"]
        self.tables = {side: [table for table, ids in gathers if ids == side] for side in ("source", "target")}
        used = [
            *self.tables["source"],
            *self.tables["target"],
            "source_embedding.positions",
            "target_embedding.positions",
        ]
        self._small = {name: found for name in used if (found := graph.small_weight(name)) is not None}

    def has(self, weight: str) -> bool:
        return weight in self._stored or weight in self._small

    def shape(self, weight: str) -> tuple[int, ...]:
        return self._stored[weight].shape if weight in self._stored else self._small[weight][1]

    def rows(self, weight: str, start: int, stop: int) -> Array:
        """Some rows of a matrix among the weights."""
        if weight in self._small:
            kind, shape, content = self._small[weight]
            return np.frombuffer(content, DTYPES[kind]).reshape(shape)[start:stop]
        stored = self._stored[weight]
        width, dtype = int(np.prod(stored.shape[1:])), np.dtype(stored.kind)
        with _stream(self._weights[stored.location]) as file:
            file.seek(stored.offset + start * width * dtype.itemsize)
            content = file.read((stop - start) * width * dtype.itemsize)
        return np.frombuffer(content, dtype).reshape(-1, *stored.shape[1:])

    def _open(self, path: Path) -> int:
        """A file descriptor."""
        number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, number)
        return number

    def read(self) -> tuple[bytes, Mapping[str, int]]:
        """The graph, and the descriptors of its weights by name; NotFoundError if a file was changed meanwhile."""
        for path, (number, expected) in self._digests.items():
            with _stream(number) as file:
                if expected is not None and hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    sentence = f"{path} was changed since the model was loaded; reload the model to explain it."
                    raise NotFoundError(sentence)
        with _stream(self._graph) as file:
            return file.read(), self._weights


class FullGraph:
    """The `full` graph of a variant on the CPU."""

    def __init__(self, files: GraphFiles, threads: int) -> None:
        self.files, self.precision = files, files.precision
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.enable_mem_pattern = options.enable_cpu_mem_arena = False  # nothing is kept between runs
        options.add_session_config_entry("session.force_spinning_stop", "1")
        graph, weights = files.read()
        try:
            self.inside: Inside | None = open_inside(graph, files.sizes, files.precision)
        except UnknownGraphError as error:
            log.warning("only attention can be explained: %s; export the model again.", error)
            self.inside = None
        graph = graph if self.inside is None else self.inside.graph
        with ExitStack() as mapped:  # onnxruntime copies what it keeps
            parts = [mapped.enter_context(mmap.mmap(number, 0, access=mmap.ACCESS_READ)) for number in weights.values()]
            options.add_external_initializers_from_files_in_memory(list(weights), parts, [len(part) for part in parts])
            self._session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._run_options = ort.RunOptions()  # of the run that is under way, or of the last one

    def stop(self) -> None:
        """The run that is under way, in another thread, raises before its next operator."""
        self._run_options.terminate = True

    def run(
        self, source: Ids, target: Ids, pad: int, ablation: Ablation | None = None, values: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Attention weights of every kind, (L, H, queries, keys), and other outputs as they are named; padding cut off.

        The axes of other outputs are those of the graph: what is padded there is not cut off.
        """
        count, width = len(source), padded_width(len(source))
        padded = np.full((1, width), pad, np.int64)
        padded[0, :count] = source
        feeds = {"source": padded, "source_length": np.array([count]), "target": np.array([target], np.int64)}
        if self.inside is not None:
            feeds |= self.inside.ablate(ablation)
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = 4  # a run that is stopped is no error
        names = [*(f"{kind}_attention" for kind in ATTENTION_KINDS), *values]
        outputs = [np.asarray(output) for output in self._session.run(names, feeds, self._run_options)]
        encoder, decoder, cross = (output[0] for output in outputs[:3])
        found = {"encoder": encoder[..., :count, :count], "decoder": decoder, "cross": cross[..., :count]}
        return found | dict(zip(values, outputs[3:], strict=True))


def open_full_graph(bundle: Bundle, served: str) -> list[GraphFiles]:
    """Open it in f32, as torch computes, and in the served precision, for where the f32 weights are too large."""
    return [GraphFiles(bundle, each) for each in dict.fromkeys(("fp32", served)) if each in bundle.variants]


def load_full_graph(opened: Sequence[GraphFiles], threads: int, memory: MemoryAccount, name: str) -> FullGraph:
    """The first that fits in memory, which is set aside for it, with the graph as the owner; `name` is the model's."""
    most = min(WEIGHTS_SHARE * memory.limit, memory.capacity)
    for files in opened:
        size = int(MEMORY_PER_WEIGHT * files.bytes)
        if size <= most:
            with memory.holding(size):  # refused while other requests hold it
                graph = FullGraph(files, threads)
            memory.set_aside(graph, size)
            return graph
    raise NotFoundError(
        f"{name} cannot be explained here: its weights take more than the {most / 1e6:.0f} MB that are left for it "
        "beside what decodes."
    )


def _origin(graph: OnnxGraph, value: str) -> str:
    """The input or weight that a value is made of: ids that are laid out in a row, a table that is unpacked."""
    while (node := graph.producer(value)) is not None:
        value = graph.nodes[node].inputs[0]
    return value


def _stream(number: int) -> io.BufferedReader:
    os.lseek(number, 0, os.SEEK_SET)
    return open(number, "rb", closefd=False)
