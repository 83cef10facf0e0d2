"""The account of what clients make the process hold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from attendant.service import memory
from attendant.service.errors import InvalidFieldError, MemoryFullError
from attendant.service.memory import LEAST_SHARE, MARGIN, SMALL, Holding, MemoryAccount, Trimmer
from tests.support.serving import PATIENCE

LIMIT = 10**9


def test_what_models_and_the_process_need_is_not_for_requests() -> None:
    account = MemoryAccount(LIMIT, set_aside=10**8)
    left = LIMIT - int(MARGIN * LIMIT) - 10**8
    assert account.capacity == left
    owner = object()
    account.set_aside(owner, 3 * 10**8)
    assert (account.capacity, account.model_bytes) == (left - 3 * 10**8, 3 * 10**8)
    account.set_aside(owner, 2 * 10**8)
    assert account.capacity == left - 2 * 10**8
    account.give_back(owner)
    assert account.capacity == left


def test_models_that_take_all_leave_a_little_and_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    account = MemoryAccount(LIMIT)
    with caplog.at_level(logging.WARNING, "attendant"):
        account.set_aside(object(), 2 * LIMIT)
    assert account.capacity == LEAST_SHARE * LIMIT
    assert "memory is short: the models may come to need 2000 MB of 1000 MB, which leaves 50 MB" in caplog.text


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    account = MemoryAccount(LIMIT)
    account.reserve(account.capacity - 10)
    with pytest.raises(MemoryFullError, match="hold 900 of 900 MB that they may, and this one takes 5") as error:
        account.reserve(5 * 10**6)
    assert (error.value.status, error.value.retry_after) == (429, 1)
    assert account.held == account.capacity - 10
    account.release(account.capacity - 10)
    assert account.held == 0


def test_what_can_never_fit_is_the_requests_fault() -> None:
    account = MemoryAccount(LIMIT)
    account.check_possible(account.capacity, "this", "source")
    with pytest.raises(InvalidFieldError, match="this takes about 901 MB, and 900 MB are left for requests") as error:
        account.check_possible(account.capacity + 10**6, "this", "source")
    assert error.value.field == "source"


def test_a_request_holds_its_parts_until_it_ends() -> None:
    account = MemoryAccount(LIMIT)
    holding = Holding(account)
    holding.set("body", SMALL)
    assert account.held == 0
    holding.set("body", 10_000)
    holding.set("answer", 20_000)
    assert account.held == 30_000
    holding.set("body", 5_000)
    holding.set("answer", 20_000)
    assert account.held == 25_000
    with pytest.raises(MemoryFullError):
        holding.set("answer", LIMIT)
    assert account.held == 25_000
    holding.close()
    holding.close()
    holding.set("answer", 20_000)
    assert account.held == 0


def test_a_block_holds_what_it_reserves_even_if_it_fails() -> None:
    account = MemoryAccount(LIMIT)
    seen = []

    def fail() -> None:
        with account.holding(10**6):
            seen.append(account.held)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (seen, account.held) == ([10**6], 0)


def test_threads_never_hold_more_than_there_is() -> None:
    account = MemoryAccount(10**6)
    most, refused = [], []

    def work(_: int) -> None:
        for _ in range(300):
            try:
                with account.holding(account.capacity // 3):
                    most.append(account.held)
            except MemoryFullError:
                refused.append(1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max(most) <= account.capacity
    assert account.held == 0
    assert len(most) + len(refused) == 8 * 300


def test_free_memory_is_returned_once_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TRIM_SECONDS", 0.001)
    trimmed = threading.Event()
    trimmer = Trimmer(trimmed.set)
    trimmer.freed(memory.TRIM_BYTES - 1)
    assert trimmer._timer is None
    trimmer.freed(1)
    assert trimmed.wait(PATIENCE)


@pytest.mark.parametrize("trim", [None, lambda: None])
def test_what_a_closed_model_leaves_in_cycles_is_collected(
    trim: Callable[[], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "TRIM_SECONDS", 0.001)
    monkeypatch.setattr(memory, "find_trim", lambda: trim)
    collected = threading.Event()
    monkeypatch.setattr(memory.gc, "collect", collected.set)
    account, owner = MemoryAccount(LIMIT), object()
    account.set_aside(owner, 10)
    account.give_back(owner)
    assert collected.wait(PATIENCE)
