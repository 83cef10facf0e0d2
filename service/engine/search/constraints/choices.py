"""Whole answers of which one must come, as a trie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Ids = tuple[int, ...]
END = -1  # the key of a node at which an answer is whole


class Choices:
    """Equal and hashed by its answers; never changed, so that the tasks of a request share one."""

    def __init__(self, answers: Iterable[Ids]) -> None:
        self.answers = tuple(dict.fromkeys(answers))
        self._hash = hash(self.answers)
        self._root: dict[int, Any] = {}
        for ids in self.answers:
            node = self._root
            for token in ids:
                node = node.setdefault(token, {})
            node[END] = {}

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choices) and self.answers == other.answers

    def next_tokens(self, ids: Sequence[int], eos: int) -> list[int]:
        """The tokens that continue an answer after these, the end token where one is whole; none if no answer does."""
        node = self._root
        for token in ids:
            node = node.get(token, {})
        return sorted(eos if token == END else token for token in node)
