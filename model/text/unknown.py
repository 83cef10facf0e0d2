"""Texts with out-of-vocabulary pieces: the service refuses them, so evaluation and plots do not decode them either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attendant.model.corpus.pairs import read_pairs
from attendant.model.text.tokenizer import UNK, Tokenizer

NAMED = 5


def pieces_lacking(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, list[str]]:
    """{text: its out-of-vocabulary pieces}, for the texts that have any."""
    encoded = zip(texts, tokenizer.encode_batch(texts), strict=True)
    return {text: tokenizer.unknown_pieces(text) for text, ids in encoded if UNK in ids}


def named(pieces: Iterable[str]) -> str:
    """ "'H', 'ß' and 3 more": each piece once."""
    distinct = list(dict.fromkeys(pieces))
    more = f" and {len(distinct) - NAMED} more" if len(distinct) > NAMED else ""
    return ", ".join(repr(piece[:40]) for piece in distinct[:NAMED]) + more


def warnings_for(valid: Path, source: Tokenizer, target: Tokenizer) -> list[str]:
    """A warning for each side of a validation file that has out-of-vocabulary pieces."""
    found = []
    sides = zip(*read_pairs(valid), strict=True)
    effect = ("they are read as the unknown token", "these targets cannot be produced")
    for side, tokenizer, texts, consequence in zip(
        ("sources", "targets"), (source, target), sides, effect, strict=True
    ):
        lacking = pieces_lacking(tokenizer, list(dict.fromkeys(texts)))
        if lacking:
            pieces = named(piece for listed in lacking.values() for piece in listed)
            found.append(
                f"warning: {len(lacking)} of the validation {side} have what the training data lacks: {pieces}; "
                f"{consequence}."
            )
    return found
