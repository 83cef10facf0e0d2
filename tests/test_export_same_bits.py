"""A row's bits alone, in a batch, padded, and on any number of threads, for every kernel that the served graphs use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from export.builder import Array
from export.bundle_checks import check_rows
from export.calibration import calibrate
from export.runner import Runner
from export.signature import padded_width
from export.variants import build_variant_graph
from export.weights import arrays_of
from model.config import CHOICES
from model.tokenizer import EOS, PAD
from model.transformer import Transformer
from tests.conftest import make_model
from tests.engines import make_bundle

HEADS, HEAD, ROWS = 2, 64, 6
MANY_THREADS = HEADS * ROWS  # more than the heads of a lone row
# One is longer than a block of flash attention (1,024 keys at 2 MB of L2 and heads of 64), one is two blocks and more.
LENGTHS = [3900, 17, 1500, 300, 3900, 2]
SHORT_LENGTHS = [120, 17, 90, 33, 120, 2]  # additive scores take memory by the square of the length
GRAPHS = [
    ("fp32", "fast_", "dot"),
    ("int8", "fast_", "dot"),
    ("fp32", "", "dot"),
    ("int8", "", "dot"),
    ("fp32", "", "gaussian"),
    ("fp32", "", "additive"),
]

Feeds = dict[str, Array]


@pytest.fixture(scope="module")
def models() -> dict[str, Transformer]:
    shape: dict[str, Any] = {"heads": HEADS, "d_model": HEADS * HEAD, "encoder_layers": 1, "decoder_layers": 1}
    return {score: make_model(score=score, max_length=4000, **shape) for score in ("dot", "gaussian", "additive")}


def runs(model: Transformer, variant: str, graph: str) -> list[Callable[[Feeds], Feeds]]:
    """The graph on one thread and on many, with the attention nodes' own outputs beside its outputs.

    What follows attention in int8 is quantized, which hides a difference in the last bits.
    """
    arrays = arrays_of(model)
    ranges = calibrate(model.config, arrays, [([4, 5, 6, 7], [4, 6, 8, 10])])
    proto = build_variant_graph(variant, graph, model.config, arrays, ranges)
    for node in proto.graph.node:
        if node.op_type in ("GroupQueryAttention", "MultiHeadAttention"):
            proto.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    return [runner(proto, threads) for threads in (1, MANY_THREADS)]


def runner(proto: onnx.ModelProto, threads: int) -> Callable[[Feeds], Feeds]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def assert_same(found: Feeds, wanted: Feeds, row: int, length: int, case: str) -> None:
    """The first row of `found` against one of `wanted`, up to `length` where there is a source axis."""
    for name, value in found.items():
        mine, theirs = value[0], wanted[name][row]
        if name.startswith("cross_"):
            mine, theirs = mine[:, :length], theirs[:, :length]
        elif name.startswith("MultiHeadAttention"):
            mine, theirs = mine[:length], theirs[:length]
        elif name.startswith(("present_", "kept_")):
            continue  # copies of what came in
        assert np.array_equal(mine, theirs), f"{name} of row {row}, {case}: off by {np.abs(mine - theirs).max():.2g}"


@pytest.mark.parametrize(("variant", "kind", "score"), GRAPHS)
def test_a_step_has_the_same_bits_alone_and_in_company_on_any_number_of_threads(
    models: dict[str, Transformer], variant: str, kind: str, score: str
) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array(SHORT_LENGTHS if score == "additive" else LENGTHS)
    shape = (ROWS, HEADS, padded_width(max(lengths)), HEAD)
    quantized = variant == "int8" and kind == "fast_"
    cache = {
        f"{side}_{what}_0": rng.integers(-127, 128, shape).astype(np.int8)
        if quantized
        else rng.standard_normal(shape, np.float32)
        for side in ("self", "cross")
        for what in ("key", "value")
    }
    flat = {"token": rng.integers(4, 11, ROWS), "position": lengths - 1, "source_length": lengths}
    top = {"top": np.array([3])}
    one_thread, many_threads = runs(models[score], variant, f"{kind}step")
    together = one_thread(flat | cache | top)
    for row, length in enumerate(lengths):
        mine = {name: value[row : row + 1] for name, value in flat.items()}
        exact = {name: value[row : row + 1, :, : padded_width(length)] for name, value in cache.items()}
        padded = {name: value[row : row + 1] for name, value in cache.items()}
        assert_same(one_thread(mine | exact | top), together, row, length, "alone")
        assert_same(many_threads(mine | exact | top), together, row, length, "alone on many threads")
        assert_same(many_threads(mine | padded | top), together, row, length, "alone and padded on many threads")
    again = many_threads(flat | cache | top)
    assert all(np.array_equal(again[name], value) for name, value in together.items())


@pytest.mark.parametrize(("variant", "kind", "score"), GRAPHS)
def test_a_source_is_encoded_to_the_same_bits_alone_and_in_company_on_any_number_of_threads(
    models: dict[str, Transformer], variant: str, kind: str, score: str
) -> None:
    rng = np.random.default_rng(1)
    lengths = np.array(SHORT_LENGTHS if score == "additive" else [min(length, 500) for length in LENGTHS])
    source = np.full((ROWS, padded_width(max(lengths))), PAD)
    for ids, length in zip(source, lengths, strict=True):
        ids[: length - 1], ids[length - 1] = rng.integers(4, 11, length - 1), EOS
    one_thread, many_threads = runs(models[score], variant, f"{kind}encoder")
    together = one_thread({"source": source, "source_length": lengths})
    for row, length in enumerate(lengths):
        mine = {"source": source[row : row + 1, : padded_width(length)], "source_length": lengths[row : row + 1]}
        padded = mine | {"source": source[row : row + 1]}
        assert_same(one_thread(mine), together, row, length, "alone")
        assert_same(many_threads(mine), together, row, length, "alone on many threads")
        assert_same(many_threads(padded), together, row, length, "alone and padded on many threads")


@pytest.mark.parametrize("score", CHOICES["score"])
@pytest.mark.parametrize("kind", ["plain", "fast"])
def test_the_check_of_rows_before_a_bundle_is_written_holds_for_every_score(
    score: str, kind: str, tmp_path: Path
) -> None:
    bundle = make_bundle(make_model(score=score), tmp_path / "bundle", ("fp32",))
    runner = Runner(bundle.variants["fp32"].graphs, bundle.sizes, plain=kind == "plain")
    assert list(check_rows(runner, allowed=0.0)) == []
