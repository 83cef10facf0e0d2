"""What is out of range is refused with a sentence; equal logits, ruled out words and in-place caches."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from attendant import kernels
from tests.kernels import cases
from tests.kernels.graphs import FLOAT, INT8, Weights, session

pytestmark = pytest.mark.skipif(kernels.library() is None, reason=kernels.why_missing())


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("position", [0, 7], "position 7 of row 1 is outside the cache of 7 slots"),
        ("position", [-1, 0], "position -1 of row 0"),
        ("source_row", [0, 3], "source_row 3 of row 1 is outside the 3 sources"),
        ("source_length", [1, 7, 1], "source_length 7 of source 1 is outside 0 to 6"),
        ("source_length", [1, -1, 1], "source_length -1 of source 1"),
        ("source_row", [0], r"source_row has the shape \(1\), not \(2\)"),
    ],
)
def test_a_decoder_layer_refuses_what_is_outside(name: str, values: list[int], message: str) -> None:
    case = cases.decoder(rows=2)
    case.feeds[name] = np.array(values)
    with pytest.raises(Fail, match=message):
        case.run()


def test_an_encoder_layer_refuses_lengths_that_are_not_those_of_its_tokens() -> None:
    case = cases.encoder(tokens=(3, 4))
    case.feeds["source_length"] = np.array([3, 5])
    with pytest.raises(Fail, match="more than the 7 tokens of x"):
        case.run()
    case.feeds |= {"source_length": np.array([3, 3]), "length": np.array([3, 3])}
    with pytest.raises(Fail, match="the sources have 6 tokens, and x has 7"):
        case.run()
    case.feeds |= {"source_length": np.array([3, 4]), "length": np.array([3, 5])}
    with pytest.raises(Fail, match="source 1 attends 5 of its 4 tokens"):
        case.run()


def test_embeddings_refuse_unknown_tokens_positions_and_lengths() -> None:
    target, source = cases.embed(source=False), cases.embed(source=True)
    for name, values, message in (
        ("token", [0, 11, 0, 0], "token 11 is outside the table of 11 words"),
        ("position", [0, 9, 0, 0], "position 9 is outside the table of 9 positions"),
    ):
        with pytest.raises(Fail, match=message):
            target.session.run(None, target.feeds | {name: np.array(values)})
    with pytest.raises(Fail, match="source_length 7 of source 1 is outside 0 to 6"):
        source.session.run(None, source.feeds | {"source_length": np.array([6, 7, 0, 0])})


def test_cross_keys_and_values_refuse_lengths_that_are_not_those_of_memory() -> None:
    case = cases.cross(tokens=(3, 2))
    with pytest.raises(Fail, match="source_length 5 of source 0 is outside 0 to 4"):
        case.session.run(None, case.feeds | {"source_length": np.array([5, 0])})
    with pytest.raises(Fail, match="the sources have 4 tokens, and memory has 5"):
        case.session.run(None, case.feeds | {"source_length": np.array([3, 1])})


def test_a_vocabulary_refuses_a_top_of_none() -> None:
    case = cases.vocabulary()
    with pytest.raises(Fail, match="top is 0, and must be at least 1"):
        case.session.run(None, case.feeds | {"top": np.array([0])})


def test_weights_of_another_shape_are_refused_when_the_session_is_made() -> None:
    weights = Weights(0, int8=True)
    weights.product(32, 96)
    weights.initializers[1] = weights.initializers[1][:64]
    feeds = {
        "memory": np.zeros((1, 32), np.float32),
        "source": np.zeros((1, 1), np.int64),
        "source_length": np.ones(1, int),
    }
    outputs = {"key": INT8, "value": INT8, "scale": FLOAT}
    with pytest.raises(
        RuntimeException, match=r"the product's weight has the shape \(3, 8, 2, 16, 4\), not \(2, 8, 2, 16, 4\)"
    ):
        session("CrossKeysValues", feeds, weights.initializers, outputs, {"heads": 2, "int8": 1})


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
@pytest.mark.parametrize("top", [1, 3, 700])
def test_of_equal_logits_the_lower_id_comes_first(int8: bool, top: int) -> None:
    case = cases.vocabulary(int8=int8, words=700, rows=2, top=top, norm=False, threads=2)
    case.feeds["x"][:] = 0  # logits are the bias
    bias = {2: 9.0, 680: 9.0, 513: 9.0, 512: 9.0}
    case = cases.vocabulary(int8=int8, words=700, rows=2, top=top, norm=False, threads=2, bias=bias)
    case.feeds["x"][:] = 0
    _, ids, _ = case.run()
    assert ids[0, :4].tolist() == [2, 512, 513, 680][:top]


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
def test_words_that_a_bias_rules_out_come_last_and_every_id_once(int8: bool) -> None:
    ruled_out = dict.fromkeys((0, 5, 599), -np.inf)
    case = cases.vocabulary(int8=int8, words=600, rows=3, top=600, threads=2, bias=ruled_out)
    top_logprobs, ids, logprobs = case.run()
    assert ids[:, -3:].tolist() == [[0, 5, 599]] * 3
    assert np.sort(ids, axis=1).tolist() == [list(range(600))] * 3
    assert np.isneginf(top_logprobs[:, -3:]).all()
    assert (np.take_along_axis(logprobs, ids, 1) == top_logprobs).all()


def test_rows_that_do_not_ask_for_all_logprobs_get_their_top_alone() -> None:
    case = cases.vocabulary(rows=3)
    _, _, together = case.run()
    top_logprobs, ids, logprobs = case.session.run(None, case.feeds | {"whole": np.array([0, 1, 0])})
    assert logprobs[1].tobytes() == together[1].tobytes()
    assert top_logprobs.shape == ids.shape == (3, 5)


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
def test_a_cache_bound_to_itself_gets_its_entries_in_place(int8: bool) -> None:
    case = cases.decoder(int8=int8)
    expected, binding = case.run(), case.session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in case.feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in (output.name for output in case.session.get_outputs()):
        if name == "y":
            binding.bind_output(name)
        else:
            binding.bind_ortvalue_output(name, values[name.replace("present", "self")])
    case.session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy().tobytes() == expected[0].tobytes()
    for name, output in zip(("key", "value", "scale"), expected[1:], strict=False):
        assert values[f"self_{name}"].numpy().tobytes() == output.tobytes()


def test_no_rows_are_no_error() -> None:
    case = cases.decoder(rows=1)
    sources = {name for name in case.feeds if name.startswith("cross_") or name == "source_length"}
    empty = {name: value if name in sources else value[:0] for name, value in case.feeds.items()}
    assert case.session.run(None, empty)[0].shape == (0, 32)
