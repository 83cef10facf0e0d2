"""An LRU cache of finished answers, bounded in bytes.

A hit is exact: an answer is a function of the bundle, the precision and the task, and a cache belongs to one engine,
which has one bundle and one precision.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from attendant.service.engine.tasks import (
    Distribution,
    Explain,
    Generate,
    Generated,
    Hypothesis,
    NextToken,
    Result,
    Score,
    Scored,
    Task,
)

ENTRY_BYTES = 1024  # objects of a key and an answer, and their places in the table
HYPOTHESIS_BYTES = 256
NUMBER_BYTES = 40  # an int or a float, and the pointer to it
PHRASE_NUMBERS = 10  # numbers and their places for each token of a phrase: edges of a graph, nodes of a trie
TERM_BYTES = 300  # of a term in an answer, with its texts
TOP_BYTES = 64  # a tuple, and the pointer to it


class Key:
    """A task as a key: all of it but `stream`, on which the answer does not depend; it is hashed once."""

    __slots__ = ("_hash", "task")

    def __init__(self, task: Generate | NextToken | Score) -> None:
        self.task = replace(task, stream=False) if isinstance(task, Generate) and task.stream else task
        self._hash = hash(self.task)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.task == other.task


def key_of(task: Task) -> Key | None:
    """None for an explanation, whose answer is too large to be shared or cached."""
    return None if isinstance(task, Explain) else Key(task)


def is_cut_short(answer: Result | Exception) -> bool:
    """Whether a deadline ended it, so that more time could give another answer."""
    return isinstance(answer, Generated) and answer.cut_short


class AnswerCache:
    """Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._answers: OrderedDict[Key, tuple[Result, int]] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> Result | None:
        entry = self._answers.get(key)
        if entry is None:
            return None
        self._answers.move_to_end(key)
        return entry[0]

    def put(self, key: Key, answer: Result) -> None:
        """An answer that a deadline cut short is not kept, nor one that is larger than the cache."""
        if not self.max_bytes or key in self._answers or is_cut_short(answer):
            return
        size = entry_bytes(key, answer)
        if size > self.max_bytes:
            return
        self._answers[key] = answer, size
        self.bytes += size
        while self.bytes > self.max_bytes:
            _, (_, freed) = self._answers.popitem(last=False)
            self.bytes -= freed

    def clear(self) -> None:
        self._answers.clear()
        self.bytes = 0


def entry_bytes(key: Key, answer: Result) -> int:
    """Approximate memory of a key and its answer: the CPython objects of tuples of numbers, and arrays."""
    if isinstance(answer, Generated):
        size = sum(map(_hypothesis_bytes, answer.hypotheses))
    elif isinstance(answer, Distribution):
        size = answer.logprobs.nbytes + NUMBER_BYTES * len(answer.prefix_logprobs)
    elif isinstance(answer, Scored):
        size = _numbers_bytes(answer)
    else:
        raise TypeError(f"an answer of type {type(answer).__name__} is not kept.")
    return ENTRY_BYTES + NUMBER_BYTES * _key_length(key) + size


def _key_length(key: Key) -> int:
    task = key.task
    constraints = None if isinstance(task, Score) else task.constraints
    phrases = 0 if constraints is None else PHRASE_NUMBERS * len(constraints.ids)
    return (
        phrases
        + len(task.source)
        + len(task.start or ())
        + len(task.target if isinstance(task, Score) else task.prefix)
    )


def _hypothesis_bytes(found: Hypothesis) -> int:
    return HYPOTHESIS_BYTES + TERM_BYTES * len(found.terms) + NUMBER_BYTES * len(found.ids) + _numbers_bytes(found)


def _numbers_bytes(found: Hypothesis | Scored) -> int:
    top = sum(TOP_BYTES + (TOP_BYTES + 2 * NUMBER_BYTES) * len(tokens) for tokens in found.top_logprobs)
    return NUMBER_BYTES * (len(found.logprobs) + len(found.entropies)) + top
