"""SentencePiece models (.spm, .model) as `tokenizers`: Unigram or BPE, with the same pieces and scores.

The file is a protocol buffer; only the few fields that decide how text is cut are read.
Rare strings are split differently from SentencePiece: combining marks, a literal ▁, ties in runs of one character, the
name of a byte that characters are spelled in (<0x41>), which is read as that byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from attendant.model.importers.problems import Problems
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
SPACE = "▁"
OUTSIDE = "  "  # prefix of tokens that no text may yield: a text has no spaces left when it is split into pieces
ALWAYS = 100.0  # score per character of a user-defined piece, high enough to win always
FIRST_MARK, MOST_MARKS = 0xF0000, 1000  # private characters, which no table of normalization changes
LARGEST = 64 * 2**20  # bytes


@dataclass
class SentencePiece:
    """The content of a model file. `pieces` are in its own order, which seldom is that of the network's ids."""

    kind: str
    pieces: list[tuple[str, float, int]]  # text, score, type
    charsmap: bytes  # normalization, precompiled
    dummy_prefix: bool  # a space before the text
    squeeze_spaces: bool
    added: list[AddedToken] = field(default_factory=list)  # found in a text before it is cut; each is a piece too

    @property
    def bytes_of_text(self) -> list[str]:
        """<0x00> to <0xFF>, in which characters that are no piece are spelled; empty where the model has none."""
        return [text for text, _, kind in self.pieces if kind == BYTE]

    @property
    def scores(self) -> dict[str, float]:
        """{piece: score} of what a text can yield; a user-defined piece wins over its parts, as in SentencePiece."""
        return {
            text: score if kind == NORMAL else ALWAYS * len(text)
            for text, score, kind in self.pieces
            if kind in (NORMAL, USER_DEFINED)
        }

    @property
    def pieces_of_text(self) -> list[str]:
        return [*self.scores, *self.bytes_of_text]

    def name(self, token: str) -> str:
        return token

    def backend(self, names: Sequence[str]) -> Backend:
        """A tokenizer with these tokens in this order; no text yields those that are not pieces."""
        scores, spelled = self.scores, self.bytes_of_text
        scores |= dict.fromkeys(spelled, min(scores.values(), default=0.0))
        named = [
            name if i < len(SPECIAL_TOKENS) or name in scores or " " in name else OUTSIDE + name
            for i, name in enumerate(names)
        ]
        if self.kind == "unigram":
            listed = [(name, scores.get(name, 0.0)) for name in named]
            backend = Backend(models.Unigram(listed, unk_id=UNK, byte_fallback=bool(spelled)))
        else:
            vocabulary = {name: i for i, name in enumerate(named)}
            unknown = SPECIAL_TOKENS[UNK]
            backend = Backend(models.BPE(vocabulary, _merges(scores), unk_token=unknown, fuse_unk=True))
        steps = self._normalization()
        if self.squeeze_spaces:
            steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
        if steps:
            backend.normalizer = normalizers.Sequence(steps)
        words = not any(SPACE in text[1:] for text in scores)
        scheme = "always" if self.dummy_prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=words)
        backend.decoder = decoder(self.dummy_prefix, bool(spelled))
        backend.add_tokens([token for token in self.added if token.content in scores])  # they keep their ids
        return backend

    def _normalization(self) -> list[Any]:
        """The table, which leaves user-defined pieces (a line's end, say) as they are."""
        if not self.charsmap:
            return []
        table = normalizers.Precompiled(self.charsmap)
        defined = [text for text, _, kind in self.pieces if kind == USER_DEFINED and table.normalize_str(text) != text]
        marks = [(text, chr(FIRST_MARK + i)) for i, text in enumerate(defined[:MOST_MARKS])]
        before = [normalizers.Replace(text, mark) for text, mark in marks]
        return [*before, table, *(normalizers.Replace(mark, text) for text, mark in marks)]


def decoder(dummy_prefix: bool = True, spelled: bool = False) -> decoders.Decoder:
    """Pieces to text, without control tokens and without the space of the dummy prefix."""
    steps = [
        decoders.Replace(Regex("^<(language|special) .*>$"), ""),
        decoders.Replace(Regex(f"^{OUTSIDE}"), ""),
        decoders.Replace(SPACE, " "),
        *([decoders.ByteFallback()] if spelled else []),
        decoders.Fuse(),
    ]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if dummy_prefix else steps)


def read(path: Path, problems: Problems) -> SentencePiece | None:
    """The model in a file; None, with problems added, if `tokenizers` cannot do the same."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST // 2**20} MiB")
        found = parse(path.read_bytes())
    except OSError as error:
        problems.add(f"{path.name} cannot be read: {error.strerror}")
        return None
    except (ValueError, struct.error, IndexError) as error:
        problems.add(f"{path.name} is no whole SentencePiece model: {error}")
        return None
    types = {kind for _, _, kind in found.pieces}
    before = len(problems.found)
    if found.kind not in ("unigram", "bpe"):
        problems.add(f"{path.name} is a SentencePiece model of type {found.kind}; unigram and bpe can be imported")
    if BYTE in types and found.kind != "unigram":
        problems.add(
            f"{path.name} spells unknown characters in bytes (byte_fallback), which tokenizers' bpe does otherwise"
        )
    if found.kind == "bpe" and types & {USER_DEFINED, UNUSED}:
        problems.add(f"{path.name} is bpe with user-defined or unused pieces, which tokenizers cuts otherwise")
    if not found.scores:
        problems.add(f"{path.name} has no pieces")
    if len({text for text, _, _ in found.pieces}) < len(found.pieces):
        problems.add(f"{path.name} has a piece twice")
    if len(problems.found) > before:
        return None
    try:
        found.backend([*SPECIAL_TOKENS, *found.scores]).encode("a b")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers panics on an invalid normalization table
        problems.add(f"{path.name} has a normalization table that tokenizers cannot read: {str(error)[:80]}")
        return None
    return found


def differences(path: Path, backend: Backend, texts: Sequence[str]) -> list[str] | None:
    """The texts that SentencePiece itself splits differently; None if its library is not installed."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ModuleNotFoundError:
        return None
    theirs = SentencePieceProcessor(model_file=str(path)).encode(list(texts), out_type=str)
    mine = [encoding.ids for encoding in backend.encode_batch(list(texts), add_special_tokens=False)]
    unknown = backend.token_to_id(SPECIAL_TOKENS[UNK])
    known = backend.get_vocab()
    return [
        text
        for text, pieces, ids in zip(texts, theirs, mine, strict=True)
        if [known.get(piece, unknown) for piece in pieces] != ids
    ]


def parse(data: bytes) -> SentencePiece:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in fields(data):
        if number == 1:
            piece = dict(fields(_bytes(value)))
            score: float = struct.unpack("<f", _bytes(piece.get(2, b"\0\0\0\0")))[0]
            if not abs(score) < 1e30:
                raise ValueError("a piece has no finite score")
            pieces.append((_bytes(piece.get(1, b"")).decode("utf-8"), score, _number(piece.get(3, NORMAL))))
        elif number in (2, 3):
            (trainer if number == 2 else normalizer).update(fields(_bytes(value)))
    if not pieces:
        raise ValueError("it lists no pieces")
    if trainer.get(24):
        raise ValueError("it writes spaces after words (treat_whitespace_as_suffix), which is not supported")
    if not normalizer.get(5, 1):
        raise ValueError("it does not escape spaces, which is not supported")
    return SentencePiece(
        kind=KINDS.get(trainer.get(3, 1), "unknown"),
        pieces=pieces,
        charsmap=_bytes(normalizer.get(2, b"")),
        dummy_prefix=bool(normalizer.get(3, 1)),
        squeeze_spaces=bool(normalizer.get(4, 1)),
    )


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message: numbers as int, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"it has a field of wire type {kind}")
        if at + size > len(data):
            raise ValueError("it is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("it is cut short")
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7
    raise ValueError("it has a number of more than ten bytes")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("it has a number where a text should be")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("it has a text where a number should be")
    return value


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the piece with the best score first."""
    order = sorted((text for text in scores if len(text) > 1), key=lambda text: -scores[text])
    return [
        (text[:i], text[i:]) for text in order for i in range(1, len(text)) if text[:i] in scores and text[i:] in scores
    ]
