"""Phrases as tokens, with tokenizers of each kind."""

from __future__ import annotations

from collections import defaultdict

import pytest

from attendant.model.text.tokenizer import UNK, learn
from attendant.service.engine.search.constraints.forbidden import Forbidden, Phrase
from attendant.service.text.phrases import cuts, forms_of
from attendant.service.text.tokenizer import Tokenizer

SPECIAL = {"pad": 0, "unk": UNK, "bos": 2, "eos": 3}
TEXTS = ["the cat sat on the mat", "a cat in a hat", "the cats of the house"] * 20


@pytest.fixture(scope="module", params=["bpe:300", "chars", "words"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "target.json"
    learn(request.param, TEXTS).save(path)
    return Tokenizer(path, SPECIAL)


def test_a_phrase_inside_a_text_has_the_tokens_that_the_text_has_there(tokenizer: Tokenizer) -> None:
    (first, *rest) = forms_of(tokenizer, "cat", UNK)
    inside = rest[0][0] if rest else first[0]
    text = tokenizer.encode("the cat sat")
    assert inside in [text[start:stop] for start in range(len(text)) for stop in range(start, len(text) + 1)]
    assert first[0] == tokenizer.encode("cat")
    assert first[1] == bool(rest)  # what lacks the mark of a space counts at the start alone


def test_an_empty_phrase_has_no_forms(tokenizer: Tokenizer) -> None:
    assert forms_of(tokenizer, "", UNK) == []


def test_every_way_to_write_a_forbidden_phrase_is_forbidden(tokenizer: Tokenizer) -> None:
    by_text = defaultdict(list)
    for index, text in enumerate(tokenizer.texts(tokenizer.tokens())):
        by_text[text].append(index)
    texts = tokenizer.texts(tokenizer.tokens())
    forms = [ids for ids, _ in forms_of(tokenizer, "the cat", UNK)]
    forbidden = Forbidden(Phrase(cuts(tokenizer, ids, texts, by_text, 20)) for ids in forms)
    for ids in forms:
        assert forbidden.occurs_in(ids)
        if tokenizer.decode(ids) == "".join(texts[index] for index in ids):  # else only this way counts
            by_character = [by_text[character][0] for character in tokenizer.decode(ids)]
            assert forbidden.occurs_in(by_character)
            assert not forbidden.occurs_in(by_character[:-1])
