from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendant.model.errors import ConfigError
from attendant.model.text.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, Tokenizer, check_kind, learn, load

CORPUS = ["the cat sat on the mat", "the dog sat on the log", "naïve café, 北京 🙂", "a\u0301 tab\there"]
any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
symbol = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=6)
BPE = learn("bpe:300", CORPUS)


@given(any_text)
def test_chars_give_back_any_text_that_they_cover(text: str) -> None:
    tokenizer = learn("chars", [text])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert UNK not in tokenizer.encode(text)


@given(st.lists(symbol, min_size=1, max_size=8))
def test_words_give_back_any_symbols_that_they_cover(symbols: list[str]) -> None:
    text = " ".join(symbols)
    tokenizer = learn("words", [text])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(symbols)


@given(any_text)
def test_bpe_gives_back_any_text_at_all(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text
    assert not {PAD, UNK, BOS, EOS} & set(BPE.encode(text))


@pytest.mark.parametrize("kind", ["chars", "words", "bpe:300"])
@pytest.mark.parametrize("special", [*SPECIAL_TOKENS, "</s>", "<unk>"])
def test_a_text_that_names_a_special_token_is_only_a_text(kind: str, special: str) -> None:
    tokenizer = learn(kind, [special] * 50)
    ids = tokenizer.encode(special)
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert tokenizer.decode(ids) == special


def test_what_the_vocabulary_lacks_is_unknown() -> None:
    assert learn("chars", ["abc"]).encode("abxc")[2] == UNK
    assert learn("words", ["a b"]).encode("a z b")[1] == UNK
    assert learn("chars", ["abc"]).decode([UNK]) == "<unknown token>"


@pytest.mark.parametrize("kind", ["chars", "words", "bpe:300"])
def test_a_saved_tokenizer_is_the_same_one(kind: str, tmp_path: Path) -> None:
    tokenizer = learn(kind, CORPUS)
    tokenizer.save(tmp_path / "t.json")
    loaded = load(tmp_path / "t.json")
    for text in [*CORPUS, "unseen ☃ text"]:
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.encode_batch([text, text]) == [tokenizer.encode(text)] * 2
    assert loaded.size == tokenizer.size


@pytest.mark.parametrize("kind", ["chars", "words", "bpe:300"])
def test_the_special_tokens_are_the_first_four(kind: str) -> None:
    tokenizer = learn(kind, CORPUS)
    assert tuple(tokenizer.token(i) for i in (PAD, UNK, BOS, EOS)) == SPECIAL_TOKENS
    assert tokenizer.decode([BOS, *tokenizer.encode("the"), EOS, PAD]) == "the"


def test_learning_is_the_same_every_time() -> None:
    def learnt() -> list[Tokenizer]:
        return [learn(kind, CORPUS) for kind in ("chars", "words", "bpe:300")]

    assert [t.to_str() for t in learnt()] == [t.to_str() for t in learnt()]


def test_bpe_has_the_size_that_was_asked_for_and_shortens_text() -> None:
    corpus = ["the cat sat on the mat with the other cats"] * 10
    tokenizer = learn("bpe:270", corpus)
    assert tokenizer.size == 270
    assert len(tokenizer.encode(corpus[0])) < len(corpus[0])


def test_pieces_keep_what_the_vocabulary_lacks() -> None:
    assert learn("words", ["AA1 B"]).pieces("AA B") == ["AA", "B"]
    assert learn("chars", ["ab"]).pieces("axb") == ["a", "x", "b"]


@pytest.mark.parametrize("kind", ["letters", "bpe", "bpe:", "bpe:x", "bpe:-3", "", "chars:3"])
def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(kind: str) -> None:
    with pytest.raises(ConfigError, match="--tokenizer takes chars, words or bpe:SIZE"):
        check_kind(kind, "--tokenizer")


def test_a_bpe_vocabulary_too_small_for_all_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="not 999999999999999999"):
        check_kind("bpe:999999999999999999", "--tokenizer")
    with pytest.raises(ConfigError, match="from 260"):
        check_kind("bpe:100", "--tokenizer")
