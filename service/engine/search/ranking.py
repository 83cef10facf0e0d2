"""Ranks the candidates of many searches at once, in arrays.

Only for searches that rank by the model's log-probabilities alone (`GenerateSearch.is_plain`). The result is that of
ranking each search alone, to the bit: the same float64 numbers are added, and ties keep the order of their parents,
then of the graph's candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from attendant.service.engine.batch.job import Job
from attendant.service.engine.batch.runner import StepOutputs
from attendant.service.engine.search.beam import GenerateSearch
from attendant.service.engine.search.search import Candidate
from attendant.service.engine.tasks import Array

LEAST_ROWS = 8  # of a group; fewer are ranked faster one by one
FORBIDDEN = 3  # most tokens that may not come next: padding, start, and the end token while it is too early


def rank_together(
    jobs: Iterable[Job], slots: Mapping[Job, list[int]], outputs: StepOutputs
) -> dict[Job, list[Candidate]]:
    """A step's candidates, best first, for those jobs that can be ranked together; `slots[job]` are a job's rows."""
    groups: dict[tuple[int, int], list[Job]] = {}  # by beam size and number of rows
    for job in jobs:
        search = job.search
        if isinstance(search, GenerateSearch) and search.is_plain() and not job.finished:
            groups.setdefault((search.options.beam_size, len(slots[job])), []).append(job)
    found: dict[Job, list[Candidate]] = {}
    given, vocabulary = outputs.top_ids.shape[1], outputs.logprobs.shape[1]
    for (beam_size, count), group in groups.items():
        searches: list[GenerateSearch] = [job.search for job in group]  # type: ignore[misc]
        if len(group) * count < LEAST_ROWS or max(search.wanted() for search in searches) > given < vocabulary:
            continue  # ranked alone: too few rows, or a beam that wants more candidates than the graph gives
        rows = np.array([slots[job] for job in group])  # (J jobs, B rows of each)
        columns = slice(min(given, beam_size + 1 + FORBIDDEN))
        ids, logprobs = outputs.top_ids[rows, columns], outputs.top_logprobs[rows, columns]
        forbidden = find_forbidden(searches, ids)
        rank = rank_greedy if beam_size == 1 else rank_beams
        found.update(zip(group, rank(searches, ids, logprobs.astype(np.float64), forbidden), strict=False))
    return found


def find_forbidden(searches: Sequence[GenerateSearch], ids: Array) -> Array:
    """Mask: true at candidates that may not come next. ids (J, B, k) -> (J, B, k)"""
    special = searches[0].special
    found: Array = (ids == special.pad) | (ids == special.bos)
    early = np.array([search.too_early() for search in searches])
    if early.any():
        found |= (ids == special.eos) & early[:, None, None]
    return found


def rank_greedy(
    searches: Sequence[GenerateSearch],  # noqa: ARG001
    ids: Array,
    logprobs: Array,
    forbidden: Array,
) -> list[list[Candidate]]:
    """The most probable allowed token of each search, which has one row: parent 0."""
    if forbidden.all(axis=2).any():
        return []
    best = np.argmin(forbidden, axis=2)[:, :, None]  # the first that is allowed
    tokens = np.take_along_axis(ids, best, 2).ravel().tolist()
    values = np.take_along_axis(logprobs, best, 2).ravel().tolist()
    return [[(-value, 0, token, value, value)] for token, value in zip(tokens, values, strict=True)]


def rank_beams(
    searches: Sequence[GenerateSearch], ids: Array, logprobs: Array, forbidden: Array
) -> list[list[Candidate]]:
    """The 2 x beam_size best candidates of each search, which is all that a step looks at."""
    before = np.array([[live.weight for live in search.live] for search in searches])
    keys = -(before[:, :, None] + logprobs)
    if not np.isfinite(keys).all():
        return []  # tokens of probability 0 could not be told from forbidden ones: rank each search alone
    keys = np.where(forbidden, np.inf, keys).reshape(len(searches), -1)
    order = np.argsort(keys, axis=1, kind="stable")[:, : 2 * searches[0].options.beam_size]
    parents = order // ids.shape[2]
    tokens = np.take_along_axis(ids.reshape(keys.shape), order, 1)
    values = np.take_along_axis(logprobs.reshape(keys.shape), order, 1).tolist()
    columns = (np.take_along_axis(keys, order, 1).tolist(), parents.tolist(), tokens.tolist(), values, values)
    found = [list(zip(*candidates, strict=True)) for candidates in zip(*columns, strict=True)]
    return [[candidate for candidate in candidates if candidate[0] != np.inf] for candidates in found]
