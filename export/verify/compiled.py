"""Compiled int8 operators against their definitions, one operator at a time, on the same inputs.

Their levels cannot be seen, and over a whole graph one level that falls to the other side moves all that comes after it
(docs/decisions/015). Within one operator it moves little: what is left is a small fraction of its largest output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from attendant import kernels
from attendant.export.graphs.builder import OURS
from attendant.export.runner import DEFINITIONS, Array, Feeds, Runner, add_mapped
from attendant.export.signature import Sizes
from attendant.export.verify.inputs import grid, worst
from attendant.export.verify.int8_trace import FOLDER

LARGEST = 0.1  # distance of any value, as a fraction of the operator's largest absolute output
# Of the mean distance, as a fraction of the mean absolute output. One level that falls to the other side moves all
# features a little, and so more levels at the roundings after it, up to the distance that rounding itself makes, 1 %.
MEAN = 0.02
LOGPROBS = 1e-4  # nats that log-probabilities may be off anyway: those of a token that is certain are nearly 0


def check_compiled(graphs: dict[str, Path], sizes: Sizes) -> Iterator[str]:
    """The first difference of each operator, while the definitions decode over the grid."""
    runner = ComparingRunner(graphs, sizes)
    for inputs in grid(sizes):
        runner.stepwise(inputs.source, inputs.source_length, inputs.target)
    yield from runner.problems.values()


@dataclass
class Operator:
    """One node of a graph, and a session of the compiled operator alone, created when its inputs are known."""

    node: onnx.NodeProto
    weights: list[onnx.TensorProto]
    session: ort.InferenceSession | None = None

    @property
    def inputs(self) -> list[str]:
        stored = {tensor.name for tensor in self.weights}
        return list(dict.fromkeys(name for name in self.node.input if name not in stored))


class ComparingRunner(Runner):
    """Decodes by the definitions, and runs each compiled operator on the inputs that its definition got."""

    def __init__(self, graphs: dict[str, Path], sizes: Sizes) -> None:
        super().__init__(graphs, sizes, DEFINITIONS)
        self.problems: dict[str, str] = {}
        self._operators: dict[str, list[Operator]] = {}
        self._models: dict[str, onnx.ModelProto] = {}
        self._mapped: dict[str, ort.OrtValue] = {}

    def _load(self, graph: str) -> ort.InferenceSession:
        path = self.graphs[graph]
        self._models[graph] = model = onnx.load(str(path), load_external_data=False)
        weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._operators[graph] = [
            Operator(node, [weights[name] for name in dict.fromkeys(node.input) if name in weights])
            for node in model.graph.node
            if node.domain == OURS
        ]
        shown = onnx.ModelProto()
        shown.CopyFrom(model)
        known = {value.name for value in (*model.graph.input, *model.graph.output)}
        between = [name for each in self._operators[graph] for name in (*each.inputs, *each.node.output)]
        for name in dict.fromkeys(between):
            if name not in known:
                shown.graph.output.append(onnx.ValueInfoProto(name=name))
        return self._session(graph, shown)

    def run(self, graph: str, feeds: Feeds, *_: str) -> Feeds:
        """All outputs of the definitions; differences of the compiled operators are noted in `problems`."""
        outputs = super().run(graph, feeds)
        values = feeds | outputs
        for operator in self._operators[graph]:
            if operator.session is None:
                operator.session = self._session(graph, self._alone(graph, operator, values), operator)
            names = [name for name in operator.node.output if not name.startswith("top_ids")]
            found = operator.session.run(names, {name: values[name] for name in operator.inputs})
            for name, value in zip(names, found, strict=True):
                if problem := difference(value, values[name], LOGPROBS if "logprobs" in name else 0.0):
                    where = f"{operator.node.op_type} {operator.node.name} of {graph}"
                    self.problems.setdefault(where, f"{where} does not compute its definition: {name} is {problem}")
        return {value.name: outputs[value.name] for value in self._models[graph].graph.output}

    def _alone(self, graph: str, operator: Operator, values: Feeds) -> onnx.ModelProto:
        """A model of one operator."""

        def described(names: Iterable[str]) -> list[onnx.ValueInfoProto]:
            kinds = {name: helper.np_dtype_to_tensor_dtype(values[name].dtype) for name in names}
            return [
                helper.make_tensor_value_info(name, kind, [None] * values[name].ndim) for name, kind in kinds.items()
            ]

        inputs, outputs = described(operator.inputs), described(operator.node.output)
        model = onnx.ModelProto()
        model.CopyFrom(self._models[graph])
        model.graph.CopyFrom(helper.make_graph([operator.node], graph, inputs, outputs, operator.weights))
        return model

    def _session(self, graph: str, model: onnx.ModelProto, operator: Operator | None = None) -> ort.InferenceSession:
        """Of definitions, or of one compiled operator, whose weights are mapped."""
        path = self.graphs[graph]
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry(FOLDER, str(path.parent))
        if operator is not None:
            options.intra_op_num_threads = 1
            kernels.register(options, 1)
            add_mapped(options, path, self._mapped, {tensor.name for tensor in operator.weights})
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def difference(found: Array, expected: Array, always: float = 0.0) -> str:
    """What is off beyond what rounding to levels explains, and by more than `always`; empty if nothing is."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {found.shape}, not {expected.dtype} {expected.shape}"
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    distance, size = np.abs(found - expected), np.abs(expected)
    if not distance.size or distance.max() <= always:
        return ""
    if distance.max() <= LARGEST * size.max() and distance.mean() <= MEAN * size.mean():
        return ""
    return f"off by up to {distance.max():.2g} of {size.max():.2g}: {worst(found, expected)}"
