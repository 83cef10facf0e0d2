"""Where tokens are in their text: of every kind of tokenizer, in any script, down to bytes of a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from attendant.model.text.tokenizer import learn
from attendant.service.text.tokenizer import Tokenizer, trimmed

SPECIAL = {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
TEXTS = [
    "the quick brown fox",
    " two  spaces ",
    "שלום עולם",
    "مرحبا بالعالم",
    "日本語のテキスト",
    "naïve café",
    "👩‍👩‍👧 family 🏳️‍🌈",
    "e\u0301 and é",
    "<b>bold</b> & more",
    "हिन्दी",
    "a\tb\nc",
]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("bytes") / "bpe.json"
    learn("bpe:280", ["the quick brown fox the quick"]).save(path)
    return Tokenizer(path, SPECIAL)


def made(backend: Backend, path: Path) -> Tokenizer:
    backend.save(str(path))
    return Tokenizer(path, SPECIAL)


def unigram(pieces: list[str]) -> models.Unigram:
    vocabulary = [(token, 0.0) for token in ("<pad>", "<unk>", "<s>", "</s>")] + [(piece, -1.0) for piece in pieces]
    return models.Unigram(vocabulary, 1, byte_fallback=False)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_a_character_have_its_place(byte_level: Tokenizer, text: str) -> None:
    ids, spans = byte_level.encode(text), byte_level.spans(text)
    assert len(ids) == len(spans)
    covered = set()
    for index, span in zip(ids, spans, strict=True):
        assert span is not None
        start, stop = span
        assert 0 <= start < stop <= len(text)
        piece, told = text[start:stop], byte_level.text(index)
        covered |= set(range(start, stop))
        if "<0x" not in told:
            assert piece.strip() == told.strip()
        else:  # some bytes of the piece
            assert bytes_of(byte_level.token(index)) in piece.encode()
    assert {place for place, character in enumerate(text) if not character.isspace()} <= covered


def bytes_of(token: str) -> bytes:
    from attendant.service.text.token_text import BYTES

    return bytes(BYTES[character] for character in token)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_decoded_has_the_places_of_what_was_encoded(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    decoded, spans = byte_level.decode_spans(ids)
    assert decoded == text
    assert spans == byte_level.spans(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=12))
def test_any_text_decodes_to_the_places_it_was_encoded_from(byte_level: Tokenizer, text: str) -> None:
    decoded, spans = byte_level.decode_spans(byte_level.encode(text))
    assert decoded == text
    assert spans == byte_level.spans(text)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(4, 259), max_size=12))
def test_any_bytes_have_places_in_their_text_in_order(byte_level: Tokenizer, ids: list[int]) -> None:
    text, spans = byte_level.decode_spans(ids)
    assert text == byte_level.decode(ids)
    assert all(0 <= start <= stop <= len(text) for start, stop in spans)
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)


def test_half_a_character_at_the_end_has_its_place(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a👍")[:3]
    text, spans = byte_level.decode_spans(ids)
    assert text == "a\N{REPLACEMENT CHARACTER}"
    assert spans == [(0, 1), (1, 2), (1, 2)]


@pytest.mark.parametrize("kind", ["chars", "words"])
def test_characters_and_words_are_what_their_spans_say(tmp_path: Path, kind: str) -> None:
    text = "שלום 👍🏽 a b"
    path = tmp_path / "listed.json"
    learn(kind, [text]).save(path)
    tokenizer = Tokenizer(path, SPECIAL)
    ids = tokenizer.encode(text)
    for spans in (tokenizer.spans(text), tokenizer.decode_spans(ids)[1]):
        assert [text[start:stop] for start, stop in spans if (start, stop)] == [tokenizer.token(i) for i in ids]  # type: ignore[misc]


def test_spaces_of_sentencepiece_are_left_out(tmp_path: Path) -> None:
    backend = Backend(unigram(["▁hello", "▁wor", "ld"]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = made(backend, tmp_path / "pieces.json")
    ids = tokenizer.encode("hello world")
    assert tokenizer.spans("hello world") == [(0, 5), (6, 9), (9, 11)]
    assert tokenizer.decode_spans(ids) == ("hello world", [(0, 5), (6, 9), (9, 11)])


def test_places_are_those_of_the_text_as_given_not_as_normalized(tmp_path: Path) -> None:
    backend = Backend(unigram(["f", "i", "n", "e", "é", "1"]))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer = made(backend, tmp_path / "normalized.json")
    assert tokenizer.spans("ﬁNe①") == [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4)]
    assert tokenizer.spans("e\N{COMBINING ACUTE ACCENT}n") == [(0, 2), (2, 3)]


def test_tokens_that_the_file_adds_have_no_place(tmp_path: Path) -> None:
    backend = Backend(unigram(["h", "i", "__en__"]))
    backend.post_processor = processors.TemplateProcessing("__en__ $A", special_tokens=[("__en__", 6)])
    tokenizer = made(backend, tmp_path / "template.json")
    assert tokenizer.spans("hi") == [None, (0, 1), (1, 2)]
    assert tokenizer.spans("hi", bare=True) == [(0, 1), (1, 2)]


def test_word_ends_that_the_decoder_turns_into_spaces_are_left_out(tmp_path: Path) -> None:
    vocabulary = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "a</w>": 4, "b": 5, "c</w>": 6}
    backend = Backend(models.WordLevel(vocabulary, "<unk>"))
    backend.decoder = decoders.BPEDecoder("</w>")
    tokenizer = made(backend, tmp_path / "ends.json")
    assert tokenizer.decode_spans([4, 5, 6, 4]) == ("a bc a", [(0, 1), (2, 3), (3, 4), (5, 6)])


def test_trimmed_keeps_a_span_of_spaces_only() -> None:
    assert trimmed("a  b", 0, 2) == (0, 1)
    assert trimmed("a  b", 1, 4) == (3, 4)
    assert trimmed("a  b", 1, 3) == (1, 3)
    assert trimmed("a  b", 2, 2) == (2, 2)


@pytest.mark.parametrize("gap", [0, 5])
def test_all_tokens_at_once_are_those_of_each_id(tmp_path: Path, gap: int) -> None:
    words = ["<pad>", "<unk>", "<s>", "</s>", "\N{LOWER ONE EIGHTH BLOCK}a", "b"]
    vocabulary = {word: index + gap * (index == len(words) - 1) for index, word in enumerate(words)}
    tokenizer = made(Backend(models.WordLevel(vocabulary, unk_token="<unk>")), tmp_path / "words.json")
    tokens = tokenizer.tokens()
    assert tokens == [tokenizer.token(index) for index in range(tokenizer.size)]
    assert tokenizer.texts(tokens) == [tokenizer.text(index) for index in range(tokenizer.size)]
