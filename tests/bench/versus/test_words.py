"""The benchmark of the embedded model, and the one that splits an iteration, without their engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.http import words_http
from bench.profile import iteration
from bench.report.goals import goal_of
from bench.versus import words
from bench.versus.engines import Answer
from bench.versus.race import Work


class FakeWorker:
    """Takes as many seconds as it is asked for sources."""

    kind, precision = "ours", "fp32"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def answer(self, asked: list[list[int]], *_: Any) -> tuple[float, list[Answer]]:
        self.asked.append(len(asked))
        return float(len(asked)), [Answer(tuple(source), 0.0) for source in asked]


def test_each_work_takes_words_of_its_own() -> None:
    made = words.works([(i,) for i in range(2_000)])
    given = [source for work in made for source in work.given]
    assert len(given) == len(set(given))
    assert [len(work.given) for work in made] == [words.ALONE, words.ALONE, 32, 1024, 256]
    assert [work.one_by_one for work in made] == [True, True, False, False, False]
    assert all(work.length is None and goal_of("words", work.name, "amd-vnni") for work in made)


@pytest.mark.parametrize(("one_by_one", "asked", "seconds"), [(True, [1, 1, 1], 1.0), (False, [3], 3.0)])
def test_words_one_by_one_take_the_mean_of_each(one_by_one: bool, asked: list[int], seconds: float) -> None:
    worker: Any = FakeWorker()
    work = Work(name="", requests=3, beam_size=1, length=None, given=((4,), (5,), (6,)), one_by_one=one_by_one)
    taken, answers = work.ask(worker, work.sources(0))
    assert (worker.asked, taken) == (asked, seconds)
    assert [answer.ids for answer in answers] == [(4,), (5,), (6,)]


def test_words_of_a_corpus_come_once(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text("cat\tK AE1 T\ncat\tK AE0 T\ndog\tD AO1 G\n", encoding="utf-8")
    assert [len(ids) for ids in words.read_words(path)] == [3, 3]


def test_a_part_of_an_iteration_does_not_count_the_parts_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(iteration.time, "perf_counter", lambda: now)
    monkeypatch.setattr(iteration.time, "thread_time", lambda: now / 2)
    clock = iteration.Clock()
    inner = clock.timed("encoder graph", work)
    clock.timed("adding rows", lambda: [inner(1.0), work(2.0), inner(3.0)])()
    assert clock.calls == {"encoder graph": 2, "adding rows": 1}
    assert clock.wall == {"encoder graph": 4.0, "adding rows": 2.0}
    assert clock.processor == {"encoder graph": 2.0, "adding rows": 1.0}
    shares = {part["part"]: part["share"] for part in iteration.parts_of(clock)}
    assert shares == {
        "encoder graph": pytest.approx(2 / 3, abs=0.001),
        "adding rows": pytest.approx(1 / 3, abs=0.001),
    }


def test_what_is_clocked_is_restored() -> None:
    before = [getattr(owner, name) for _, owner, name in iteration.PARTS]
    with iteration.clocked():
        assert [getattr(owner, name) for _, owner, name in iteration.PARTS] != before
    assert [getattr(owner, name) for _, owner, name in iteration.PARTS] == before


def test_both_servers_are_asked_for_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text("cat\tK AE1 T\ncab\tK AE1 B\n", encoding="utf-8")
    ours, theirs = words_http.mixes(path).values()
    assert ours.texts == ("cat", "cab")
    assert [each.split()[:2] for each in theirs.texts] == [theirs.texts[0].split()[:2]] * 2
    assert ours.seed == theirs.seed


def test_a_ratio_over_http_is_ours_over_theirs() -> None:
    rows = [
        {"server": server, "load": f"{clients} clients", "requests_per_second": rate * clients}
        for clients in words_http.CLIENTS
        for server, rate in (("attendant", 3.0), ("ctranslate2", 2.0))
    ]
    found = words_http.ratios(rows)
    assert [row["ratio"] for row in found] == [1.5] * len(words_http.CLIENTS)
    assert [goal_of("words_http", row["name"], "amd-vnni") for row in found] == [None, 1.4, 1.4]
