"""Values inside the full graph: those that formulas give, torch's residual stream, and torch's model without a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attendant.export.bundle import Bundle
from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.model.transformer import Residual, Transformer, sinusoids
from attendant.service.engine.explain import full_graph
from attendant.service.engine.explain.anchors import UnknownGraphError
from attendant.service.engine.explain.counts import count_included
from attendant.service.engine.explain.full_graph import FullGraph, GraphFiles
from attendant.service.engine.explain.look import Look
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import (
    ATTENTION_KINDS,
    INCLUDED,
    Ablation,
    AlignmentChoice,
    AttentionChoice,
    Explain,
    Explained,
    Generate,
    Generated,
    IncludedValues,
    Options,
    Score,
    Scored,
)
from attendant.service.errors import CancelledError, InvalidFieldError, NotFoundError
from tests.support.engines import make_bundle, make_engine
from tests.support.small_models import T5, make_model, with_random_biases

SOURCE, TARGET = (4, 9, 6, 12, 5), (7, 4, 10)
READ = (BOS, *TARGET)
SPECIAL = SpecialIds(PAD, BOS, EOS)
EVERYTHING = AttentionChoice(kinds=ATTENTION_KINDS)
OPTIONS: list[dict[str, Any]] = [
    {}, {"norm": "pre", "score": "additive", "positions": "learned", "activation": "gelu"},
    {"norm": "pre", "score": "gaussian", "activation": "silu", "embedding_norm": True, "encoder_layers": 1},
    {"score": "gaussian", "final_norm": True, "bias": False, "scale_embeddings": False, "decoder_layers": 1},
    {"source_end": False, "output_bias": True, "tie": "none", "d_model": 32, "heads": 4, "norm": "pre"},
    T5, T5 | {"activation": "gated_silu", "norm": "post", "final_norm": True, "score": "gaussian"},
    T5 | {"score": "additive", "encoder_layers": 1},
]  # fmt: skip
STACKS = {"encoder": ("self", "feed"), "decoder": ("self", "cross", "feed")}


@pytest.fixture(scope="module", params=OPTIONS, ids=str)
def model(request: pytest.FixtureRequest) -> Transformer:
    return with_random_biases(make_model(seed=5, **request.param))


@pytest.fixture(scope="module")
def graph(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> FullGraph:
    bundle = make_bundle(model, tmp_path_factory.mktemp("inside") / "small", ("fp32",))
    return FullGraph(GraphFiles(bundle, "fp32"), 1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=5), tmp_path_factory.mktemp("looked") / "small", ("fp32",))


def explain(**changes: Any) -> Explain:
    aligned = AlignmentChoice(layer=0, heads=(0,))
    task = Explain(
        search=Score(source=SOURCE, target=TARGET, top_logprobs=3, record=True),
        attention=EVERYTHING, alignment=aligned, alignable=(0, 1), max_values=10**6,
    )  # fmt: skip
    return replace(task, **changes)


def look(graph: FullGraph, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's outputs, and the fields that are answered of them."""
    looked = Look(graph, explain(**changes), SPECIAL, lambda: True)
    outputs = looked.run(READ)
    return outputs, looked.collect(outputs, TARGET, len(READ))


def by_name(found: tuple[IncludedValues, ...]) -> dict[tuple[str, str], Any]:
    return {(each.name, each.of): each.values for each in found}


def score_of(model: Transformer, kind: str, layer: int, q: Any, k: Any) -> Any:
    """(H, T, d), (H, S, d) -> (H, T, S), by the formulas of docs/training.md"""
    if model.config.score == "additive":
        stack = model.encoder if kind == "encoder" else model.decoder
        attention: Any = stack[layer].cross_attention if kind == "cross" else stack[layer].self_attention  # type: ignore[union-attr]
        v = attention.additive.detach().numpy()
        return (np.tanh(q[:, :, None] + k[:, None]) * v[:, None, None]).sum(-1)
    if model.config.score == "gaussian":
        return -np.square(q[:, :, None] - k[:, None]).sum(-1) / 2 / np.sqrt(q.shape[-1])
    return q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])


def bias_of(model: Any, kind: str, queries: int, keys: int) -> Any:
    """(H, T, S): torch's, in self-attention alone"""
    if model.encoder_bias is None or kind == "cross":
        return np.zeros((1, queries, keys))
    return getattr(model, f"{kind}_bias")(keys).detach().numpy()[:, -queries:]


def test_queries_keys_and_values_give_scores_weights_and_sums(model: Transformer, graph: FullGraph) -> None:
    outputs, found = look(graph, include=("qkv", "scores", "sums"))
    values = by_name(found["included"])
    for kind in ATTENTION_KINDS:
        for layer, weights in enumerate(outputs[kind]):
            q, k, v, scores, sums = (values[name, kind][layer] for name in ("query", "key", "value", "scores", "sums"))
            expected = score_of(model, kind, layer, q, k) + bias_of(model, kind, len(q[0]), len(k[0]))
            assert np.abs(expected - scores).max() < 1e-4
            masked = np.where(weights > 0, scores, -np.inf)
            exps = np.exp(masked - masked.max(axis=-1, keepdims=True))
            assert np.abs(exps / exps.sum(axis=-1, keepdims=True) - weights).max() < 1e-4
            assert np.abs(weights @ v - sums).max() < 1e-4


def test_the_vector_of_an_additive_score_is_torchs(model: Transformer, graph: FullGraph) -> None:
    _, found = look(graph, include=("qkv",), attention=AttentionChoice(kinds=ATTENTION_KINDS, layers=(0,), heads=(1,)))
    values = by_name(found["included"])
    for kind in ATTENTION_KINDS:
        if model.config.score != "additive":
            assert ("vector", kind) not in values
            continue
        assert np.array_equal(values["vector", kind], attention_of(model, kind, 0).additive[None, 1:2].detach().numpy())


def test_what_the_heads_project_adds_up_to_what_their_sublayer_adds(model: Transformer, graph: FullGraph) -> None:
    _, found = look(graph, include=("projected", "sums", "residual"))
    values = by_name(found["included"])
    for kind in ATTENTION_KINDS:
        place = {"encoder": 0, "decoder": 0, "cross": 1}[kind]
        every = 2 if kind == "encoder" else 3
        output = values["output", "encoder" if kind == "encoder" else "decoder"][place::every]
        for layer, projected in enumerate(values["projected", kind]):
            linear = attention_of(model, kind, layer).project_out
            bias = 0 if linear.bias is None else linear.bias.detach().numpy()
            assert np.abs(projected.sum(0) + bias - output[layer]).max() < 1e-4
            rows = linear.weight.detach().numpy()[:, : model.config.head].T  # of the first head
            assert np.abs(values["sums", kind][layer][0] @ rows - projected[0]).max() < 1e-4


def test_the_bias_over_distances_is_torchs(model: Transformer, graph: FullGraph) -> None:
    _, found = look(graph, include=("bias",))
    if model.config.positions != "relative":
        assert found["included"] == ()
        return
    for stack, each in zip(STACKS, found["included"], strict=True):
        distances = torch.tensor([int(place) for place in each.places])
        assert (each.name, each.of, each.axes) == ("bias", stack, ("heads", "distances"))
        assert distances.tolist() == list(range(-6, 7 if stack == "encoder" else 1))
        table: Any = getattr(model, f"{stack}_bias")
        assert np.array_equal(each.values, table.of_distances(distances).detach().numpy())
        beyond = table.of_distances(distances[:1] - 9).detach().numpy()
        assert np.array_equal(each.values[:, :1], beyond)  # the last stands for all beyond


def test_distances_are_answered_up_to_a_bound(tmp_path: Path) -> None:
    model = make_model(seed=5, **T5 | {"relative_distance": 300})
    _, found = look(
        FullGraph(GraphFiles(make_bundle(model, tmp_path / "far", ("fp32",)), "fp32"), 1), include=("bias",)
    )
    places = [each.places for each in found["included"]]
    assert [(each[0], each[-1], len(each)) for each in places] == [("-128", "128", 257), ("-128", "0", 129)]
    torchs: Any = model.decoder_bias
    assert np.array_equal(found["included"][1].values, torchs.of_distances(torch.arange(-128, 1)).detach().numpy())


def test_the_stream_is_torchs_after_each_sublayer(model: Transformer, graph: FullGraph) -> None:
    seen: dict[str, list[Any]] = {"encoder": [], "decoder": []}
    hooks = [
        module.register_forward_hook(lambda _, __, out, seen=seen[stack]: seen.append(out[0].numpy()))
        for stack in seen
        for module in getattr(model, stack).modules()
        if isinstance(module, Residual)
    ]
    with torch.no_grad():
        model(torch.tensor([[*SOURCE, EOS]]), torch.tensor([READ]))
    for hook in hooks:
        hook.remove()
    _, found = look(graph, include=("residual",))
    values = by_name(found["included"])
    for stack, kinds in STACKS.items():
        stream, output = values["stream", stack], values["output", stack]
        assert len(stream) == len(seen[stack]) + 1 == len(kinds) * len(getattr(model, stack)) + 1
        assert max(np.abs(mine - torchs).max() for mine, torchs in zip(stream[1:], seen[stack], strict=True)) < 1e-4
        if model.config.norm == "pre":
            assert np.abs(stream[:-1] + output - stream[1:]).max() < 1e-4


def test_embeddings_are_torchs(model: Transformer, graph: FullGraph) -> None:
    _, found = look(graph, include=("embeddings", "positions"))
    values = by_name(found["included"])
    for side, ids in (("source", (*SOURCE, EOS)), ("target", READ)):
        embedding: Any = getattr(model, f"{side}_embedding")
        if embedding.positions is None:
            assert values == {}
            continue
        tokens = embedding.tokens.weight[list(ids)].detach().numpy() * embedding.scale
        table = embedding.positions.detach().numpy()
        assert np.abs(values["tokens", side] - tokens).max() < 1e-5
        assert np.abs(values["positions", side] - table[: len(ids)]).max() < 1e-6
        assert np.abs(values["position_table", side] - table[:128]).max() < 1e-6


def test_the_structure_is_the_models(model: Transformer, graph: FullGraph) -> None:
    config = model.config
    _, found = look(graph, include=("structure",))
    assert found["structure"] == {
        "norm": config.norm, "norm_kind": config.norm_kind, "activation": config.activation, "score": config.score,
        "positions": config.positions,
        "added_positions": [] if config.positions == "relative" else ["source", "target"],
    }  # fmt: skip


def test_sinusoids_in_another_order_are_told_from_learned_positions(tmp_path: Path) -> None:
    for order, expected in ((np.r_[0:16:2, 1:16:2], "sinusoidal"), (np.arange(16), "learned")):
        model: Any = make_model(seed=5, positions="learned")
        with torch.no_grad():
            if expected == "sinusoidal":  # as Marian has them: sines, then cosines
                model.source_embedding.positions.copy_(sinusoids(64, 16)[:, order])
        bundle = make_bundle(model, tmp_path / expected, ("fp32",))
        _, found = look(FullGraph(GraphFiles(bundle, "fp32"), 1), include=("structure",))
        assert found["structure"]["positions"] == expected


def attention_of(model: Any, kind: str, layer: int) -> Any:
    stack = model.encoder if kind == "encoder" else model.decoder
    return stack[layer].cross_attention if kind == "cross" else stack[layer].self_attention


def silence(linear: nn.Linear, rows: slice = slice(None)) -> None:
    with torch.no_grad():
        linear.weight[rows] = 0
        if linear.bias is not None:
            linear.bias[rows] = 0


def without_head(model: Any) -> None:
    width, head = model.config.inner, model.config.head
    silence(attention_of(model, "cross", 0).project_in, slice(2 * width + head, 2 * width + 2 * head))  # its values


def without_feed_forward(model: Any) -> None:
    silence(model.encoder[0].feed_forward.narrow)


def without_cross_attention(model: Any) -> None:
    silence(attention_of(model, "cross", 0).project_out)


def without_residual(model: Any) -> None:
    residual: Residual = model.encoder[0].self_residual

    def forward(x: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return f(residual.norm(x)) if residual.pre else residual.norm(f(x))

    residual.forward = forward  # type: ignore[method-assign]


def without_positions(model: Any) -> None:
    with torch.no_grad():
        model.source_embedding.positions.zero_()


ABLATIONS: list[tuple[Ablation, Callable[[Any], None]]] = [
    (Ablation(heads=(("cross", 0, 1),)), without_head),
    (Ablation(sublayers=(("encoder_feed_forward", 0),)), without_feed_forward),
    (Ablation(sublayers=(("cross", 0),)), without_cross_attention),
    (Ablation(residuals=(("encoder", 0),)), without_residual),
    (Ablation(positions=("source",)), without_positions),
]


@pytest.mark.parametrize(("ablation", "change"), ABLATIONS, ids=[change.__name__ for _, change in ABLATIONS])
def test_an_ablated_model_is_torchs_without_that_part(
    model: Transformer, graph: FullGraph, ablation: Ablation, change: Callable[[Any], None]
) -> None:
    if ablation.positions and model.config.positions == "relative":
        with pytest.raises(InvalidFieldError, match="adds no positions"):
            look(graph, ablation=ablation)
        return
    changed = Transformer(model.config).eval()
    changed.load_state_dict(model.state_dict())
    change(changed)
    with torch.no_grad():
        expected, whole = (
            each(torch.tensor([[*SOURCE, EOS]]), torch.tensor([READ]))[0].log_softmax(-1).numpy()
            for each in (changed, model)
        )
    outputs, _ = look(graph, ablation=ablation)
    assert np.abs(outputs["logprobs"][0] - expected).max() < 1e-4
    assert np.abs(whole - expected).max() > 1e-3  # the part did something


def test_a_graph_whose_parts_are_all_on_computes_the_bits_of_the_plain_one(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> Any:
        raise UnknownGraphError("it has no softmax")

    inside = FullGraph(GraphFiles(bundle, "fp32"), 1)
    monkeypatch.setattr(full_graph, "open_inside", unknown)
    plain = FullGraph(GraphFiles(bundle, "fp32"), 1)
    runs = [each.run((*SOURCE, EOS), READ, PAD, None, ["logprobs"]) for each in (inside, plain)]
    assert all(np.array_equal(runs[0][name], runs[1][name]) for name in runs[1])
    with pytest.raises(NotFoundError, match="export the model again"):
        look(plain, include=("qkv",))
    with pytest.raises(NotFoundError, match="export the model again"):
        look(plain, ablation=Ablation(positions=("source",)))


def test_a_model_without_no_part_answers_as_it_is_served(bundle: Bundle) -> None:
    engine = make_engine(bundle)
    search = Generate(source=SOURCE, options=Options(max_length=12), record=True, top_logprobs=3)
    (found,) = engine.run([explain(search=search, ablation=Ablation())])
    assert isinstance(found, Explained)
    assert isinstance(found.found, Generated)
    assert found.ablated is not None
    best = found.found.hypotheses[0]
    assert found.ablated.ids == best.ids
    assert found.ablated.finish_reason == best.finish_reason
    assert np.allclose(found.ablated.logprobs, best.logprobs, atol=1e-4)
    assert np.allclose(found.ablated.own_logprobs, best.logprobs, atol=1e-4)
    assert np.allclose(found.ablated.entropies, best.entropies, atol=1e-4)
    assert [[token for token, _ in top] for top in found.ablated.top_logprobs] == [
        [token for token, _ in top] for top in best.top_logprobs
    ]


def test_what_is_served_is_not_changed_by_an_ablation(bundle: Bundle) -> None:
    engine = make_engine(bundle)
    off = Ablation(heads=tuple(("cross", layer, head) for layer in range(2) for head in range(2)))
    scored, changed = (engine.run([explain(ablation=ablation)])[0] for ablation in (None, off))
    assert isinstance(scored, Explained) and isinstance(changed, Explained) and changed.ablated  # noqa: PT018
    assert isinstance(scored.found, Scored) and isinstance(changed.found, Scored)  # noqa: PT018
    assert scored.found.logprobs == changed.found.logprobs
    assert max(abs(a - b) for a, b in zip(changed.ablated.logprobs, scored.found.logprobs, strict=True)) > 1e-3


def test_an_ablated_decoding_that_nobody_waits_for_stops(bundle: Bundle) -> None:
    graph = FullGraph(GraphFiles(bundle, "fp32"), 1)
    answers = iter([True, True, False])
    looked = Look(graph, explain(ablation=Ablation(sublayers=(("cross", 1),))), SPECIAL, lambda: next(answers, False))
    with pytest.raises(CancelledError):
        looked.collect(looked.run(READ), TARGET, len(READ))


def test_the_count_of_included_values_is_that_of_what_is_answered(tmp_path: Path) -> None:
    bundle = make_bundle(make_model(seed=5, score="additive"), tmp_path / "additive", ("fp32",))
    graph = FullGraph(GraphFiles(bundle, "fp32"), 1)
    names = tuple(name for name in INCLUDED if name not in ("neighbours", "plane", "positions", "bias"))
    for choice in (EVERYTHING, AttentionChoice(kinds=("cross", "decoder"), layers=(1,), heads=(0,))):
        _, found = look(graph, include=names, attention=choice)
        counted = count_included(names, choice, bundle.sizes, len(SOURCE) + 1, len(READ), len(READ))
        assert counted == sum(each.values.size for each in found["included"])


def test_more_included_values_than_the_limit_are_refused(bundle: Bundle) -> None:
    with pytest.raises(InvalidFieldError, match="at most 1,000"):
        raise next(
            each
            for each in make_engine(bundle).run([explain(include=("residual",), max_values=1000)])
            if isinstance(each, Exception)
        )


def test_neighbours_and_the_plane_are_those_of_the_table(bundle: Bundle, tmp_path: Path) -> None:
    model: Any = make_model(seed=5)
    for variant, tolerance in (("fp32", 1e-5), ("int8", 0.02)):
        files = GraphFiles(make_bundle(model, tmp_path / variant, (variant,)), variant)
        _, found = look(FullGraph(files, 1), include=("neighbours", "plane"))
        table = model.target_embedding.tokens.weight.detach().numpy()
        unit = table / np.linalg.norm(table, axis=1, keepdims=True)
        _, target = found["neighbours"]
        assert target.ids == tuple(sorted({*TARGET, EOS}))
        for token, nearest in zip(target.ids, target.nearest, strict=True):
            cosines = unit @ unit[token]
            assert token not in [other for other, _ in nearest]
            assert np.allclose(
                [cosine for _, cosine in nearest], np.sort(np.delete(cosines, token))[::-1][:8], atol=tolerance
            )
            assert np.allclose(
                [cosines[other] for other, _ in nearest], [cosine for _, cosine in nearest], atol=tolerance
            )
        plane = found["plane"]
        assert plane.ids == tuple(each for each in range(11) if each != PAD)
        variances = np.linalg.svd(unit[1:] - unit[1:].mean(0))[1] ** 2
        assert abs(plane.share - variances[:2].sum() / variances.sum()) < tolerance


def test_a_bundle_of_int8_alone_answers_all_but_projections(tmp_path: Path) -> None:
    bundle = make_bundle(make_model(seed=5, **T5), tmp_path / "int8", ("int8",))
    _, found = look(FullGraph(GraphFiles(bundle, "int8"), 1), include=("sums", "projected", "bias", "structure"))
    assert {name for name, _ in by_name(found["included"])} == {"sums", "bias"}
    assert found["structure"]["activation"] == "gated_gelu"
