"""The graphs written by hand against an export of the same model by torch itself, `torch.onnx.export(dynamo=True)`.

The two share no code but the model, so a mistake that the graphs and the checks of `attendant verify` have in common
shows here. torch's export has fixed lengths; that no length is frozen in ours is tested in test_export_graphs.py.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from attendant.export import signature
from attendant.export.graphs.builder import Array
from attendant.export.graphs.graphs import build_graph, sizes_of
from attendant.export.graphs.weights import arrays_of
from attendant.model.config import CHOICES
from attendant.model.transformer import AttentionWeights, Transformer
from tests.export.graphs.test_graphs import sources, targets
from tests.support.small_models import make_model, with_random_biases

LENGTHS, TARGET_LENGTH = [7, 4, 2], 5
# Every pair of two choices' values is in at least one line; of what T5 has, every value.
MODELS = [
    ("dot", "relu", "none", "post", "sinusoidal"),
    ("dot", "gelu", "two", "pre", "learned"),
    ("dot", "silu", "three", "pre", "sinusoidal"),
    ("gaussian", "relu", "two", "pre", "sinusoidal"),
    ("gaussian", "gelu", "three", "post", "learned"),
    ("gaussian", "silu", "none", "post", "learned"),
    ("additive", "relu", "three", "pre", "learned"),
    ("additive", "gelu", "none", "pre", "sinusoidal"),
    ("additive", "silu", "two", "post", "sinusoidal"),
    ("dot", "gated_gelu", "embeddings", "pre", "relative"),
    ("gaussian", "gated_silu", "three", "post", "relative"),
]
OF_T5 = {"gated_gelu", "gated_silu", "embeddings", "relative"}
NAMES = ("score", "activation", "tie", "norm", "positions")

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")  # torch's own


class EncoderAndFullPass(nn.Module):
    """What the graphs `encoder` and `full` compute, as one module with their inputs and outputs."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_length: Tensor, target: Tensor) -> dict[str, Tensor]:
        mask = (torch.arange(source.shape[1]) < source_length[:, None])[:, None, None, :]
        weights = AttentionWeights()
        cache = self.model.start(self.model.encode(source, mask, weights), mask)
        outputs = {f"cross_key_{i}": layer.cross_k for i, layer in enumerate(cache.layers)}
        outputs |= {f"cross_value_{i}": layer.cross_v for i, layer in enumerate(cache.layers)}
        outputs["logprobs"] = self.model.decode(target, cache, weights).log_softmax(-1)
        for name in ("encoder", "decoder", "cross"):
            outputs[f"{name}_attention"] = torch.stack(getattr(weights, name), 1)
        return outputs


@functools.cache
def exported(choices: tuple[str, ...]) -> tuple[Transformer, dict[str, Array]]:
    """A model, and the outputs of torch's export of it."""
    chosen: dict[str, Any] = dict(zip(NAMES, choices, strict=True))
    if chosen["positions"] == "relative":
        chosen |= {"norm_kind": "rms", "head_size": 16, "relative_buckets": 8, "relative_distance": 6}
    if chosen["tie"] in ("three", "embeddings"):
        chosen |= {"shared_vocab": True, "source_vocab": 11}
    model = with_random_biases(make_model(encoder_layers=1, decoder_layers=1, **chosen))
    return model, by_torch(model)


def feeds() -> dict[str, Array]:
    source, source_length = sources(LENGTHS)
    return {"source": source, "source_length": source_length, "target": targets(len(LENGTHS), TARGET_LENGTH)}


def run(graph: onnx.ModelProto) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [value.name for value in session.get_inputs()]
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {k: v for k, v in feeds().items() if k in wanted}), strict=True))


def by_torch(model: Transformer) -> dict[str, Array]:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that are not installed
    module = EncoderAndFullPass(model).eval()
    inputs = {name: torch.from_numpy(value) for name, value in feeds().items()}
    program = torch.export.export(module, (), inputs, strict=False)
    names = list(module(**inputs))
    exported = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, output_names=names)
    assert exported is not None
    return run(exported.model_proto)


def by_hand(model: Transformer, weights: dict[str, Array]) -> dict[str, Array]:
    graphs = [build_graph(name, model.config, weights) for name in ("encoder", "full")]
    return run(graphs[0]) | run(graphs[1])


def differing(found: dict[str, Array], wanted: dict[str, Array]) -> dict[str, float]:
    """Outputs that differ by more than rounding, with their largest distance; padded source positions do not count."""
    is_token = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]  # (B, S)
    distances = {}
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        distance = np.abs(found[name] - value)
        if name == "encoder_attention":  # (B, L, H, S, S)
            distance = np.where(is_token[:, None, None, :, None], distance, 0)
        elif name.startswith(("cross_key", "cross_value")):  # (B, H, S, d)
            distance = np.where(is_token[:, None, :, None], distance, 0)
        distances[name] = float(distance.max())
    return {name: distance for name, distance in distances.items() if not distance <= 1e-5}


def test_every_choice_and_every_pair_of_choices_is_exported() -> None:
    for a, first in enumerate(NAMES):
        for b, second in enumerate(NAMES[:a]):
            pairs = {(x, y) for x in CHOICES[first] for y in CHOICES[second] if not {x, y} & {"auto", *OF_T5}}
            assert pairs <= {(choices[a], choices[b]) for choices in MODELS}
    assert {choice for choices in MODELS for choice in choices} >= OF_T5


@pytest.mark.parametrize("choices", MODELS, ids=" ".join)
def test_a_graph_written_by_hand_computes_what_torchs_own_export_does(choices: tuple[str, ...]) -> None:
    model, wanted = exported(choices)
    sizes = sizes_of(model.config)
    assert set(wanted) == {value.name for graph in ("encoder", "full") for value in signature.outputs(graph, sizes)}
    assert not differing(by_hand(model, arrays_of(model)), wanted), (
        "export/graphs/parts.py does not compute what model/ does. Whoever changes a layer of the model changes it "
        "there too (docs/decisions/010-graphs-by-hand.md)."
    )


def test_a_graph_that_forgets_one_bias_is_told_from_torchs_export() -> None:
    model, wanted = exported(MODELS[0])
    name = "decoder.0.cross_attention.project_out.bias"
    arrays = arrays_of(model)
    arrays |= {name: np.zeros_like(arrays[name])}
    assert set(differing(by_hand(model, arrays), wanted)) == {"logprobs"}
