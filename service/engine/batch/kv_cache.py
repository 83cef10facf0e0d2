"""The KV cache of a lane: for each row, the keys and values of its source and of its own tokens.

The rows in use are 0 to R - 1, without gaps, so that a step computes no empty ones. There are two kinds:

    host_cache.py      in this process; the kernel graphs write it in place, and only rows that move are copied
    device_cache.py    on the provider's device; each step returns new tensors, and the `merge` graph reorders them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from attendant.service.engine.tasks import Array

SIDES = ("key", "value")
LENGTH_UNIT = 32  # initial P; DeviceKVCache grows in multiples of it, HostKVCache doubles P
NEW_ROW = -1  # the origin of a row that was just added
NOTHING_SHARED: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class EncodedSources:
    """Sources that were encoded together, for cross-attention: B sources of up to S tokens."""

    arrays: tuple[Array, ...]  # keys and values, (2L, B, H, S, d), and with int8 their scales, (L, B, 2H, S, 1)
    release: Callable[[], None] | None = None  # to be called once all are copied, if the arrays can be used again


class Encoded(NamedTuple):
    """One of them."""

    sources: EncodedSources
    number: int


class KVCache(Protocol):
    reuses_bindings: bool  # whether bindings made for a layout stay valid when that layout comes again
    encodes_ahead: bool  # whether it has `bind_ahead` and `put`

    @property
    def width(self) -> int:
        """S, of every row."""

    @property
    def layout(self) -> tuple[int, ...]:
        """With the number of rows, identifies what `bind_step` binds: while both are the same, so are the bindings."""

    def bind_encoder(self, io: Any, held: int, count: int, encoded_width: int, width: int) -> None:
        """Bind the encoder's outputs for `count` sources: the rows after the first `held`, in a cache of this width."""

    def adopt_encoded(self, io: Any, held: int, width: int) -> None:
        """After the encoder has run: its outputs become rows of the cache."""

    def bind_ahead(self, io: Any, count: int, encoded_width: int) -> tuple[Array, ...]:
        """Bind the encoder's outputs for sources that get no row yet to the arrays returned: see EncodedSources."""

    def put(self, row: int, encoded: Encoded, width: int) -> None:
        """Copy a source that was encoded ahead into the cache, for `row`, the first unused one, of this width."""

    def reorder(
        self, origins: Sequence[int], position: int, shared: Sequence[int] = NOTHING_SHARED, width: int | None = None
    ) -> None:
        """Row i becomes what row origins[i] was, or stays if NEW_ROW; later rows are dropped, S may shrink to `width`.

        No row has more than `position` tokens. A row that is overwritten is never the origin of another. If shared[i]
        is not 0, rows i and origins[i] have the same source and the same first shared[i] tokens.
        """

    def clear(self) -> None:
        """Drop every row."""

    def reserve(self, rows: int, position: int) -> None:
        """Before a step: make room for one more token in rows that have at most `position`."""

    def bind_step(self, io: Any, rows: int) -> None:
        """Bind the cache to the inputs and outputs of a step."""

    def adopt_outputs(self, io: Any) -> None:
        """After a step: its outputs become the cache."""
