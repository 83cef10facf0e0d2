"""A row's bits alone, in a batch, padded, and on any number of threads, for every kernel that the served graphs use."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from attendant import kernels
from attendant.export.graphs.builder import Array
from attendant.export.graphs.variants import build_variant_graph
from attendant.export.graphs.weights import arrays_of
from attendant.export.runner import DEFINITIONS, KERNELS, PLAIN, Runner, ways_to_run
from attendant.export.signature import padded_width
from attendant.export.verify.bundle_checks import check_rows
from attendant.model.config import CHOICES
from attendant.model.text.tokenizer import EOS, PAD
from attendant.model.transformer import Transformer
from tests.support.engines import make_bundle
from tests.support.small_models import make_model

HEADS, HEAD, ROWS = 2, 64, 6
MANY_THREADS = HEADS * ROWS  # more than the heads of a lone row
# One is longer than a block of flash attention (1,024 keys at 2 MB of L2 and heads of 64), one is two blocks and more.
LENGTHS = [3900, 17, 1500, 300, 3900, 2]
SHORT_LENGTHS = [120, 17, 90, 33, 120, 2]  # additive scores take memory by the square of the length
GRAPHS = [
    ("fp32", KERNELS, "dot"),
    ("int8", KERNELS, "dot"),
    ("fp32", DEFINITIONS, "dot"),
    ("int8", DEFINITIONS, "dot"),
    ("fp32", PLAIN, "dot"),
    ("int8", PLAIN, "dot"),
    ("fp32", PLAIN, "gaussian"),
    ("fp32", PLAIN, "additive"),
]

Feeds = dict[str, Array]


@pytest.fixture(scope="module")
def models() -> dict[str, Transformer]:
    shape: dict[str, Any] = {"heads": HEADS, "d_model": HEADS * HEAD, "encoder_layers": 1, "decoder_layers": 1}
    return {score: make_model(score=score, max_length=4000, **shape) for score in ("dot", "gaussian", "additive")}


def runs(model: Transformer, variant: str, way: str, graph: str) -> list[Callable[[Feeds], Feeds]]:
    """The graph on one thread and on many."""
    if way == KERNELS and not kernels.library():
        pytest.skip(kernels.why_missing())
    name = graph if way == PLAIN else f"kernel_{graph}"
    proto = build_variant_graph(variant, name, model.config, arrays_of(model))
    return [runner(proto, way, threads) for threads in (1, MANY_THREADS)]


def runner(proto: onnx.ModelProto, way: str, threads: int) -> Callable[[Feeds], Feeds]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if way == KERNELS:
        kernels.register(options, threads)
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def cut(caches: Feeds, row: int, length: int | None = None) -> Feeds:
    """One row of KV caches and their scales, with `length` slots."""
    return {
        name: value[row : row + 1, ..., :length] if "_scale_" in name else value[row : row + 1, :, :length]
        for name, value in caches.items()
    }


def assert_same(found: Feeds, wanted: Feeds, row: int, length: int, case: str) -> None:
    """The first row of `found` against one of `wanted`, up to `length` where there is a source axis."""
    for name, value in found.items():
        mine, theirs = value[0], wanted[name][row]
        if name.startswith("cross_"):
            axis = 2 if "_scale_" in name else 1
            mine, theirs = (np.moveaxis(each, axis, 0)[:length] for each in (mine, theirs))
        elif name.startswith("present_"):
            continue  # copies of what came in
        assert np.array_equal(mine, theirs), f"{name} of row {row}, {case}: off by {np.abs(mine - theirs).max():.2g}"


@pytest.mark.parametrize(("variant", "way", "score"), GRAPHS)
def test_a_step_has_the_same_bits_alone_and_in_company_on_any_number_of_threads(
    models: dict[str, Transformer], variant: str, way: str, score: str
) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array(SHORT_LENGTHS if score == "additive" else LENGTHS)
    shape = (ROWS, HEADS, padded_width(max(lengths)), HEAD)
    cache: Feeds = {}
    for side, what in itertools.product(("self", "cross"), ("key", "value")):
        cache[f"{side}_{what}_0"] = rng.standard_normal(shape, np.float32)
        if variant == "int8" and way != PLAIN:
            cache[f"{side}_{what}_0"] = rng.integers(-127, 128, shape).astype(np.int8)
            cache[f"{side}_scale_0"] = rng.uniform(0, 0.02, (ROWS, 2, *shape[1:3])).astype(np.float32)
    flat = {"token": rng.integers(4, 11, ROWS), "position": lengths - 1, "source_length": lengths}
    alone, company = {"top": np.array([3])}, {"top": np.array([3])}
    if way != PLAIN:
        flat |= {"whole": np.ones(ROWS, np.int64)}
        alone, company = alone | {"source_row": np.array([0])}, company | {"source_row": np.arange(ROWS)}
    one_thread, many_threads = runs(models[score], variant, way, "step")
    together = one_thread(flat | cache | company)
    for row, length in enumerate(lengths):
        mine = alone | {name: value[row : row + 1] for name, value in flat.items()}
        exact, padded = cut(cache, row, padded_width(length)), cut(cache, row)
        assert_same(one_thread(mine | exact), together, row, length, "alone")
        assert_same(many_threads(mine | exact), together, row, length, "alone on many threads")
        assert_same(many_threads(mine | padded), together, row, length, "alone and padded on many threads")
    again = many_threads(flat | cache | company)
    assert all(np.array_equal(again[name], value) for name, value in together.items())


@pytest.mark.parametrize(("variant", "way", "score"), GRAPHS)
def test_a_source_is_encoded_to_the_same_bits_alone_and_in_company_on_any_number_of_threads(
    models: dict[str, Transformer], variant: str, way: str, score: str
) -> None:
    rng = np.random.default_rng(1)
    lengths = np.array(SHORT_LENGTHS if score == "additive" else [min(length, 500) for length in LENGTHS])
    source = np.full((ROWS, padded_width(max(lengths))), PAD)
    for ids, length in zip(source, lengths, strict=True):
        ids[: length - 1], ids[length - 1] = rng.integers(4, 11, length - 1), EOS
    one_thread, many_threads = runs(models[score], variant, way, "encoder")
    together = one_thread({"source": source, "source_length": lengths})
    for row, length in enumerate(lengths):
        mine = {"source": source[row : row + 1, : padded_width(length)], "source_length": lengths[row : row + 1]}
        padded = mine | {"source": source[row : row + 1]}
        assert_same(one_thread(mine), together, row, length, "alone")
        assert_same(many_threads(mine), together, row, length, "alone on many threads")
        assert_same(many_threads(padded), together, row, length, "alone and padded on many threads")


@pytest.mark.parametrize("score", CHOICES["score"])
def test_the_check_of_rows_before_a_bundle_is_written_holds_for_every_score(score: str, tmp_path: Path) -> None:
    bundle = make_bundle(make_model(score=score), tmp_path / "bundle", ("fp32",))
    graphs = bundle.variants["fp32"].graphs
    for way in ways_to_run(graphs):
        assert list(check_rows(Runner(graphs, bundle.sizes, way), allowed=0.0)) == []
