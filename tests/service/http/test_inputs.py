"""Texts of a request to ids: what fits is encoded whole, the rest is refused with a sentence."""

from __future__ import annotations

import pytest

from attendant.service.errors import InvalidFieldError
from attendant.service.requests.inputs import encode_source, encode_target
from attendant.service.requests.served import ServedModel
from tests.support.fake_engine import FakeEngine, make_bundle


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(FakeEngine(make_bundle(tmp_path_factory.mktemp("bundle"), source=8, target=6)))


def test_a_source_is_encoded_whole(served: ServedModel) -> None:
    ids = encode_source(served, "facade", "source")
    assert served.engine.source_tokenizer.decode(ids) == "facade"


def test_a_target_is_encoded_from_text_and_from_tokens_alike(served: ServedModel) -> None:
    assert encode_target(served, "K AE T", "target") == encode_target(served, ["K", "AE", "T"], "target")


def test_a_target_may_be_empty(served: ServedModel) -> None:
    assert encode_target(served, "", "target") == encode_target(served, [], "target") == ()


def test_texts_of_exactly_the_limit_fit(served: ServedModel) -> None:
    assert len(encode_source(served, "a" * 8, "source")) == 8
    assert len(encode_target(served, "K " * 5, "target")) == 5  # and the end token


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"source is empty; give a text"),
        ("a" * 9, r"source has 9 tokens; this model takes at most 8"),
        ("a" * 100_000, r"source has 100000 characters; at most 8 tokens fit"),
        ("aZ1Z", r"what the model's vocabulary lacks: 'Z', '1'; leave it out"),
        ("ABCDEFGH", r"'A', 'B', 'C', 'D', 'E' and 3 more"),
        ("a\x00b", r"lacks: '\\x00'"),
        ("a b", r"lacks: ' '"),
        ("a\ud800", r"lone surrogate \(U\+D800, character 2\)"),
        ("<end of text>"[:8], r"lacks: '<'"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(text: str, sentence: str, served: ServedModel) -> None:
    with pytest.raises(InvalidFieldError, match=sentence) as caught:
        encode_source(served, text, "source")
    assert caught.value.field == "source"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("K K K K K K", r"prefix has 6 tokens, 7 with the end token; 6 fit"),
        (["K"] * 10_000, r"prefix has 10000 tokens"),
        ("K QQ", r"lacks: 'QQ'"),
        ("K \udfff", r"lone surrogate"),
        (["K", "QQ"], r"prefix\[1\] is 'QQ', which is no token"),
        (["K", "\udfff"], r"prefix\[1\] is '\\udfff', which is no token"),
        (["<end of text>"], r"prefix\[0\] is '<end of text>', a special token"),
        (["<unknown token>"], r"special token"),
        (["<start of text>"], r"special token"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(target: str | list[str], sentence: str, served: ServedModel) -> None:
    with pytest.raises(InvalidFieldError, match=sentence):
        encode_target(served, target, "prefix")


def test_a_request_may_set_a_lower_limit_than_the_models_but_no_higher(served: ServedModel) -> None:
    assert len(encode_target(served, "K", "prefix", 2)) == 1
    with pytest.raises(InvalidFieldError, match="2 fit"):
        encode_target(served, "K K", "prefix", 2)
    with pytest.raises(InvalidFieldError, match="6 fit"):
        encode_target(served, ["K"] * 6, "prefix", 100)


def test_what_the_vocabulary_lacks_can_be_let_through_as_the_unknown_token(served: ServedModel) -> None:
    unknown = served.description.special_ids["unk"]
    source = encode_source(served, "aZb", "source", allow_unknown=True)
    assert source == (*encode_source(served, "a", "source"), unknown, *encode_source(served, "b", "source"))
    assert encode_target(served, "K QQ", "target", allow_unknown=True)[-1] == unknown


def test_the_unknown_token_of_an_answer_can_be_given_back_if_it_is_let_through(served: ServedModel) -> None:
    unknown = served.description.special_ids["unk"]
    token = served.engine.target_tokenizer.token(unknown)
    assert encode_target(served, ["K", token], "prefix", allow_unknown=True)[-1] == unknown
    with pytest.raises(InvalidFieldError, match="a special token"):
        encode_target(served, ["K", token], "prefix")
