"""int8 holds for a trained model that has a few features far larger than the others."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.convert import write_graphs
from attendant.export.precisions import PRECISIONS
from attendant.export.runner import GraphStepper, Runner
from attendant.model.checkpoint import TrainedModel, load_trained
from attendant.model.corpus.pairs import read_pairs
from attendant.model.search.decode import decode_all, decode_sources
from attendant.model.transformer import Transformer

DEFAULT = Path(__file__).parents[3] / "model" / "default"
CHANNELS, FACTOR = [1, 40, 77, 200], 30.0


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return load_trained(DEFAULT)


def stretched(model: Transformer, inside: bool) -> Transformer:
    """The same function, with some channels before a product 30 times larger, and its weights 30 times smaller."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for layer in [*model.encoder, *model.decoder]:
            feed = layer.feed_forward
            pairs = [(feed.widen, feed.narrow)] if inside else [(layer.feed_residual.norm, feed.widen)]
            if not inside:
                pairs.append((layer.self_residual.norm, layer.self_attention.project_in))
            for before, product in pairs:
                before.weight[CHANNELS] *= FACTOR
                before.bias[CHANNELS] *= FACTOR
                product.weight[:, CHANNELS] /= FACTOR
    return model


@pytest.mark.parametrize("inside", [False, True], ids=["norms", "feed-forward"])
def test_channels_30_times_larger_than_the_others_leave_the_answers(
    inside: bool, trained: TrainedModel, tmp_path: Path
) -> None:
    words = list(dict.fromkeys(source for source, _ in read_pairs(DEFAULT / "samples.tsv")))[::16]
    sources, model = trained.source.encode_batch(words), stretched(trained.model, inside)
    expected = decode_all(trained.model, sources)
    assert decode_all(model, sources) == expected
    write_graphs("int8", model.config, arrays_of(model), tmp_path / "int8")
    graphs = {name: tmp_path / "int8" / f"{name}.onnx" for name in graphs_of("int8", model.config)}
    found = decode_sources(GraphStepper(Runner(graphs, sizes_of(model.config))), sources)
    differing = sum(mine != theirs for mine, theirs in zip(found, expected, strict=True))
    assert differing <= PRECISIONS["int8"].differing * len(words)
