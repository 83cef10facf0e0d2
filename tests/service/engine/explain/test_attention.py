"""Attention weights as answered: chosen, averaged, counted, encoded; and alignments by hand."""

from __future__ import annotations

import base64
import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from attendant.export.bundle import Sizes
from attendant.service.engine.explain.attention import (
    align,
    check_choices,
    check_value_count,
    choose,
    count_values,
    encode_values,
)
from attendant.service.engine.tasks import ATTENTION_KINDS, AlignmentChoice, AttentionChoice
from attendant.service.errors import InvalidFieldError

SIZES = Sizes(
    source_vocab=9, target_vocab=9, d_model=8, d_ff=8, heads=3, encoder_layers=4, decoder_layers=2, max_length=16
)
SHAPES = {"encoder": (4, 3, 5, 5), "decoder": (2, 3, 6, 7), "cross": (2, 3, 6, 5)}


def weights(kind: str) -> np.ndarray:
    values = np.random.default_rng(0).random(SHAPES[kind]).astype(np.float32)
    return values / values.sum(-1, keepdims=True)


@pytest.mark.parametrize("average", ["none", "heads", "layers", "both"])
@pytest.mark.parametrize("heads", [None, (2,), (0, 2)])
@pytest.mark.parametrize("layers", [None, (1,), (1, 0)])
def test_what_is_counted_is_what_is_answered(
    average: str, heads: tuple[int, ...] | None, layers: tuple[int, ...] | None
) -> None:
    choice = AttentionChoice(kinds=ATTENTION_KINDS, layers=layers, heads=heads, average=average)
    found = [choose(kind, weights(kind), choice) for kind in ATTENTION_KINDS]
    assert count_values(choice, SIZES, source=5, target=6, read=7) == sum(each.values.size for each in found)
    for each in found:
        assert np.abs(each.values.sum(-1) - 1).max() < 1e-5


def test_an_average_is_the_mean_of_what_is_chosen() -> None:
    values = weights("cross")
    for average, expected in (
        ("heads", values[:, [0, 2]].mean(1, keepdims=True)),
        ("layers", values[:, [0, 2]].mean(0, keepdims=True)),
        ("both", values[:, [0, 2]].mean((0, 1), keepdims=True)),
    ):
        found = choose("cross", values, AttentionChoice(kinds=("cross",), heads=(0, 2), average=average))
        assert np.allclose(found.values, expected)
        assert (found.layers, found.heads) == ((0, 1), (0, 2))


def test_base64_in_parts_is_that_of_the_whole() -> None:
    values = np.random.default_rng(0).random((1, 2, 317, 701)).astype(np.float32)
    (half,) = [json.loads(b"".join(encode_values(values, "float16")))]
    assert base64.b64decode(half) == values.astype("<f2").tobytes()


def test_encodings_are_the_same_numbers_within_their_step() -> None:
    values = weights("decoder")
    values[..., 1:] *= np.tril(np.ones((6, 7)))[:, 1:].astype(np.float32)
    plain, half, byte = (json.loads(b"".join(encode_values(values, name))) for name in ("json", "float16", "uint8"))
    plain = np.array(plain)
    half = np.frombuffer(base64.b64decode(half), "<f2").reshape(values.shape)
    byte = np.frombuffer(base64.b64decode(byte), np.uint8).reshape(values.shape)
    assert np.abs(plain - values).max() <= 5.1e-7
    assert np.abs(half - values).max() <= 2**-11
    assert np.abs(byte / 255 - values).max() <= 0.5 / 255 + 1e-6
    for found in (plain, half, byte):
        assert (found[values == 0] == 0).all()


def test_the_largest_weight_aligns_and_what_cannot_be_aligned_is_skipped() -> None:
    cross = np.array([[[[0.1, 0.6, 0.3], [0.2, 0.5, 0.3], [0.0, 0.3, 0.7]]]])
    choice = AlignmentChoice(layer=0, heads=(0,))
    assert align(cross, choice, (0, 1, 2), 3) == ((1, 0), (1, 1), (2, 2))
    assert align(cross, choice, (0, 2), 2) == ((2, 0), (2, 1))
    mutual = AlignmentChoice(layer=0, heads=(0,), method="mutual")
    assert align(cross, mutual, (0, 1, 2), 3) == ((1, 0), (2, 2))
    assert align(cross, choice, (), 3) == align(cross, choice, (0,), 0) == ()


def test_the_mean_of_heads_aligns() -> None:
    cross = np.array([[[[0.9, 0.1]], [[0.2, 0.8]], [[0.3, 0.7]]]])
    assert align(cross, AlignmentChoice(layer=0, heads=(0, 1)), (0, 1), 1) == ((0, 0),)
    assert align(cross, AlignmentChoice(layer=0, heads=(1, 2)), (0, 1), 1) == ((1, 0),)


def test_too_many_values_are_refused_with_what_to_do() -> None:
    check_value_count(10, 10)
    with pytest.raises(InvalidFieldError, match="38,000,000 attention weights, and at most 5,000,000") as error:
        check_value_count(38_000_000, 5_000_000)
    assert error.value.field == "attention"


def test_averaging_takes_no_more_memory_than_what_is_averaged() -> None:
    values = np.ones((6, 8, 64, 64), np.float32)
    for average, layers, heads in (("both", None, None), ("heads", (5, 0), None), ("layers", None, (7, 1))):
        choice = AttentionChoice(kinds=("cross",), layers=layers, heads=heads, average=average)
        tracemalloc.start()
        choose("cross", values, choice)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < values.nbytes / 2


def test_a_layer_or_a_head_is_named_once() -> None:
    choice, aligned = (
        AttentionChoice(kinds=("cross",), layers=(0, 1), heads=(2, 0)),
        AlignmentChoice(layer=0, heads=(1,)),
    )
    check_choices(choice, aligned)
    check_choices(replace(choice, layers=None, heads=None), aligned)
    for wrong, alignment, field in (
        (replace(choice, layers=(1, 1)), aligned, "layers"),
        (replace(choice, heads=(0, 2, 0)), aligned, "heads"),
        (choice, replace(aligned, heads=(0,) * 1000), "alignment_heads"),
    ):
        with pytest.raises(InvalidFieldError, match=f"{field} names") as error:
            check_choices(wrong, alignment)
        assert error.value.field == field
