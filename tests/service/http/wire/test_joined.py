"""What is written in one turn of the event loop leaves in few pieces, in its order, and before the connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from attendant.service.http.wire.joined import JoinedWrites


class Sent:
    """A transport that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")  # as uvloop's does
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("close")

    def write_eof(self) -> None:
        self.calls.append("eof")

    def abort(self) -> None:
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 7

    def is_closing(self) -> bool:
        return self.closed


def calls_of(use: Callable[[JoinedWrites], object], turns: int = 0) -> list[Any]:
    """What the transport was asked for, after so many turns of the loop."""

    async def run() -> list[Any]:
        sent = Sent()
        use(JoinedWrites(asyncio.get_running_loop(), cast(asyncio.Transport, sent)))
        for _ in range(turns):
            await asyncio.sleep(0)
        return [*sent.calls]

    return asyncio.run(run())


def test_head_and_body_leave_at_once_in_one_piece() -> None:
    assert calls_of(lambda writes: [writes.write(b"head"), writes.write(b"body")]) == [b"headbody"]


def test_a_head_without_a_body_leaves_in_the_next_turn() -> None:
    assert calls_of(lambda writes: writes.write(b"head")) == []
    assert calls_of(lambda writes: writes.write(b"head"), turns=1) == [b"head"]


def test_all_pieces_leave_once_and_in_their_order() -> None:
    pieces = [b"1", b"2", b"3", b"", b"4", b"5", b"6"]
    sent = calls_of(lambda writes: [writes.write(piece) for piece in pieces], turns=2)
    assert b"".join(sent) == b"123456"


@pytest.mark.parametrize(("end", "called"), [(JoinedWrites.close, "close"), (JoinedWrites.write_eof, "eof")])
def test_what_was_written_leaves_before_the_connection_ends(end: Callable[[JoinedWrites], None], called: str) -> None:
    assert calls_of(lambda writes: [writes.write(b"last"), end(writes)], turns=1) == [b"last", called]


def test_an_aborted_connection_sends_nothing_more() -> None:
    assert calls_of(lambda writes: [writes.write(b"last"), writes.abort()], turns=1) == ["abort"]


def test_what_has_not_left_counts_as_unsent() -> None:
    sizes: list[int] = []

    def use(writes: JoinedWrites) -> None:
        writes.write(b"four")
        sizes.append(writes.get_write_buffer_size())
        assert not writes.is_closing()

    calls_of(use)
    assert sizes == [4 + 7]


def test_what_is_kept_for_a_client_that_has_gone_is_dropped() -> None:
    async def run() -> list[Any]:
        failed: list[Any] = []
        loop, sent = asyncio.get_running_loop(), Sent()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        writes = JoinedWrites(loop, cast(asyncio.Transport, sent))
        writes.write(b"head")
        sent.closed = True
        await asyncio.sleep(0)
        writes.write(b"head")
        writes.write(b"body")
        return failed + sent.calls

    assert asyncio.run(run()) == []
