"""A `full` graph that also answers what it computes on the way, and parts of which can be switched off.

Each value that can be asked for becomes an output, which costs nothing where it is not. Each part that can be switched
off gets a factor as an input: 1 as long as it is on, which changes no bit of what is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attendant.export.bundle import OnnxGraph, Sizes
from attendant.service.engine.explain.anchors import Anchors, Sublayer, find_anchors
from attendant.service.engine.tasks import Ablation, Array
from attendant.service.errors import InvalidFieldError

ELEMENT = {"fp16": 10}  # of factors, as ONNX numbers it; float32 elsewhere
FLOAT32 = 1


def head_factor(name: Sublayer) -> str:
    return f"heads on: {name[0]} {name[1]}"


def output_factor(name: Sublayer) -> str:
    return f"output on: {name[0]} {name[1]}"


def residual_factor(name: Sublayer) -> str:
    return f"residual on: {name[0]} {name[1]}"


def position_factor(side: str) -> str:
    return f"positions on: {side}"


@dataclass
class Inside:
    graph: bytes
    anchors: Anchors
    sums: dict[Sublayer, str]  # of each head, 0 where it is switched off
    stream: dict[str, str]  # x before the first sub-layer of a stack: encoder, decoder
    outputs: dict[Sublayer, str]  # what a sub-layer adds to x
    factors: dict[str, Array] = field(default_factory=dict)  # all of them 1

    def ablate(self, ablation: Ablation | None) -> dict[str, Array]:
        """The factors as inputs of a run."""
        feeds = dict(self.factors)
        off = ablation or Ablation()
        for kind, layer, head in off.heads:
            name = head_factor((kind, layer))
            feeds[name] = feeds[name].copy()
            feeds[name][head] = 0
        zeros = [output_factor(each) for each in off.sublayers] + [residual_factor(each) for each in off.residuals]
        zeros += [position_factor(side) for side in off.positions]
        if any(name not in feeds for name in zeros):
            raise InvalidFieldError("this model adds no positions to its embeddings; leave positions out.", "ablate")
        return feeds | {name: np.zeros_like(feeds[name]) for name in zeros}

    def structure(self, is_turning: bool) -> dict[str, Any]:
        """What kind of Transformer it is, read from its graph; `is_turning` of the table of added positions."""
        found = self.anchors
        return {
            "norm": found.norm,
            "norm_kind": found.norm_kind,
            "activation": found.activation,
            "score": found.attention["encoder", 0].score,
            "positions": self._positions(is_turning),
            "added_positions": sorted(found.embedded),
        }

    def _positions(self, is_turning: bool) -> str:
        if self.anchors.attention["encoder", 0].bias:
            return "relative"
        if not self.anchors.embedded:
            return "none"
        return "sinusoidal" if is_turning else "learned"


def open_inside(data: bytes, sizes: Sizes, precision: str) -> Inside:
    """UnknownGraphError where the graph has not the parts of a Transformer."""
    graph = OnnxGraph(data)
    anchors = find_anchors(graph, sizes)
    first = {"encoder": ("encoder", 0), "decoder": ("decoder", 0)}
    stream = {stack: graph.nodes[anchors.residuals[name]].inputs[0] for stack, name in first.items()}
    edits: list[tuple[str, int, str, tuple[int, ...]]] = []  # what a node computes, which of its inputs, factor, shape
    for name, found in anchors.attention.items():
        edits.append((graph.nodes[found.read_sums].outputs[0], 0, head_factor(name), (sizes.heads, 1, 1)))
    for name, node in anchors.residuals.items():
        [total] = graph.nodes[node].outputs
        edits += [(total, 0, residual_factor(name), ()), (total, 1, output_factor(name), ())]
    for side, embedded in anchors.embedded.items():
        edits.append((graph.nodes[embedded.node].outputs[0], 1, position_factor(side), ()))
    element = ELEMENT.get(precision, FLOAT32)
    products = {factor: graph.multiply(output, place, factor, shape, element) for output, place, factor, shape in edits}
    inside = Inside(
        graph=b"",
        anchors=anchors,
        sums={name: products[head_factor(name)] for name in anchors.attention},
        stream=stream,
        outputs={name: products[output_factor(name)] for name in anchors.residuals},
        factors={
            factor: np.ones(shape, np.float16 if element != FLOAT32 else np.float32) for _, _, factor, shape in edits
        },
    )
    graph.answer(_values(inside))
    inside.graph = graph.encode()
    return inside


def _values(inside: Inside) -> Iterable[str]:
    """All that can be asked for."""
    anchors = inside.anchors
    for found in anchors.attention.values():
        yield from (found.query, found.key, found.value, found.scores)
        yield from (value for value in (found.vector, found.bias, found.projection) if value)
    yield from inside.sums.values()
    yield from inside.outputs.values()
    yield from dict.fromkeys([*inside.stream.values(), *anchors.streams.values()])
    for embedded in anchors.embedded.values():
        yield from (embedded.tokens, embedded.positions)
