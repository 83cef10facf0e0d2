"""Runs int8 graphs with every level that they compute as an output: what the int8 reference follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions

from attendant.export.runner import Array, Feeds, Runner
from attendant.export.verify.int8_reference import Trace

PRODUCT = "MatMulInteger"
WEIGHT = " packed"  # ends the name of a product's stored weight
ZERO_POINT = 128
CACHED = ("self_attention key", "self_attention value")  # ends the names of levels that a step adds to
FOLDER = "session.model_external_initializers_file_folder_path"


class TracingRunner(Runner):
    """The graphs of one variant, plain or of our own operators' definitions, with the levels read by their products."""

    def __init__(self, runner: Runner, graphs: dict[str, Path]) -> None:
        super().__init__(graphs, runner.sizes, runner.way)
        self._products: dict[str, dict[str, str]] = {}  # graph: value: the product that reads it
        self._seen: dict[str, list[Array]] = {}

    def _load(self, graph: str) -> ort.InferenceSession:
        path = self.graphs[graph]
        model = inline_local_functions(onnx.load(str(path), load_external_data=False))
        self._products[graph] = read = products_of(model.graph)
        model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UINT8, None) for name in read)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry(FOLDER, str(path.parent))
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(self, graph: str, feeds: Feeds, *_: str) -> Feeds:
        """All outputs, whatever is asked for, except the levels, which are recorded for `take_trace`."""
        outputs = super().run(graph, feeds)
        for value, product in self._products[graph].items():
            levels = (
                outputs.pop(value).astype(np.int16) - ZERO_POINT
            )  # (B, L, N) of a pass, (R, 1, N) or (R, N) of a step
            if graph == "kernel_encoder":
                levels = with_padding(levels, feeds["source"], feeds["source_length"])
            self._seen.setdefault(product, []).append(levels if levels.ndim == 3 else levels[:, None])
        for name, cache in outputs.items():
            if cache.dtype == np.int8 and name.startswith(("cross_", "present_")):
                kind, side, layer = name.split("_")
                if kind == "present":
                    cache = cache[:, :, : int(feeds["position"].max()) + 1]  # later slots are empty
                joined = cache.transpose(0, 2, 1, 3).reshape(len(cache), cache.shape[2], -1)  # (B, L, D)
                attention = "cross_attention" if kind == "cross" else "self_attention"
                self._seen[f"decoder.{layer}.{attention} {side}"] = [joined]  # the last step holds all before it
        return outputs

    def take_trace(self, source: Array, source_length: Array, first: int = 0) -> Trace:
        """The levels of what ran since the last call, steps side by side; of cached ones, from position `first` on."""
        levels = {name: torch.from_numpy(np.concatenate(seen, axis=1)) for name, seen in self._seen.items()}
        levels |= {name: value[:, first:] for name, value in levels.items() if name.endswith(CACHED)}
        self._seen = {}
        return Trace(levels, torch.from_numpy(np.arange(source.shape[1]) < source_length[:, None]))


def products_of(graph: onnx.GraphProto) -> dict[str, str]:
    """The products of a graph by the value that they read: the stored weight of each, found through its unpacking."""
    made_by = {name: node for node in graph.node for name in node.output}
    found = {}
    for node in graph.node:
        if node.op_type == PRODUCT:
            weight = node.input[1]
            while weight in made_by:
                weight = made_by[weight].input[0]
            found[node.input[0]] = weight.removesuffix(WEIGHT)
    return found


def with_padding(levels: Array, source: Array, source_length: Array) -> Array:
    """Levels of all source tokens, (tokens, N) -> (B, S, N), with 0 at padding"""
    laid_out = np.zeros((*source.shape, levels.shape[-1]), levels.dtype)
    laid_out[np.arange(source.shape[1]) < source_length[:, None]] = levels
    return laid_out
