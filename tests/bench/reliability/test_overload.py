"""A short form of the overload, and the arithmetic of its long one."""

from __future__ import annotations

import sys

import pytest

from bench.reliability import overload
from bench.reliability.overload import Outcome, Sample, Tried


def accepted(sent: float, queued: float, took: float = 1.0, client: str = "large") -> Outcome:
    return Outcome(client, sent, sent + queued + took, 200, 1, tokens=10, queued=queued)


def refused(at: float, retry_after: int) -> Outcome:
    return Outcome("large", at, at, 429, 1, retry_after=retry_after)


def test_retry_after_is_held_against_when_half_of_what_waited_had_begun() -> None:
    waiting = [accepted(0.0, queued) for queued in (2.0, 4.0, 6.0)]
    begun, later = accepted(0.0, 0.5), accepted(1.5, 9.0)
    assert overload.retry_factors([*waiting, begun, later, refused(1.0, 6)]) == [2.0]
    assert overload.retry_factors([begun, refused(1.0, 6)]) == []


def found(outcomes: list[Outcome], resident: int = 100) -> list[str]:
    samples = [Sample(float(at), 100 if at < 50 else resident) for at in range(100)]
    tried = Tried([accepted(20.0, 1.0, client="small"), *outcomes], samples, began=0.0, ended=100.0)
    wrong: list[str] = overload.summary("x", {"texts": 1.0, "tokens": 1.0}, tried, 100.0)["wrong"]
    return wrong


def test_what_is_wrong_is_found() -> None:
    good = [accepted(20.0 + n, 4.0) for n in range(10)]
    assert found([*good, refused(30.0, 2)]) == []
    assert found([*good, refused(30.0, 60)]) == ["Retry-After was true for 0.0% of the refusals"]
    assert found([*good, accepted(20.0, 70.0)]) == ["1 were accepted, and not done within their bound"]
    assert found([*good, Outcome("large", 20.0, 20.0, 500, 1)]) == ["1 x 500"]
    assert found(good, resident=200) == ["memory grew from 0 to 0 MB"]
    assert found(good[:1]) == ["throughput fell to 24% of the peak"]
    assert found([*good, Outcome("small", 20.0, 20.0, 429, 1, retry_after=4)]) == [
        "of the small client's requests 50.0% were answered"
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_an_overload_leaves_the_service_as_it_was() -> None:
    row = overload.run("embedded", seconds=1.5, probe_seconds=1.0)
    timed = ("Retry-After", "throughput", "memory", "of the small client's")
    assert [each for each in row["wrong"] if not each.startswith(timed)] == []
    assert row["clients"]["large"]["answered"] > 0 < row["clients"]["small"]["answered"]
