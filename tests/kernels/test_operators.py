"""Each operator in onnxruntime against the reference in numpy."""

from __future__ import annotations

import pytest

from attendant import kernels
from tests.kernels import cases

pytestmark = pytest.mark.skipif(kernels.library() is None, reason=kernels.why_missing())
PRECISIONS = pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
NORMS = pytest.mark.parametrize("pre_norm", [True, False], ids=["pre_norm", "post_norm"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
HEADS = pytest.mark.parametrize(("width", "heads"), [(16, 2), (48, 2), (64, 2), (64, 1), (80, 2), (128, 1)])


@PRECISIONS
@NORMS
@ACTIVATIONS
def test_a_decoder_layer_is_its_definition(int8: bool, pre_norm: bool, activation: str) -> None:
    cases.decoder(int8=int8, pre_norm=pre_norm, activation=activation).check()


@PRECISIONS
@HEADS
def test_a_decoder_layer_takes_every_head_size(int8: bool, width: int, heads: int) -> None:
    cases.decoder(int8=int8, width=width, heads=heads, past=21, slots=35, seed=width).check()


@PRECISIONS
@pytest.mark.parametrize("rows", [1, 2, 13, 37])
def test_a_decoder_layer_takes_any_number_of_rows_on_two_threads(int8: bool, rows: int) -> None:
    cases.decoder(int8=int8, rows=rows, width=64, wide=160, threads=2, seed=rows).check()


@PRECISIONS
@NORMS
@ACTIVATIONS
def test_an_encoder_layer_is_its_definition(int8: bool, pre_norm: bool, activation: str) -> None:
    cases.encoder(int8=int8, pre_norm=pre_norm, activation=activation).check()


@PRECISIONS
@HEADS
def test_an_encoder_layer_takes_every_head_size(int8: bool, width: int, heads: int) -> None:
    cases.encoder(int8=int8, width=width, heads=heads, tokens=(17, 1, 30)).check()


@PRECISIONS
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tokens", [(1,), (150,), (9, 200), tuple([7] * 40)], ids=len)
def test_an_encoder_layer_takes_few_and_many_tokens(int8: bool, threads: int, tokens: tuple[int, ...]) -> None:
    cases.encoder(int8=int8, width=64, tokens=tokens, threads=threads).check()


@PRECISIONS
def test_a_source_s_end_token_may_be_left_unattended_even_if_it_is_all_there_is(int8: bool) -> None:
    cases.encoder(int8=int8, tokens=(4, 1, 2), ended=1).check()


@PRECISIONS
@NORMS
@pytest.mark.parametrize(("activation", "head"), [("gated_gelu", 24), ("gated_silu", 16), ("relu", 8)])
def test_layers_of_t5_are_their_definitions(int8: bool, pre_norm: bool, activation: str, head: int) -> None:
    """RMSNorm, a gate, heads of a size of their own, relative positions beyond the largest distance that is told."""
    cases.decoder(int8=int8, pre_norm=pre_norm, activation=activation, head=head, past=19).check()
    cases.encoder(int8=int8, pre_norm=pre_norm, activation=activation, head=head, tokens=(3, 130, 1)).check(4e-6)


@PRECISIONS
@pytest.mark.parametrize(("width", "tokens"), [(48, (3, 5, 1)), (64, (100, 120)), (16, (2,))])
def test_cross_keys_and_values_are_their_definition(int8: bool, width: int, tokens: tuple[int, ...]) -> None:
    cases.cross(int8=int8, width=width, tokens=tokens, threads=2).check()


@PRECISIONS
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("words", "rows", "top"), [(100, 1, 5), (1300, 7, 4), (1040, 100, 1), (600, 2, 600)])
def test_a_vocabulary_is_its_definition(int8: bool, norm: bool, words: int, rows: int, top: int) -> None:
    cases.vocabulary(int8=int8, norm=norm, words=words, rows=rows, top=top, threads=2).check()


@PRECISIONS
@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_embeddings_are_their_definition(int8: bool, source: bool, norm: bool) -> None:
    cases.embed(source=source, int8=int8, norm=norm).check()
