"""Batched beam search: how `attendant train`, `attendant evaluate` and the export check decode many sources.

The search is numpy over the top-k candidates of a `Stepper`: torch's is `model.stepper`, ONNX's `export.runner`.
`model.reference` is the slow and obvious search that this one is tested against.

B sources   K beam size   R rows: one live hypothesis of one source each   C candidates of a row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from attendant.common.progress import Count
from attendant.model.text.tokenizer import BOS, EOS, PAD

if TYPE_CHECKING:
    from attendant.model.transformer import Transformer

BATCH_ROWS = 512
NEVER = float("-inf")

Array = np.ndarray[Any, Any]


class Stepper(Protocol):
    """A model that decodes a batch of rows, one token for each row at a time."""

    max_length: int  # tokens of a target, the end token included
    target_vocab: int

    def start(self, sources: list[list[int]]) -> None:
        """Encode the sources: one row each, in order, with no target token yet."""

    def step(self, tokens: Array, k: int) -> tuple[Array, Array]:
        """Append a token to each row: tokens (R,) -> log-probabilities and ids of the top k next tokens, (R, k)."""

    def reorder(self, rows: Array) -> None:
        """Row i becomes what row rows[i] was; rows may be repeated or left out."""


def decode_all(
    model: Transformer,
    sources: list[list[int]],
    beam_size: int = 1,
    length_penalty: float = 1.0,
    max_length: int | None = None,
    early_stopping: bool | str = False,
    start: Sequence[int] = (),
    rows: int = BATCH_ROWS,
    shows: bool = True,
) -> list[list[int]]:
    """The best target of each source by a torch model (ids without start and end), in the order of the sources.

    `rows`: hypotheses that are decoded together at most; `shows` progress.
    """
    from attendant.model.search.stepper import TorchStepper  # torch is needed for torch models alone

    stepper = TorchStepper(model)
    stepper.max_length = max_length or stepper.max_length
    return decode_sources(stepper, sources, beam_size, length_penalty, early_stopping, start, rows, shows)


def decode_sources(
    stepper: Stepper,
    sources: list[list[int]],
    beam_size: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    start: Sequence[int] = (),
    rows: int = BATCH_ROWS,
    shows: bool = True,
) -> list[list[int]]:
    """The best target of each source (ids without start and end), in the order of the sources.

    `start`: tokens that every target starts with; they count in its length, but are not part of the result.
    `rows`: hypotheses that are decoded together at most; `shows` progress.
    """
    results: list[list[int]] = [[] for _ in sources]
    progress = Count("decoding", "sources", len(sources), shows=shows)
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batch = max(1, rows // beam_size)
    for first in range(0, len(by_length), batch):
        chosen = by_length[first : first + batch]
        batched = [sources[i] for i in chosen]
        found = _Search(stepper, batched, beam_size, length_penalty, early_stopping, start).run()
        for i, ids in zip(chosen, found, strict=True):
            results[i] = ids
        progress.add(len(chosen))
    progress.close()
    return results


class _Search:
    """One batch. Rows are the live hypotheses, at most beam_size for each source, best first and grouped by source."""

    def __init__(
        self,
        stepper: Stepper,
        sources: list[list[int]],
        beam_size: int,
        length_penalty: float,
        early_stopping: bool | str,
        start: Sequence[int] = (),
    ) -> None:
        self.stepper, self.beam_size, self.penalty, self.early = stepper, beam_size, length_penalty, early_stopping
        self.considered = 2 * beam_size if beam_size > 1 else 1  # candidates of a source; a beam of one is greedy
        # Of a row, only the best beam_size tokens and the end token can matter; 2 more, in case PAD and BOS rank above.
        self.candidates = min(beam_size + (beam_size > 1) + 2, stepper.target_vocab)
        count = len(sources)
        stepper.start(sources)
        *before, last = (BOS, *start)
        for token in before:
            stepper.step(np.full(count, token), 1)
        self.started = len(before)
        self.source = np.arange(count)  # (R,) the source that each row belongs to
        self.slot = np.zeros(count, np.int64)  # (R,) each row's rank among the rows of its source
        self.sums = np.zeros(count)  # (R,) summed log-probabilities
        self.ids = np.full((count, 1), last)  # (R, T)
        self.finished = np.full((count, beam_size), NEVER)  # (B, K) the best scores of finished hypotheses
        self.best_score = np.full(count, NEVER)  # (B,)
        self.best_ids: list[list[int]] = [[] for _ in sources]

    def run(self) -> list[list[int]]:
        for length in range(self.started + 1, self.stepper.max_length + 1):
            self._step(length)
            if not len(self.source):
                break
        return self.best_ids

    def _step(self, length: int) -> None:
        """Extend every row by a token; `length`: the target's tokens with that one, those of `start` included."""
        logprobs, tokens = self.stepper.step(self.ids[:, -1], self.candidates)  # (R, C)
        totals = self.sums[:, None] + np.where((tokens == PAD) | (tokens == BOS), NEVER, logprobs)
        source, rank, row, candidate = self._best(totals)
        token, total = tokens[row, candidate], totals[row, candidate]
        ids = np.concatenate([self.ids[row], token[:, None]], axis=1)

        ends = (token == EOS) | (length == self.stepper.max_length)
        for i in np.flatnonzero(ends & (rank < self.beam_size)):
            self._finish(int(source[i]), ids[i].tolist(), float(total[i]) / length**self.penalty)
        live = ~ends
        live[live] = _ranks(source[live]) < self.beam_size
        live[live] = self._goes_on(source[live], total[live], length)
        if live.any() and not np.array_equal(row[live], np.arange(len(self.source))):
            self.stepper.reorder(row[live])
        self.source, self.sums, self.ids = source[live], total[live], ids[live]
        self.slot = _ranks(self.source)

    def _best(self, totals: Array) -> tuple[Array, Array, Array, Array]:
        """The best extensions of each source, best first: sources, ranks, rows and candidates."""
        table = np.full((len(self.finished), self.beam_size, self.candidates), NEVER)  # (B, K, C)
        table[self.source, self.slot] = totals
        flat = table.reshape(len(table), -1)
        order = np.argsort(-flat, axis=1, kind="stable")[:, : self.considered]  # (B, 2K)
        source, rank = np.nonzero(np.take_along_axis(flat, order, axis=1) > NEVER)
        slot, candidate = np.divmod(order[source, rank], self.candidates)
        return source, rank, np.searchsorted(self.source, source) + slot, candidate  # a source's rows are consecutive

    def _finish(self, source: int, ids: list[int], score: float) -> None:
        finished = self.finished[source]
        worst = finished.argmin()
        finished[worst] = max(finished[worst], score)
        if score > self.best_score[source]:
            self.best_score[source] = score
            self.best_ids[source] = ids[1:-1] if ids[-1] == EOS else ids[1:]

    def _goes_on(self, source: Array, sums: Array, length: int) -> Array:
        """Which live hypotheses go on: those of sources that have not stopped and whose best score can still improve.

        A summed log-probability only falls, and its divisor is at most (longest length) ** length_penalty.
        """
        highest = np.full(len(self.finished), NEVER)
        np.maximum.at(highest, source, sums)
        longest = float(self.stepper.max_length if self.penalty > 0 else length) ** self.penalty
        worst = self.finished.min(axis=1)  # -inf until beam_size have finished
        goes_on = highest / longest > self.best_score
        if self.early is True:
            goes_on &= worst == NEVER
        elif self.early is False:
            goes_on &= highest / float(length) ** self.penalty > worst
        rows: Array = goes_on[source]
        return rows


def _ranks(groups: Array) -> Array:
    """Sorted group numbers -> the rank of each within its group: [0, 0, 3, 3, 3] -> [0, 1, 0, 1, 2]"""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)
