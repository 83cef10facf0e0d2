"""Another framework's vocabulary in our order: padding, unknown, start and end first, the rest as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from torch import Tensor

from attendant.model.importers.files.text_models import TextModel
from attendant.model.importers.problems import Problems
from attendant.model.text.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, UNK

ZEROS = -1  # in place of an id: the token has no row in the embedding, and gets zeros


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The other framework's tokens by its own ids."""

    tokens: list[str]
    pad: int = ZEROS
    unk: int
    start: int = ZEROS  # what its decoder begins with
    end: int
    control: frozenset[int] = frozenset()  # ids of tokens that no text may produce
    languages: dict[str, int] = field(default_factory=dict)  # code: id


Tables = tuple[Tensor, Tensor, Tensor]  # source embedding, target embedding and output, (V, D) each


@dataclass(frozen=True)
class Layout:
    """By our ids: the row in the other framework's tables, and the token's name."""

    rows: list[int]
    names: list[str]
    blocked: list[int]  # ids that must never be generated

    @property
    def size(self) -> int:
        return len(self.rows)

    def id_of(self, foreign: int) -> int:
        """Our id of the other framework's token; PAD or BOS only if no other of our ids has its row."""
        for special in (UNK, EOS):
            if foreign == self.rows[special]:
                return special
        if foreign in self.rows[len(SPECIAL_TOKENS) :]:
            return self.rows.index(foreign, len(SPECIAL_TOKENS))
        return self.rows.index(foreign)

    def table(self, matrix: Tensor) -> Tensor:
        """(V, ...) of the other framework -> (size, ...) in our order."""
        index = torch.tensor(self.rows)
        found = matrix[index.clamp_min(0)]
        found[index == ZEROS] = 0
        return found


def ids_of(entries: Mapping[str, Any], name: str, problems: Problems) -> dict[int, str]:
    """{id: token} of a table of token: id; `name` is the file's, for problems."""
    found: dict[int, str] = {}
    for token, index in entries.items():
        if not isinstance(index, int) or isinstance(index, bool):
            problems.add(f"{name}: {token!r:.40} has the id {index!r:.40}, which is no whole number")
            break
        if index in found:
            problems.add(f"{name}: {token!r:.40} and {found[index]!r:.40} have the same id, {index!r:.40}")
            break
        found[index] = token
    return found


def tokens_by_id(entries: Mapping[str, Any], size: int, name: str, problems: Problems) -> list[str]:
    """The tokens of a table of token: id, by id; an id that it lacks is called `<unused ID>`."""
    by_id = ids_of(entries, name, problems)
    for index in [index for index in by_id if not 0 <= index < size][:1]:
        problems.add(f"{name}: {by_id[index]!r:.40} has the id {index!r:.40}, and the model has {size:,} tokens")
    return [by_id.get(i, f"<unused {i}>") for i in range(size)]


def arrange(vocabulary: Vocabulary, missing: Iterable[str] = ()) -> Layout:
    """Our layout of a vocabulary; the pieces in `missing` that it lacks are appended, with the unknown token's row."""
    v = vocabulary
    rows, names = [v.pad, v.unk, v.start, v.end], list(SPECIAL_TOKENS)
    special, codes = {v.pad, v.unk, v.start, v.end}, {index: code for code, index in v.languages.items()}
    seen = set(names)
    for index, token in enumerate(v.tokens):
        if index in special:
            continue
        if index in codes:
            name = f"<language {codes[index]}>"
        elif index in v.control or token in seen:
            name = f"<special {token}>" if f"<special {token}>" not in seen else f"<special {token} {index}>"
        else:
            name = token
        rows.append(index)
        names.append(name)
        seen.add(name)
    extra = [piece for piece in dict.fromkeys(missing) if piece not in seen]
    blocked = [PAD, BOS, *range(len(rows), len(rows) + len(extra))]
    return Layout(rows + [v.unk] * len(extra), names + extra, blocked)


def arrange_both(vocabularies: Sequence[Vocabulary], texts: Sequence[TextModel]) -> tuple[Layout, Layout]:
    """The layouts of source and target with their text models; equal vocabularies share one."""
    first, second = vocabularies
    if first == second:
        layout = arrange(first, [*texts[0].pieces_of_text, *texts[1].pieces_of_text])
        return layout, layout
    return arrange(first, texts[0].pieces_of_text), arrange(second, texts[1].pieces_of_text)


def add_template(backend: Backend, before: Sequence[int], after: Sequence[int] = ()) -> None:
    """Put tokens around every text that the tokenizer encodes."""
    if not before and not after:
        return
    names = {index: f"T{index}" for index in (*before, *after)}
    backend.post_processor = processors.TemplateProcessing(
        single=[*(names[i] for i in before), "$A", *(names[i] for i in after)],
        special_tokens=[
            {"id": name, "ids": [index], "tokens": [backend.id_to_token(index)]} for index, name in names.items()
        ],
    )
