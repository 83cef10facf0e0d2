"""A bundle's tokenizers: text to ids and back."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding, pre_tokenizers
from tokenizers import Tokenizer as Backend

from attendant.service.errors import StartError
from attendant.service.text.token_text import token_text

LONG_TEXT = 2000  # characters; longer texts are encoded with the GIL released


UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a byte-level tokenizer decodes part of a character to

Span = tuple[int, int]  # start and stop (exclusive), in code points


def trimmed(text: str, start: int, stop: int) -> Span:
    """A span without the spaces at its ends, unless it is of spaces only."""
    piece = text[start:stop]
    if not piece or piece.isspace():
        return start, stop
    return stop - len(piece.lstrip()), start + len(piece.rstrip())


class Tokenizer:
    def __init__(self, path: Path, special_ids: dict[str, int]) -> None:
        self._backend = _read(path)
        self.unknown = special_ids["unk"]
        self._silent = {special_ids[name] for name in ("pad", "bos", "eos")}
        self.size: int = self._backend.get_vocab_size()
        self._byte_level = isinstance(self._backend.pre_tokenizer, pre_tokenizers.ByteLevel)
        self.added = len(self._backend.encode("").ids)  # tokens that the file adds to every text, such as a language

    def encode(self, text: str, bare: bool = False) -> tuple[int, ...]:
        """The ids of a text, without start or end token; `bare`: also without those that the tokenizer file adds."""
        return tuple(self._encode(text, bare).ids)

    def encode_all(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of many texts, each as `encode` gives them with `bare`; other threads run meanwhile."""
        return [tuple(encoding.ids) for encoding in self._backend.encode_batch(list(texts), add_special_tokens=False)]

    def spans(self, text: str, bare: bool = False) -> list[Span | None]:
        """Where each token of `encode` is in the text; None for one that the tokenizer file adds.

        Tokens of one character, such as its bytes, all have the span of that character.
        """
        encoding = self._encode(text, bare)
        starts = {start for start, _ in encoding.offsets}
        return [
            None if added else trimmed(text, start, _with_marks(text, stop, starts))
            for (start, stop), added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        ]

    def decode_spans(self, ids: Sequence[int]) -> tuple[str, list[Span]]:
        """The decoded text, and the span of each id: what it adds to the text of the ids before it."""
        text = self.decode(ids)
        spans, before = [], 0
        for count in range(1, len(ids) + 1):
            partial = self.decode(ids[:count])
            agreed = _agreed(partial, text, before)
            half = agreed < min(len(partial), len(text)) and set(partial[agreed:]) == {UNFINISHED}
            more_of_one = agreed == before and text[:before].endswith(UNFINISHED)  # bytes that never become a character
            spans.append(trimmed(text, before - more_of_one, agreed + half))
            before = agreed
        return text, spans

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; start, end and padding tokens are left out."""
        return str(self._backend.decode([i for i in ids if i not in self._silent], skip_special_tokens=False))

    def token(self, index: int) -> str:
        return str(self._backend.id_to_token(index))

    def tokens(self) -> list[str]:
        """Every token, by its id: what `token` returns for each, many times as fast."""
        vocabulary: dict[str, int] = self._backend.get_vocab()
        found = sorted(vocabulary, key=vocabulary.__getitem__)
        whole = len(found) == self.size and vocabulary[found[-1]] == self.size - 1
        return found if whole else [self.token(index) for index in range(self.size)]  # ids with gaps

    def text(self, index: int) -> str:
        """A token as readable text."""
        return token_text(self.token(index), self._byte_level)

    def texts(self, tokens: Sequence[str]) -> list[str]:
        """Tokens as readable texts."""
        return [token_text(token, self._byte_level) for token in tokens]

    def index(self, token: str) -> int | None:
        """The id of a token, or None if the vocabulary lacks it."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def unknown_pieces(self, text: str) -> list[str]:
        """The pieces of a text that the vocabulary lacks, in order."""
        encoding = self._encode(text)
        starts = {start for start, _ in encoding.offsets}
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [
            text[start : _with_marks(text, stop, starts)] for index, (start, stop) in pairs if index == self.unknown
        ]

    def _encode(self, text: str, bare: bool = False) -> Encoding:
        """`encode` holds the GIL; `encode_batch` releases it, which costs more than encoding a short text."""
        if len(text) <= LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=not bare)
        return self._backend.encode_batch([text], add_special_tokens=not bare)[0]


def _read(path: Path) -> Backend:
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises no narrower kind
        raise StartError(f"{path} cannot be read as a tokenizer: {error}.") from None


def _agreed(partial: str, text: str, start: int) -> int:
    """Length of the common prefix; the first `start` characters are known to be equal."""
    shortest = min(len(partial), len(text))
    return next((place for place in range(start, shortest) if partial[place] != text[place]), max(start, shortest))


def _with_marks(text: str, stop: int, starts: set[int]) -> int:
    """A token's end, moved past the combining marks that a normalizer composed with its last character."""
    while 0 < stop < len(text) and stop not in starts and unicodedata.combining(text[stop]):
        stop += 1
    return stop
