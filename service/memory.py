"""One account, in bytes, of all that clients can make the process hold: bodies, answers, explanations.

What a request is about to hold is reserved before it is taken, and given back when the request ends. What does not
depend on requests is set aside first: the process, its connections, and each model with its KV caches. So the sum stays
under the memory limit, and a request that would go over it is refused with a sentence.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attendant.service.errors import InvalidFieldError, MemoryFullError

MEGABYTE = 10**6
MARGIN = 0.1  # of the limit, for what is estimated: fragmentation, garbage that is not collected yet
PROCESS_BYTES = 120 * MEGABYTE  # Python, onnxruntime and the web framework, before any model
CONNECTION_BYTES = 128 * 2**10  # of a connection: what was read and not parsed yet, and written and not sent yet
LEAST_SHARE = 0.05  # of the limit that is left to requests, however much the models take
SMALL = 4096  # bytes of a part that are not worth counting
TRIM_BYTES = 32 * MEGABYTE  # given back at once or by and by, after which free memory is returned to the system
TRIM_SECONDS = 2.0  # between two returns

log = logging.getLogger("attendant")


class MemoryAccount:
    """Any thread may call it."""

    def __init__(self, limit: int, set_aside: int = 0) -> None:
        """`limit`: bytes that the process may come to hold; `set_aside`: of these, never for requests or models."""
        self.limit = limit
        self._set_aside = int(MARGIN * limit) + set_aside
        self._models: dict[object, int] = {}
        self._held = 0
        self._lock = threading.Lock()
        self._trimmer = Trimmer()

    @property
    def capacity(self) -> int:
        """Bytes that all requests may hold together."""
        left = self.limit - self._set_aside - sum(self._models.values())
        return max(left, int(LEAST_SHARE * self.limit))

    @property
    def held(self) -> int:
        """Bytes that requests hold now."""
        return self._held

    @property
    def model_bytes(self) -> int:
        """Bytes set aside for models."""
        return sum(self._models.values())

    def set_aside(self, owner: object, size: int) -> None:
        """Keep `size` bytes for a model; `owner` is unique to it."""
        with self._lock:
            self._models = {**self._models, owner: size}
        left = self.limit - self._set_aside - self.model_bytes
        if left < LEAST_SHARE * self.limit:
            log.warning(
                "memory is short: the models may come to need %d MB of %d MB, which leaves %d MB for requests",
                self.model_bytes // MEGABYTE,
                self.limit // MEGABYTE,
                self.capacity // MEGABYTE,
            )

    def give_back(self, owner: object) -> None:
        """A model is closed."""
        with self._lock:
            self._models = {other: size for other, size in self._models.items() if other is not owner}
        self._trimmer.freed(TRIM_BYTES, collect=True)

    def reserve(self, size: int) -> None:
        """Count `size` bytes as held; MemoryFullError if they do not fit now."""
        with self._lock:
            if self._held + size <= self.capacity or size <= 0:
                self._held += size
                return
            held = self._held
        raise MemoryFullError(
            f"the requests under way hold {held / MEGABYTE:.0f} of {self.capacity / MEGABYTE:.0f} MB that they may, "
            f"and this one takes {size / MEGABYTE:.1f} MB more; try again in 1 s."
        )

    def release(self, size: int) -> None:
        with self._lock:
            self._held -= size
        self._trimmer.freed(size)

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Reserve for as long as a block runs."""
        self.reserve(size)
        try:
            yield
        finally:
            self.release(size)

    def check_possible(self, size: int, what: str, field: str | None) -> None:
        """InvalidFieldError for what would not fit even if nothing else were held."""
        if size > self.capacity:
            raise InvalidFieldError(
                f"{what} takes about {size / MEGABYTE:.0f} MB, and {self.capacity / MEGABYTE:.0f} MB are left for "
                "requests here; ask for less at a time.",
                field,
            )


class Holding:
    """What one request holds, by part: its body, its answer."""

    __slots__ = ("_account", "_closed", "_parts")

    def __init__(self, account: MemoryAccount) -> None:
        self._account, self._closed = account, False
        self._parts: dict[str, int] = {}

    def set(self, part: str, size: int) -> None:
        """This part takes `size` bytes from now on; MemoryFullError, and nothing changes, if that is too much."""
        before = self._parts.get(part, 0)
        if size <= SMALL and not before:
            return
        if self._closed or size == before:
            return
        if size > before:
            self._account.reserve(size - before)
        self._parts[part] = size
        if size < before:
            self._account.release(before - size)

    @property
    def capacity(self) -> int:
        return self._account.capacity

    def check_possible(self, size: int, what: str, field: str | None) -> None:
        self._account.check_possible(size, what, field)

    def close(self) -> None:
        """The request has ended; nothing is counted any more."""
        self._closed = True
        if self._parts:
            held = sum(self._parts.values())
            self._parts = {}
            self._account.release(held)


class Trimmer:
    """Returns free memory to the system after bursts: the C library keeps it, in an arena for each thread."""

    def __init__(self, trim: Callable[[], None] | None = None) -> None:
        self._trim = trim or find_trim()
        self._freed, self._collect = 0, False
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def freed(self, size: int, collect: bool = False) -> None:
        """`size` bytes were given back; once they are many, the memory is returned, in a thread and a little later.

        `collect`: the garbage collector must find them first, as what a closed engine's requests have left.
        """
        self._freed += size
        self._collect |= collect
        if self._freed < TRIM_BYTES:
            return
        with self._lock:
            if self._timer is None:
                self._freed = 0
                self._timer = threading.Timer(TRIM_SECONDS, self._run)
                self._timer.daemon = True
                self._timer.start()

    def _run(self) -> None:
        with self._lock:
            self._timer = None
        if self._collect:
            self._collect = False
            gc.collect()
        if self._trim is not None:
            self._trim()


def find_trim() -> Callable[[], None] | None:
    """The C library's malloc_trim; None where it has none, as on macOS, Windows and Alpine."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return lambda: trim(0)
