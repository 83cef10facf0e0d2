"""The compiled search (search.h), as functions of ctypes.

Most take a microsecond or two and keep Python's lock: to get it back from another lane would take longer. Those that
move the rows of beams, or run steps, run without it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from attendant.kernels import library
from attendant.kernels.graph import GraphError, problem

POINTER, INT32, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
FUNCTIONS = {  # name: result, arguments
    "attendant_batch_new": (POINTER, [INT32, *[POINTER] * 4, *[INT32] * 3]),
    "attendant_batch_free": (None, [POINTER]),
    "attendant_batch_clear": (None, [POINTER]),
    "attendant_batch_planes": (INT32, [POINTER, POINTER, INT32]),
    "attendant_batch_admit": (INT32, [POINTER, POINTER, POINTER, INT32, POINTER, INT32]),
    "attendant_batch_adopt": (INT32, [POINTER, INT32, *[POINTER] * 3, INT32, ctypes.c_double, INT64]),
    "attendant_batch_advance": (INT32, [POINTER, POINTER, POINTER, INT32, *[POINTER] * 3]),
    "attendant_batch_run": (INT32, [POINTER, POINTER]),
    "attendant_batch_finish": (INT64, [POINTER, INT32, *[POINTER] * 3, INT64, POINTER]),
    "attendant_batch_commit": (INT32, [POINTER, INT32, *[POINTER] * 3]),
    "attendant_batch_rows": (INT32, [POINTER, INT32, POINTER]),
    "attendant_batch_state": (INT64, [POINTER, INT32, POINTER, POINTER, INT64]),
    "attendant_batch_hand_back": (INT32, [POINTER, INT32]),
}
MOVING = {"attendant_batch_advance", "attendant_batch_commit", "attendant_batch_run"}
UNKNOWN_JOB, NO_ROOM, OUT_OF_RANGE, OUT_OF_MEMORY, GRAPH_FAILED = -1, -2, -3, -4, -5
ERRORS = {
    UNKNOWN_JOB: "unknown job",
    NO_ROOM: "no room",
    OUT_OF_RANGE: "an argument out of range, or a call out of turn",
}


class Steps(ctypes.Structure):
    """AttendantSteps."""

    _fields_ = [
        *((name, POINTER) for name in ("bindings", "top_ids", "top_logprobs")),
        ("top_k", INT32),
        ("most", INT32),
        ("room", INT64),
        ("seconds", ctypes.c_double),
        ("changes", POINTER),
        ("seen", INT64),
        *((name, POINTER) for name in ("jobs", "statuses", "moved")),
        ("taken", INT32),
        *((name, POINTER) for name in ("rows", "elapsed")),
    ]


class SearchError(RuntimeError):
    """The compiled search refused a call, which is a fault of its caller."""


def check(result: int) -> int:
    """The result of a function; SearchError, GraphError or MemoryError if it is an error's number, which is below 0."""
    if result >= 0:
        return result
    if result == OUT_OF_MEMORY:
        raise MemoryError("the compiled search got no memory.")
    if result == GRAPH_FAILED:
        raise GraphError(problem())
    raise SearchError(f"the compiled search refused a call: {ERRORS[result]}.")


@cache
def load_search() -> ctypes.PyDLL:
    """The library that `kernels.library()` names; it must be there."""
    loaded, unlocked = ctypes.PyDLL(str(library())), ctypes.CDLL(str(library()))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(unlocked if name in MOVING else loaded, name)
        function.restype, function.argtypes = result, arguments
        setattr(loaded, name, function)
    return loaded
