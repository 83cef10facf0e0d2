"""Which rows the batched search asks of a stepper; what it finds is compared with `model.reference` elsewhere."""

from __future__ import annotations

import numpy as np

from attendant.model.search.decode import decode_sources
from attendant.model.text.tokenizer import EOS


class Copier:
    """Repeats its source, then ends; a second best token is always near. Keeps the number of rows of every step."""

    max_length, target_vocab = 16, 10

    def start(self, sources: list[list[int]]) -> None:
        self.rows = [(source, 0) for source in sources]
        self.row_counts: list[int] = []
        self.reordered: list[list[int]] = []

    def step(self, tokens: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        assert len(tokens) == len(self.rows)
        self.row_counts.append(len(tokens))
        logprobs = np.full((len(tokens), self.target_vocab), np.log(0.01))
        logprobs[:, EOS] = np.log(0.001)
        for row, (source, position) in enumerate(self.rows):
            logprobs[row, (*source, EOS)[min(position, len(source))]] = np.log(0.8)
        self.rows = [(source, position + 1) for source, position in self.rows]
        top = np.argsort(-logprobs, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(logprobs, top, axis=1), top

    def reorder(self, rows: np.ndarray) -> None:
        self.reordered.append(rows.tolist())
        self.rows = [self.rows[row] for row in rows]


def test_a_source_that_is_done_leaves_the_batch() -> None:
    stepper = Copier()
    assert decode_sources(stepper, [[4, 5, 6, 7, 8], [9], [5, 6, 7]]) == [[4, 5, 6, 7, 8], [9], [5, 6, 7]]
    assert stepper.row_counts == [3, 3, 2, 2, 1, 1]


def test_rows_are_reordered_only_where_they_change() -> None:
    stepper = Copier()
    decode_sources(stepper, [[4, 5, 6], [7, 8, 9]])
    assert stepper.reordered == []


def test_a_beam_starts_from_one_row_for_each_source() -> None:
    stepper = Copier()
    assert decode_sources(stepper, [[4, 5], [6, 7]], beam_size=3) == [[4, 5], [6, 7]]
    assert stepper.row_counts[:2] == [2, 6]
