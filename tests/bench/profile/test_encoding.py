"""bench.profile.encoding encodes what it says it does."""

from __future__ import annotations

from typing import Any

import pytest

from attendant.service.engine.tasks import Ids
from bench.profile.encoding import encode_all

WORDS: list[Ids] = [(4,) * (1 + i % 5) for i in range(10)]


class Encoder:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []  # sources, the row after which they come, width

    def encode(self, sources: list[Ids], held: int, width: int) -> None:
        assert max(map(len, sources)) < width
        self.runs.append((len(sources), held, width))


@pytest.mark.parametrize("size", [1, 3, 10])
def test_every_word_is_encoded_once_and_no_more_at_a_time(size: int) -> None:
    encoder: Any = Encoder()
    encode_all(encoder, WORDS, size)
    assert sum(count for count, _, _ in encoder.runs) == len(WORDS)
    assert max(held + count for count, held, _ in encoder.runs) == size
