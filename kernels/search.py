"""The compiled search (search.h), as functions of ctypes, which run without Python's lock."""

from __future__ import annotations

import ctypes
from functools import cache

from attendant.kernels import library

POINTER, INT32, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
FUNCTIONS = {  # name: result, arguments
    "attendant_batch_new": (POINTER, [INT32, *[POINTER] * 4, *[INT32] * 3]),
    "attendant_batch_free": (None, [POINTER]),
    "attendant_batch_planes": (None, [POINTER, POINTER, INT32]),
    "attendant_batch_add": (INT32, [POINTER, INT32]),
    "attendant_batch_adopt": (None, [POINTER, INT32, *[POINTER] * 3, INT32, ctypes.c_double, INT64]),
    "attendant_batch_advance": (INT32, [POINTER, POINTER, POINTER, INT32, POINTER, POINTER]),
    "attendant_batch_commit": (INT32, [POINTER, INT32, *[POINTER] * 3]),
    "attendant_batch_rows": (INT32, [POINTER, INT32, POINTER]),
    "attendant_batch_state": (INT64, [POINTER, INT32, POINTER, POINTER, INT64]),
    "attendant_batch_hand_back": (None, [POINTER, INT32]),
}


@cache
def load_search() -> ctypes.CDLL:
    """The library that `kernels.library()` names; it must be there."""
    loaded = ctypes.CDLL(str(library()))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
