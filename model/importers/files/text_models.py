"""How a text becomes tokens of someone else's vocabulary: SentencePiece, codes of subword-nmt or fastBPE, or words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from attendant.model.importers.files import sentencepiece
from attendant.model.importers.problems import Problems
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK

JOINER, WORD_END = "@@", "</w>"
LARGEST = 256 * 2**20  # bytes


class TextModel(Protocol):
    @property
    def pieces_of_text(self) -> Iterable[str]:
        """Every piece that encoding a text can yield, by our names; empty if that is the vocabulary itself."""

    def name(self, token: str) -> str:
        """Our name for a token of the other framework's vocabulary."""

    def backend(self, names: Sequence[str]) -> Backend:
        """A tokenizer with these tokens in this order."""


@dataclass
class Words:
    """Tokens are separated by white space."""

    pieces_of_text: list[str] = field(default_factory=list)

    def name(self, token: str) -> str:
        return token

    def backend(self, names: Sequence[str]) -> Backend:
        vocabulary = {name: i for i, name in enumerate(names)}
        backend = Backend(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return backend


@dataclass
class Characters:
    """Each character is a token."""

    pieces_of_text: list[str] = field(default_factory=list)

    def name(self, token: str) -> str:
        return token

    def backend(self, names: Sequence[str]) -> Backend:
        backend = Words().backend(names)
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return backend


@dataclass
class BpeCodes:
    """Merges within words. Their `ab@@` is our `ab`, and their `ab`, which ends a word, our `ab</w>`."""

    merges: list[tuple[str, str]]

    @property
    def pieces_of_text(self) -> list[str]:
        return list(dict.fromkeys(piece for a, b in self.merges for piece in (a, b, a + b)))

    def name(self, token: str) -> str:
        return token.removesuffix(JOINER) if token.endswith(JOINER) and token != JOINER else token + WORD_END

    def backend(self, names: Sequence[str]) -> Backend:
        vocabulary = {name: i for i, name in enumerate(names)}
        backend = Backend(
            models.BPE(vocabulary, self.merges, unk_token=SPECIAL_TOKENS[UNK], end_of_word_suffix=WORD_END)
        )
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.decoder = decoders.BPEDecoder(WORD_END)
        return backend


def choose(spm: Path | None, codes: Path | None, problems: Problems) -> TextModel | None:
    """The text model of one side; None, with problems, where its file cannot be used."""
    if spm and codes:
        problems.add("give SentencePiece or BPE codes, not both")
    if spm:
        return sentencepiece.read(spm, problems)
    return read_codes(codes, problems) if codes else Words()


def hints(text: Any, tokens: Iterable[str]) -> list[str]:
    """A note for the user if the tokens are subwords, but neither a SentencePiece model nor BPE codes were given."""
    if not isinstance(text, Words):
        return []
    for mark, flag in ((sentencepiece.SPACE, "--sentencepiece"), (JOINER, "--bpe-codes")):
        if any(token.startswith(mark) or token.endswith(mark) for token in tokens):
            return [f"its tokens are pieces of words (as with {mark}): without {flag}, a text must be cut into them"]
    return []


def read_codes(path: Path, problems: Problems) -> BpeCodes | None:
    """Lines of `a b`, after `#version: 0.2`, as subword-nmt writes them, or `a b count`, as fastBPE does."""
    lines = read_lines(path, problems)
    if lines is None:
        return None
    versioned = bool(lines) and lines[0].startswith("#version:")
    if versioned and lines[0].split(":")[1].strip() != "0.2":
        problems.add(f"{path.name} has {lines[0]!r:.40}; codes of version 0.2 can be imported")
    rows = [line.split(" ") for line in (lines[1:] if versioned else lines) if line]
    if not rows or any(len(row) not in (2, 3) or not row[0] or not row[1] for row in rows):
        problems.add(f"{path.name} is no file of BPE codes: a line holds two pieces, and in fastBPE's a count")
        return None
    if not versioned and any(len(row) == 2 for row in rows):
        problems.add(f"{path.name} has no '#version: 0.2' line: the end of words is a symbol of its own there")
    merges = list(dict.fromkeys((row[0], row[1]) for row in rows))
    return BpeCodes(merges)


def read_lines(path: Path, problems: Problems) -> list[str] | None:
    try:
        if path.stat().st_size > LARGEST:
            problems.add(f"{path.name} is larger than {LARGEST // 2**20} MiB")
            return None
        return path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except OSError as error:
        problems.add(f"{path.name} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        problems.add(f"{path.name} is not UTF-8")
    return None
