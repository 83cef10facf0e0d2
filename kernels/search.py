"""The compiled search (search.h), as functions of ctypes.

Most take a microsecond or two and keep Python's lock: to get it back from another lane would take longer. Those that
move the rows of beams run without it.
"""

from __future__ import annotations

import ctypes
from functools import cache

from attendant.kernels import library

POINTER, INT32, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
FUNCTIONS = {  # name: result, arguments
    "attendant_batch_new": (POINTER, [INT32, *[POINTER] * 4, *[INT32] * 3]),
    "attendant_batch_free": (None, [POINTER]),
    "attendant_batch_clear": (None, [POINTER]),
    "attendant_batch_planes": (INT32, [POINTER, POINTER, INT32]),
    "attendant_batch_admit": (INT32, [POINTER, POINTER, POINTER, INT32, POINTER, INT32]),
    "attendant_batch_adopt": (INT32, [POINTER, INT32, *[POINTER] * 3, INT32, ctypes.c_double, INT64]),
    "attendant_batch_advance": (INT32, [POINTER, POINTER, POINTER, INT32, *[POINTER] * 3]),
    "attendant_batch_finish": (INT64, [POINTER, INT32, *[POINTER] * 3, INT64, POINTER]),
    "attendant_batch_commit": (INT32, [POINTER, INT32, *[POINTER] * 3]),
    "attendant_batch_rows": (INT32, [POINTER, INT32, POINTER]),
    "attendant_batch_state": (INT64, [POINTER, INT32, POINTER, POINTER, INT64]),
    "attendant_batch_hand_back": (INT32, [POINTER, INT32]),
}
MOVING = {"attendant_batch_advance", "attendant_batch_commit"}
UNKNOWN_JOB, NO_ROOM, OUT_OF_RANGE, OUT_OF_MEMORY = -1, -2, -3, -4
ERRORS = {
    UNKNOWN_JOB: "unknown job",
    NO_ROOM: "no room",
    OUT_OF_RANGE: "an argument out of range, or a call out of turn",
}


class SearchError(RuntimeError):
    """The compiled search refused a call, which is a fault of its caller."""


def check(result: int) -> int:
    """The result of a function; SearchError or MemoryError if it is an error's number, which is below 0."""
    if result >= 0:
        return result
    if result == OUT_OF_MEMORY:
        raise MemoryError("the compiled search got no memory.")
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
