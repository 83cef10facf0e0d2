"""A bundle's languages: which tokens a request's codes stand for, and what it is told of wrong ones."""

from __future__ import annotations

import pytest

from attendant.service.errors import InvalidFieldError, StartError
from attendant.service.text.languages import Chosen, Languages, read_languages

MANY = {"source_prefix": {"en": [5], "fr": [6]}, "target_prefix": {"en": [5], "fr": [6]}}
BY_TARGET = {"source_prefix_by_target": {"deu": [7], "fra": [8]}}


def read(found: dict[str, object]) -> Languages:
    return read_languages(found, source_vocab=10, target_vocab=10, longest=4)


def test_each_side_has_its_tokens() -> None:
    assert read(MANY).choose("en", "fr") == Chosen((5,), (6,))


def test_a_target_language_may_be_told_before_the_source() -> None:
    assert read(BY_TARGET).choose(None, "fra") == Chosen((8,), None)


def test_a_default_holds_where_a_request_names_none() -> None:
    languages = read({**MANY, "source_language": "fr", "target_language": "en"})
    assert languages.choose(None, None) == Chosen((6,), (5,))
    assert languages.choose("en", None) == Chosen((5,), (5,))


def test_without_a_default_a_request_must_name_its_languages() -> None:
    with pytest.raises(InvalidFieldError, match="source_language is missing; this model takes one of: en, fr"):
        read(MANY).choose(None, "fr")


def test_an_unknown_code_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidFieldError, match="target_language is 'xx'; this model takes one of: en, fr") as refused:
        read(MANY).choose("en", "xx")
    assert refused.value.field == "target_language"


@pytest.mark.parametrize("found", [{}, BY_TARGET])
def test_a_model_without_source_languages_takes_none(found: dict[str, object]) -> None:
    with pytest.raises(InvalidFieldError, match="source_language is 'en', and this model has no such choice"):
        read(found).choose("en", "deu" if found else None)


def test_a_model_of_one_pair_adds_nothing() -> None:
    assert read({}).choose(None, None) == Chosen()
    assert not read({})


@pytest.mark.parametrize("ids", [[10], [-1], [True], ["5"], [1, 2, 3, 4, 5], 5, None])
def test_tokens_that_cannot_be_decoded_do_not_start(ids: object) -> None:
    with pytest.raises(StartError, match=r"languages\.target_prefix in the manifest takes codes with at most 4 ids"):
        read({"target_prefix": {"en": ids}})


def test_a_default_that_is_no_code_does_not_start() -> None:
    with pytest.raises(StartError, match=r"languages\.source_language in the manifest is 'xx'"):
        read({**MANY, "source_language": "xx"})
