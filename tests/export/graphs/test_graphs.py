"""The ONNX graphs against the torch model, over the grid of the model's choices and over lengths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from attendant.export import signature
from attendant.export.graphs.graphs import build_graph, sizes_of
from attendant.export.graphs.kernels import has_kernels
from attendant.export.graphs.variants import build_variant_graph
from attendant.export.graphs.weights import arrays_of
from attendant.model.config import CHOICES
from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.model.transformer import AttentionWeights, Transformer
from tests.support.small_models import FOREIGN, make_foreign_model, make_model, with_random_biases

NAMES = ("score", "positions", "norm")
GRID = list(itertools.product(*(CHOICES[name] for name in NAMES), ("relu", "gated_gelu")))
SHAPES: list[dict[str, Any]] = [
    *({"activation": activation} for activation in CHOICES["activation"]),
    {"norm_kind": "rms", "embedding_norm": True},
    {"head_size": 24, "positions": "relative"},
    {"bias": False},
    {"bias": False, "norm": "pre"},
    {"heads": 1},
    {"heads": 8, "encoder_layers": 1},
    {"decoder_layers": 3},
    {"tie": "none"},
    {"shared_vocab": True, "source_vocab": 11},
]


def session(model: Transformer, graph: str, variant: str = "fp32") -> ort.InferenceSession:
    proto = build_variant_graph(variant, graph, model.config, arrays_of(model))
    onnx.checker.check_model(proto, full_check=True)
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def sources(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = np.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[: length - 1], row[length - 1] = rng.integers(4, 11, length - 1), EOS
    return ids, np.array(lengths)


def targets(count: int, length: int) -> np.ndarray:
    ids = np.random.default_rng(1).integers(4, 11, (count, length))
    ids[:, 0] = BOS
    return ids


@torch.inference_mode()
def expected(model: Transformer, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, AttentionWeights]:
    weights = AttentionWeights()
    logits = model(torch.from_numpy(source), torch.from_numpy(target), weights)
    return logits.log_softmax(-1).numpy(), weights


def check_full(model: Transformer, lengths: list[int], target_length: int, run: ort.InferenceSession) -> None:
    source, source_length = sources(lengths)
    target = targets(len(lengths), target_length)
    found = run.run(None, {"source": source, "source_length": source_length, "target": target})
    logprobs, weights = expected(model, source, target)
    np.testing.assert_allclose(found[0], logprobs, atol=1e-4)
    for row, length in enumerate(lengths):
        wanted = torch.stack(weights.encoder, 1)[row, ..., :length, :].numpy()
        np.testing.assert_allclose(found[1][row, ..., :length, :], wanted, atol=1e-5)
    np.testing.assert_allclose(found[2], torch.stack(weights.decoder, 1).numpy(), atol=1e-5)
    np.testing.assert_allclose(found[3], torch.stack(weights.cross, 1).numpy(), atol=1e-5)


def decode(
    model: Transformer,
    encoder: ort.InferenceSession,
    step: ort.InferenceSession,
    lengths: list[int],
    target: np.ndarray,
    request: np.ndarray,
) -> np.ndarray:
    """Log-probabilities of every target position, token by token; rows start late, each by its own number of steps."""
    source, source_length = sources(lengths)
    sizes, by_source = sizes_of(model.config), "source_row" in [value.name for value in step.get_inputs()]
    names = [value.name for value in signature.outputs("encoder", sizes)]
    cross = dict(zip(names, encoder.run(None, {"source": source, "source_length": source_length}), strict=True))
    rows, length = target.shape
    delays = np.arange(rows) % 3
    cache = {
        value.name: np.full(
            (rows, sizes.heads, length + 3, sizes.head), 1e30, np.float32
        )  # what is not cached must not matter
        for value in signature.inputs("step", sizes)
        if value.name.startswith("self_")
    }
    found = np.zeros((rows, length, sizes.target_vocab), np.float32)
    for clock in range(length + int(delays.max())):
        position = clock - delays
        live = np.flatnonzero((position >= 0) & (position < length))
        at = position[live]
        past = int(at.max()) + 2
        feeds = {"token": target[live, at], "position": at, "top": np.array([3])}
        of_source = {"source_length": source_length} | cross
        if by_source:
            feeds |= of_source | {"source_row": request[live], "whole": np.ones(len(live), np.int64)}
        else:
            feeds |= {name: value[request[live]] for name, value in of_source.items()}
        feeds |= {name: value[live, :, :past] for name, value in cache.items()}
        outputs = dict(zip([o.name for o in step.get_outputs()], step.run(None, feeds), strict=True))
        found[live, at] = outputs["logprobs"]
        for layer, side in itertools.product(range(sizes.decoder_layers), ("key", "value")):
            cache[f"self_{side}_{layer}"][live, :, :past] = outputs[f"present_{side}_{layer}"]
        best = np.argsort(-outputs["logprobs"], axis=1, kind="stable")[:, :3]
        assert (outputs["top_ids"] == best).all()
        assert (outputs["top_logprobs"] == np.take_along_axis(outputs["logprobs"], best, 1)).all()
    return found


@pytest.mark.parametrize(("score", "positions", "norm", "activation"), GRID)
def test_every_choice_exports(score: str, positions: str, norm: str, activation: str) -> None:
    check_choice(score=score, positions=positions, norm=norm, activation=activation)


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_every_shape_exports(changes: dict[str, Any]) -> None:
    check_choice(**changes)


@pytest.mark.parametrize("changes", FOREIGN, ids=str)
def test_what_models_from_elsewhere_have_exports(changes: dict[str, Any]) -> None:
    check_model(make_foreign_model(**changes))


def check_choice(**changes: Any) -> None:
    check_model(with_random_biases(make_model(**changes)))


def check_model(model: Transformer) -> None:
    check_full(model, [4, 7, 1], 5, session(model, "full"))
    request = np.array([0, 1, 1, 2, 2])
    target = targets(5, 6)
    logprobs, _ = expected(model, sources([4, 7, 1])[0][request], target)
    for kind in ("", "kernel_") if has_kernels(model.config) else ("",):
        encoder, step = session(model, f"{kind}encoder"), session(model, f"{kind}step")
        found = decode(model, encoder, step, [4, 7, 1], target, request)
        np.testing.assert_allclose(found, logprobs, atol=1e-4)


@pytest.mark.parametrize(("lengths", "target_length"), [([1], 1), ([64], 64), ([1, 64, 33], 1), ([3] * 17, 31)])
def test_no_length_is_frozen(lengths: list[int], target_length: int) -> None:
    model = make_model()
    check_full(model, lengths, target_length, session(model, "full"))


@pytest.mark.parametrize("kind", ["", "kernel_"])
def test_the_longest_source_may_be_padded_to_the_next_width(kind: str) -> None:
    """max_length is no multiple of the widths that give the same bits in every batch."""
    model = make_model(max_length=30)
    encoder = session(model, f"{kind}encoder")
    source, source_length = sources([30, 3])
    wide = np.pad(source, [(0, 0), (0, signature.padded_width(30) - 30)], constant_values=PAD)
    exact = encoder.run(None, {"source": source, "source_length": source_length})
    for mine, theirs in zip(encoder.run(None, {"source": wide, "source_length": source_length}), exact, strict=True):
        np.testing.assert_allclose(mine[0, :, :30], theirs[0], atol=1e-5)
        np.testing.assert_allclose(mine[1, :, :3], theirs[1, :, :3], atol=1e-5)


@pytest.mark.parametrize("score", CHOICES["score"])
def test_the_reference_evaluator_of_onnx_gives_the_same_values(score: str) -> None:
    model = make_model(score=score)
    source, source_length = sources([4, 7, 1])
    feeds = {"source": source, "source_length": source_length, "target": targets(3, 5)}
    found = session(model, "full").run(None, feeds)
    reference = ReferenceEvaluator(build_graph("full", model.config, arrays_of(model))).run(None, feeds)
    for mine, theirs in zip(found, reference, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("graph", ["step", "kernel_step"])
@pytest.mark.parametrize(("past", "positions"), [(0, [0]), (3, [3]), (3, [0, 5])])
def test_a_step_whose_past_has_no_slot_for_the_new_token_fails(graph: str, past: int, positions: list[int]) -> None:
    model = make_model()
    sizes, rows, run = sizes_of(model.config), len(positions), session(model, graph)
    feeds = {"token": np.full(rows, 4), "position": np.array(positions), "top": np.array([1])}
    feeds["source_length"] = np.full(rows, 4)
    if graph == "kernel_step":
        feeds |= {"source_row": np.arange(rows), "whole": np.ones(rows, np.int64)}
    for value in signature.inputs(graph, sizes):
        if value.kind == "cache":
            slots = 4 if value.name.startswith("cross_") else past
            feeds[value.name] = np.ones((rows, sizes.heads, slots, sizes.head), np.float32)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=r"out of|must be positive"):
        run.run(["logprobs"], feeds)


@pytest.mark.parametrize("variant", ["fp32", "int8"])
@pytest.mark.parametrize("graph", signature.GRAPHS)
def test_a_graph_has_the_inputs_outputs_and_axes_of_the_table(graph: str, variant: str) -> None:
    model = make_model(decoder_layers=3)
    sizes, run = sizes_of(model.config), session(model, graph, variant)
    for wanted, found in ((signature.inputs, run.get_inputs()), (signature.outputs, run.get_outputs())):
        values = wanted(graph, sizes, variant == "int8")
        assert [value.name for value in found] == [value.name for value in values]
        assert [tuple(value.shape) for value in found] == [value.shape(sizes) for value in values]
