"""Phrases as tokens, with tokenizers of each kind."""

from __future__ import annotations

import random
import re

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from attendant.model.importers.files.sentencepiece import decoder
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK, learn
from attendant.service.engine.search.constraints.forbidden import Forbidden, Phrase, chain
from attendant.service.engine.search.constraints.terms import Form, Term, met_terms
from attendant.service.text.phrases import TokenTexts, cuts, cuts_inside, forms_of
from attendant.service.text.tokenizer import Tokenizer

SPECIAL = {"pad": 0, "unk": UNK, "bos": 2, "eos": 3}
TEXTS = [
    "the cat sat on the mat",
    "a cat in a hat",
    "the cats of the house",
    '(a "cat" (the), cat. hat? don\'t and/cat (the) "cat',
] * 20


def sentencepiece() -> Backend:
    """As SentencePiece writes words, with tokens of letters and punctuation."""
    backend = Backend(models.BPE(unk_token=SPECIAL_TOKENS[UNK]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoder()
    alphabet = sorted(set("".join(TEXTS)) - {" "})
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


@pytest.fixture(scope="module", params=["bpe:300", "chars", "words", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "target.json"
    learned = sentencepiece() if request.param == "sentencepiece" else learn(request.param, TEXTS)
    learned.save(str(path)) if isinstance(learned, Backend) else learned.save(path)
    return Tokenizer(path, SPECIAL)


def texts_of(tokenizer: Tokenizer) -> TokenTexts:
    return TokenTexts(tokenizer.texts(tokenizer.tokens()), SPECIAL.values())


def has_subwords(tokenizer: Tokenizer) -> bool:
    return len(tokenizer.encode("tmtm")) > 1


def forbidden(tokenizer: Tokenizer, *phrases: str) -> Forbidden:
    texts = texts_of(tokenizer)
    found = []
    for phrase in phrases:
        forms = forms_of(tokenizer, phrase, UNK)
        found += [Phrase(cuts(tokenizer, ids, texts), at_edge) for ids, at_edge in forms]
        found += [Phrase(edges) for ids, _ in forms if (edges := cuts_inside(tokenizer, ids, texts))]
    return Forbidden(found, texts.edges)


def a_term(tokenizer: Tokenizer, phrase: str) -> Term:
    return Term(tuple(Form(ids, phrase, at_edge) for ids, at_edge in forms_of(tokenizer, phrase, UNK)))


def test_a_phrase_inside_a_text_has_the_tokens_that_the_text_has_there(tokenizer: Tokenizer) -> None:
    text = tokenizer.encode("the cat sat")
    inside = [text[start:stop] for start in range(len(text)) for stop in range(start, len(text) + 1)]
    forms = forms_of(tokenizer, "cat", UNK)
    assert any(ids in inside for ids, at_edge in forms if not at_edge)
    assert any(ids == tokenizer.encode("cat") for ids, _ in forms)


def test_an_empty_phrase_has_no_forms(tokenizer: Tokenizer) -> None:
    assert forms_of(tokenizer, "", UNK) == []


@pytest.mark.parametrize("text", ["cat", "the cat", "(cat)", '"cat"', "the\ncat", "a-cat", "cat.", "the (cat), a hat"])
def test_a_word_is_forbidden_and_met_wherever_it_begins(tokenizer: Tokenizer, text: str) -> None:
    if not has_subwords(tokenizer) and text not in ("cat", "the cat", "the\ncat"):
        return  # with words, punctuation is part of them
    ids = tokenizer.encode(text)
    assert forbidden(tokenizer, "cat").occurs_in(ids)
    term = a_term(tokenizer, "cat")
    if any(form.ids == ids[place : place + len(form.ids)] for form in term.forms for place in range(len(ids))):
        assert met_terms([term], ids, texts_of(tokenizer).edges)[0].met


@pytest.mark.parametrize("text", ["the mat", "concat", "hat, sat", "Cat CAT"])
def test_the_end_of_another_word_or_capitals_are_no_such_word(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not forbidden(tokenizer, "cat").occurs_in(ids)
    assert not met_terms([a_term(tokenizer, "cat")], ids, texts_of(tokenizer).edges)[0].met


@pytest.mark.parametrize("text", ["hat?", "hat ?", "?", "(?)"])
def test_punctuation_is_forbidden_and_met_anywhere(tokenizer: Tokenizer, text: str) -> None:
    if not has_subwords(tokenizer) or UNK in tokenizer.encode(text):
        return
    ids = tokenizer.encode(text)
    assert forbidden(tokenizer, "?").occurs_in(ids)


def cut(texts: TokenTexts, text: str, draw: random.Random) -> list[int] | None:
    """A text in tokens, cut anywhere; None if that went wrong."""
    ids, start = [], 0
    while start < len(text):
        stops = [stop for stop in range(start + 1, len(text) + 1) if text[start:stop] in texts.by_text]
        if not stops:
            return None
        stop = draw.choice(stops)
        ids.append(draw.choice(texts.by_text[text[start:stop]]))
        start = stop
    return ids


@pytest.mark.parametrize("phrase", ["cat", "the cat", "don't", "?"])
def test_however_a_text_is_cut_the_phrase_is_found_where_a_word_begins_and_nowhere_else(
    tokenizer: Tokenizer, phrase: str
) -> None:
    if not has_subwords(tokenizer) or UNK in tokenizer.encode(phrase):
        return
    found, texts, draw = forbidden(tokenizer, phrase), texts_of(tokenizer), random.Random(phrase)
    begins = re.compile(rf"(?<![A-Za-z0-9]){re.escape(phrase)}" if phrase[0].isalnum() else re.escape(phrase))
    whole = re.compile(begins.pattern + "(?![A-Za-z0-9])")
    seen = [0, 0]
    for _ in range(1000):
        parts = draw.choices([phrase, *phrase.split(), "a", "hat", " ", "(", '"', "?", ". ", ") "], k=6)
        ids = cut(texts, "".join(parts), draw)
        if ids is None:
            continue
        text = tokenizer.decode(ids)
        if whole.search(text):
            assert found.occurs_in(ids), [texts.of[index] for index in ids]
            seen[0] += 1
        elif not begins.search(text):
            assert not found.occurs_in(ids), [texts.of[index] for index in ids]
            seen[1] += 1
    assert min(seen) > 20


def test_a_form_at_an_edge_is_forbidden_after_tokens_that_are_edges() -> None:
    found = Forbidden([chain((4, 5), at_edge=True), chain((6,), at_edge=True)], frozenset({9}))
    assert found.next_tokens(()) == found.next_tokens((8, 9)) == {6}
    assert found.next_tokens((4,)) == found.next_tokens((8, 9, 4)) == {5}
    assert found.next_tokens((8,)) == found.next_tokens((8, 4)) == set()


def test_a_token_with_punctuation_before_a_word_begins_it() -> None:
    texts = TokenTexts(["<pad>", '("c', "at", "(cat)", "at.", "cats", " cat", "ca"], [0])
    assert texts.begun == {"c": [1], '("c'[1:]: [1], "cat)": [3], ")": [3], ".": [4]}
    assert texts.ended == {"(": [1, 3], '("': [1], "(cat": [3], "at": [4]}
    assert texts.within == {'"': [1], "cat": [3]}
    assert texts.edges == {0, 3, 4}
