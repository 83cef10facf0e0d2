"""Texts of a request to the ids that the engine takes. Nothing is cut short: what does not fit is refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from attendant.service.engine.tasks import Ids
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.served import ServedModel
from attendant.service.text.tokenizer import Tokenizer

CHARACTERS_PER_TOKEN = 64  # a text longer than this times its limit is refused before any work on it
PIECES_NAMED = 5  # in an error
PIECES_MARKED = 100  # in an answer
LONGEST_PIECE = 40  # characters


def encode_source(
    served: ServedModel, text: str, field: str, prefix: Ids | None = None, allow_unknown: bool | None = None
) -> Ids:
    """The ids of a source text, without the end token; `prefix` replaces what the tokenizer file adds.

    `allow_unknown` None: as the model has it.
    """
    limit = served.description.max_source_length
    tokenizer = served.engine.source_tokenizer
    ids = _encode(tokenizer, text, field, limit, bare=prefix is not None)
    if len(ids) <= (tokenizer.added if prefix is None else 0):
        raise InvalidFieldError(f"{field} is empty; give a text.", field)
    if prefix:
        ids = (*prefix, *ids)
    if len(ids) > limit:
        raise InvalidFieldError(f"{field} has {len(ids)} tokens; this model takes at most {limit}.", field)
    unknown = served.description.special_ids["unk"]
    if unknown in ids:
        if not (served.allow_unknown if allow_unknown is None else allow_unknown):
            _refuse_unknown(tokenizer, text, ids, unknown, field)
        served.on_unknown()
    return ids


def unknown_pieces(served: ServedModel, text: str, ids: Ids) -> list[str]:
    """What the vocabulary lacks of a source that was encoded: each piece once, the first ones, cut short."""
    if served.description.special_ids["unk"] not in ids:
        return []
    pieces = dict.fromkeys(served.engine.source_tokenizer.unknown_pieces(text))
    return [piece[:LONGEST_PIECE] for piece in itertools.islice(pieces, PIECES_MARKED)]


def encode_target(
    served: ServedModel,
    text: str | Sequence[str],
    field: str,
    limit: int | None = None,
    allow_unknown: bool | None = None,
) -> Ids:
    """The ids of a target or of its beginning, text or tokens, without the end token; it may be empty.

    `limit` is the most tokens with the end token, where the request sets one below the model's.
    """
    longest = served.description.max_target_length
    limit = longest if limit is None else min(limit, longest)
    if not text:
        return ()
    if not isinstance(text, str):
        _refuse_long_target(len(text), limit, field)
        return tuple(_index(served, token, f"{field}[{place}]", allow_unknown) for place, token in enumerate(text))
    ids = _encode(served.engine.target_tokenizer, text, field, limit)
    _refuse_long_target(len(ids), limit, field)
    if not allow_unknown:
        _refuse_unknown(served.engine.target_tokenizer, text, ids, served.description.special_ids["unk"], field)
    return ids


def check_phrase(served: ServedModel, text: str, field: str) -> str:
    """A phrase of the target without the spaces around it, if the model can write it."""
    text, limit = text.strip(), served.max_target_length
    tokenizer = served.engine.target_tokenizer
    ids = _encode(tokenizer, text, field, limit, bare=True)
    if not ids:
        raise InvalidFieldError(f"{field} is empty; give a text.", field)
    _refuse_long_target(len(ids), limit, field)
    _refuse_unknown(tokenizer, text, ids, tokenizer.unknown, field, "leave it out")
    return text


def _encode(tokenizer: Tokenizer, text: str, field: str, limit: int, bare: bool = False) -> Ids:
    longest = CHARACTERS_PER_TOKEN * limit
    if len(text) > longest:
        raise InvalidFieldError(
            f"{field} has {len(text)} characters; at most {limit} tokens fit, and a text of more than {longest} "
            "characters is not even counted.",
            field,
        )
    refuse_lone_surrogate(text, field)
    return tokenizer.encode(text, bare)


def refuse_lone_surrogate(text: str, field: str) -> None:
    if not text.isascii() and (lone := _lone_surrogate(text)) is not None:
        raise InvalidFieldError(
            f"{field} has a lone surrogate (U+{ord(text[lone]):04X}, character {lone + 1}), which is no character; "
            "send valid Unicode.",
            field,
        )


def _lone_surrogate(text: str) -> int | None:
    return next((place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)


def _refuse_long_target(count: int, limit: int, field: str) -> None:
    if count + 1 > limit:
        raise InvalidFieldError(f"{field} has {count} tokens, {count + 1} with the end token; {limit} fit.", field)


def _refuse_unknown(
    tokenizer: Tokenizer,
    text: str,
    ids: Ids,
    unknown: int,
    field: str,
    advice: str = "leave it out, or set allow_unknown",
) -> None:
    if unknown not in ids:
        return
    pieces = list(dict.fromkeys(tokenizer.unknown_pieces(text)))
    named = ", ".join(f"{piece[:LONGEST_PIECE]!r}" for piece in pieces[:PIECES_NAMED])
    more = f" and {len(pieces) - PIECES_NAMED} more" if len(pieces) > PIECES_NAMED else ""
    raise InvalidFieldError(f"{field} has what the model's vocabulary lacks: {named}{more}; {advice}.", field)


def _index(served: ServedModel, token: str, field: str, allow_unknown: bool | None) -> int:
    # A lone surrogate is in no vocabulary, and cannot be passed to the tokenizer.
    index = served.engine.target_tokenizer.index(token) if _lone_surrogate(token) is None else None
    if index is None:
        raise InvalidFieldError(f"{field} is {token[:40]!r}, which is no token of the model's target side.", field)
    special = served.description.special_ids
    if index in special.values() and not (allow_unknown and index == special["unk"]):
        raise InvalidFieldError(f"{field} is {token!r}, a special token; only tokens of text can be given.", field)
    return index
