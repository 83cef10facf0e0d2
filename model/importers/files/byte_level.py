"""GPT-2's byte-level BPE, with which any text can be written, as `tokenizers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend


@dataclass
class ByteLevel:
    """Pieces and their merges (none: every byte is a token). Added tokens are found in a text before it is cut."""

    vocabulary: dict[str, Any]  # added tokens included
    merges: list[tuple[str, str]]
    added: list[AddedToken]
    prefix_space: bool  # whether a space is put before every text

    @property
    def pieces_of_text(self) -> list[str]:
        return []

    def backend(self, names: list[str]) -> Backend:
        known = {name: i for i, name in enumerate(names)}
        merges = [pair for pair in self.merges if {*pair, pair[0] + pair[1]} <= known.keys()]
        backend = Backend(models.BPE(known, merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.prefix_space)
        # Special tokens that a model writes are not part of its text; a piece of text has no space in its name.
        backend.decoder = decoders.Sequence([decoders.Replace(Regex("^<special .*>$"), ""), decoders.ByteLevel()])
        backend.add_tokens([token for token in self.added if token.content in known])  # they keep their ids
        return backend
