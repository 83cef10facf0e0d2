"""What a comparison holds is bounded by the weights, whatever the positions; beyond, windows reach the limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.convert import describe_variants, write_graphs
from attendant.export.runner import PLAIN, Runner, ways_to_run
from attendant.export.signature import Sizes
from attendant.export.verify.compare import check_int8_values, check_values
from attendant.export.verify.double import Double
from attendant.export.verify.extent import LEAST_ROOM, WALK, WINDOW, extent_of, weight_bytes
from attendant.export.verify.inputs import grid
from attendant.model.transformer import Transformer
from tests.support.small_models import make_model

BART_LARGE = Sizes(
    source_vocab=50265,
    target_vocab=50265,
    d_model=1024,
    d_ff=4096,
    heads=16,
    encoder_layers=12,
    decoder_layers=12,
    max_length=1024,
)
ARGOS = replace(BART_LARGE, source_vocab=32000, target_vocab=32000, d_model=512, d_ff=2048, heads=8, max_length=5000)
SMALL = replace(ARGOS, source_vocab=4000, target_vocab=4000, d_model=128, d_ff=512, max_length=1024)


@pytest.mark.parametrize("sizes", [BART_LARGE, ARGOS, SMALL])
def test_what_a_whole_pass_holds_is_bounded_by_the_weights(sizes: Sizes) -> None:
    room = max(LEAST_ROOM, weight_bytes(sizes))
    longest = max(max(point.source.shape[1], point.target.shape[1]) for point in grid(sizes))
    layers = sizes.encoder_layers + 2 * sizes.decoder_layers
    assert 4 * layers * sizes.heads * longest**2 + 4 * sizes.target_vocab * longest < room / 2
    assert extent_of(sizes).windows[-1] == sizes.max_length - WINDOW
    assert "of 1024 tokens" in " ".join(extent_of(SMALL).left_out(1024))


def test_a_model_of_few_positions_is_compared_whole() -> None:
    found = extent_of(replace(SMALL, max_length=WALK))
    assert (found.maps, found.whole, found.source, found.windows) == (WALK, WALK, WALK, ())
    assert found.left_out(WALK) == []


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(max_length=WALK + 40, seed=3)


@pytest.fixture(scope="module")
def graphs(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    directory = tmp_path_factory.mktemp("graphs")
    for variant in ("fp32", "int8"):
        write_graphs(variant, model.config, arrays_of(model), directory / variant)
    described = describe_variants(("fp32", "int8"), model.config)
    return {
        variant: {graph: directory / path for graph, path in values["graphs"].items()}
        for variant, values in described.items()
    }


def moved(model: Transformer, position: int) -> Transformer:
    """The same with one target position moved: what only a window beyond WALK can see."""
    other = make_model(max_length=WALK + 40, seed=3)
    with torch.no_grad():
        other.target_embedding.positions[position:] += 0.5
    return other


@pytest.mark.parametrize("way", ["plain", "definitions", "kernels"])
def test_windows_find_what_differs_at_the_last_positions(
    way: str, model: Transformer, graphs: dict[str, dict[str, Path]]
) -> None:
    if way not in ways_to_run(graphs["fp32"]):
        pytest.skip("the compiled operators are not here")
    runner = Runner(graphs["fp32"], sizes_of(model.config), way)
    assert list(check_values(runner, model, 1e-4)) == []
    found = list(check_values(runner, moved(model, WALK + 34), 1e-4))
    assert any(problem.startswith(f"logprobs of tokens {WALK + 34} to {WALK + 39}") for problem in found)
    assert all("of tokens" in problem or way == PLAIN for problem in found)


@pytest.mark.parametrize("way", ["plain", "definitions"])
def test_windows_follow_the_levels_of_int8(way: str, model: Transformer, graphs: dict[str, dict[str, Path]]) -> None:
    runner = Runner(graphs["int8"], sizes_of(model.config), way)
    assert list(check_int8_values(runner, graphs["int8"], model, [])) == []
    found = list(check_int8_values(runner, graphs["int8"], moved(model, WALK + 34), []))
    assert any(problem.startswith(f"levels of tokens {WALK + 34}") for problem in found)


def test_double_computes_what_a_model_in_f64_does(model: Transformer) -> None:
    exact = make_model(max_length=WALK + 40, seed=3).double()
    source, target = torch.randint(4, 10, (2, 3, 60), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, single = exact(source, target), model(source, target)
        with Double():
            found = model(source, target)
    assert found.dtype == torch.float64
    assert float((found - expected).abs().max()) < 1e-12 < float((single - expected).abs().max())
