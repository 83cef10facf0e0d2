"""The garbage collector leaves alone what stays, and frees models that have gone."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from attendant.service.http.guard.record import Record
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import Running, running, wait_for

PROGRAM = """
import gc, weakref
from attendant.service.http.garbage import THRESHOLDS, settle

class Part:
    def __init__(self):
        self.itself = self

kept = Part()
gone = weakref.ref(kept)
settle()
assert gc.get_freeze_count() > 1000, gc.get_freeze_count()
assert gc.get_threshold() == THRESHOLDS
new = weakref.ref(Part())
others = [[] for _ in range(2 * THRESHOLDS[0])]
assert new() is None, "what requests leave is not freed"
del kept
gc.collect()
assert gone() is not None, "what was there is looked at again and again"
settle()
assert gone() is None, "a model that has gone is not freed"
"""


def test_what_stays_is_left_alone_and_what_requests_leave_is_freed() -> None:
    """In a process of its own: the collector is the process's."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


@pytest.mark.parametrize("body", ['{"inputs": "cat"}', '{"inputs": ["cat", "dog"]}'])
def test_what_a_request_held_is_freed_at_its_end_without_a_collection(body: str, tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        gc.collect()  # of other tests
        gc.disable()
        try:
            with closing(server.connect()) as connection:
                for _ in range(10):
                    connection.request("POST", "/v1/generate", body)
                    connection.getresponse().read()
            held = [each for each in gc.get_objects() if type(each) is Record]  # isinstance asks each for its __class__
            assert len(held) <= 2  # a connection has its last request, and one may be ending
        finally:
            gc.enable()


def test_the_server_settles_once_it_is_ready_and_whenever_an_engine_has_come_or_gone(tmp_path: Path) -> None:
    settled: list[int] = []
    engines = [FakeEngine(make_bundle(tmp_path)) for _ in range(2)]
    for engine in engines:
        engine.start()
    left = iter(engines)
    server = Running(lambda _: next(left), settle=lambda: settled.append(1))
    try:
        wait_for(lambda: server.lines)
        wait_for(lambda: len(settled) == 1)
        engines[0].pause_after = 0
        server.server.handle_hangup(0, None)
        wait_for(lambda: not engines[0]._thread.is_alive())  # replaced, and closed
        wait_for(lambda: len(settled) in (2, 3))
    finally:
        server.stop()
        server.join()
