"""What the compiled search (kernels/cc/search.h) is handed and what it answers: structures, and how they are read."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from attendant.service.engine.batch.job import Job
from attendant.service.engine.search.beam import GenerateSearch, divisor, is_unpenalised, per_row
from attendant.service.engine.search.sampling import SampleSearch
from attendant.service.engine.search.search import MAX_GRAPH_TOP_K, Live, SpecialIds
from attendant.service.engine.tasks import Array, Explain, Generate, Hypothesis
from attendant.service.engine.tasks import Options as GenerateOptions

REASONS = ("stop", "length")
EARLY_STOPPING = {False: 0, True: 1, "never": 2}
ADMISSION = struct.Struct("@5i4x7idq")  # as AttendantAdmission is laid out
NO_OPTIONS = (0,) * 8
PLANE = struct.Struct("@7q")  # as Plane is


class Plane(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("tensors", "tensor_stride", "row_stride", "heads", "head_stride")),
        ("entry", ctypes.c_int64),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("beam_size", "num_hypotheses", "min_length", "max_length")),
        *((name, ctypes.c_int32) for name in ("forced_end", "early_stopping", "start_length")),
        ("length_penalty", ctypes.c_double),
    ]


def starts_plain(job: Job) -> bool:
    """`is_plain` of a job that has no token yet, without making its search."""
    task = job.task
    if not isinstance(task, Generate) or task.stream or task.prefix or job.special.start or not is_unpenalised(task):
        return False
    must_end = task.options.forced_end and task.options.max_length == 1
    return not must_end and not job.finished and first_wanted(task.options) <= MAX_GRAPH_TOP_K


def first_wanted(options: GenerateOptions) -> int:
    """`wanted` of such a job's search: padding, start, and while it is too early the end token are passed over."""
    return per_row(options) + 2 + (options.min_length > 0)


def is_plain(job: Job) -> bool:
    """Whether its next tokens are chosen by the model's log-probabilities alone, as the compiled code does."""
    search = job.search
    return not (
        job.task.stream
        or job.finished
        or not isinstance(search, GenerateSearch)
        or isinstance(search, SampleSearch)
        or not search.is_plain()
        or search.wanted() > MAX_GRAPH_TOP_K
        or len(search.live) != 1
    )


def options_of(special: SpecialIds, options: GenerateOptions) -> tuple[int | float, ...]:
    """The fields of an AttendantOptions."""
    return (
        options.beam_size,
        options.num_hypotheses,
        options.min_length,
        options.max_length,
        options.forced_end,
        EARLY_STOPPING[options.early_stopping],
        len(special.start),
        options.length_penalty,
    )


def planes_of(tensors: Sequence[Array]) -> ctypes.Array[Plane]:
    """Where values lie, of the shape (tensors, rows, heads, length, entry)."""
    planes = (Plane * len(tensors))()
    for plane, values in zip(planes, tensors, strict=True):
        strides = values.strides
        PLANE.pack_into(plane, 0, address_of(values), len(values), *strides[:2], values.shape[2], *strides[2:4])
    return planes


def read_answers(job: Job, integers: Iterator[int], numbers: Iterator[float]) -> None:
    """The answers of a job that is done, as attendant_batch_finish gives them after the slot."""
    task = job.task.search if isinstance(job.task, Explain) else job.task
    assert isinstance(task, Generate)
    special, options, found = job.special, task.options, list[Hypothesis]()
    job.decoded += next(integers)
    for _ in range(next(integers)):
        length, reason, weight, _ = next(integers), REASONS[next(integers)], next(numbers), next(numbers)
        ids, logprobs = tuple(islice(integers, length)), tuple(islice(numbers, length))
        score = weight / divisor(special, options, length)
        found.append(Hypothesis(ids[:-1] if ids and ids[-1] == special.eos else ids, logprobs, score, reason))
    job.answers = tuple(found[: options.num_hypotheses])


def read_state(search: GenerateSearch, integers: list[int], numbers: Array) -> tuple[list[Live], list[Any]]:
    """Live hypotheses, and the finished ones as `GenerateSearch.ended` has them."""
    live, ended, at, start = [], [], 3, 0
    for index in range(integers[0] + integers[1]):
        length, reason = integers[at], REASONS[integers[at + 1]]
        values = numbers[start : start + 2 + length].tolist()
        found = Live(integers[at + 2 : at + 2 + length], values[2:], values[0], values[0])
        at, start = at + 2 + length, start + 2 + length
        if index < integers[0]:
            live.append(found)
        else:
            ended.append((values[1], search.hypothesis(found, reason)))
    return live, ended


def address_of(array: Array) -> int:
    return int(array.__array_interface__["data"][0])  # several times as fast as array.ctypes.data
