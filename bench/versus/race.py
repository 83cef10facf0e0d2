"""Engines that take turns at the same work, in one run: the best turn of each counts.

Each engine is a process of its own (`bench.versus.worker`), idle while another is measured. Before the first turn every
engine answers everything once; the answers in f32 must be the same tokens on both sides, or nothing is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.goals import goal_text
from bench.versus.engines import SOURCE_LENGTH, TARGET_LENGTH, Answer, sources
from bench.versus.worker import Worker

KINDS = ("ours", "ctranslate2", "ctranslate2_two_workers")  # the latter: workers of one thread each
SETTLE = 0.05  # seconds between turns, in which threads that spin for more work fall asleep
SHORT = 0.5  # seconds; shorter work is done several times a turn
LEAST_ROUNDS = 3
IDLE_SHARE = 0.05  # of one core: more, and an engine that should be idle disturbed the others


@dataclass(frozen=True, kw_only=True)
class Work:
    name: str
    requests: int
    beam_size: int
    goal: float | None = None  # how many times faster than CTranslate2
    source_length: int = SOURCE_LENGTH  # tokens, with the end token
    length: int | None = TARGET_LENGTH  # tokens, forced; None: answers end by themselves
    given: tuple[tuple[int, ...], ...] = ()  # the sources; else they are random
    one_by_one: bool = False  # each is asked for when the one before is answered; the time is the mean of them

    def sources(self, vocabulary: int) -> list[list[int]]:
        if self.given:
            return [list(source) for source in self.given]
        return sources(self.requests, self.source_length, vocabulary, seed=self.source_length)

    def ask(self, worker: Worker, asked: list[list[int]]) -> tuple[float, list[Answer]]:
        """The seconds that a worker took, and its answers."""
        if not self.one_by_one:
            return worker.answer(asked, self.beam_size, self.length)
        found = [worker.answer([source], self.beam_size, self.length) for source in asked]
        return sum(seconds for seconds, _ in found) / len(asked), [answer for _, [answer] in found]


class UnequalError(Exception):
    """Both sides should give the same tokens in f32, and do not."""


def start_workers(bundle: Path, models: dict[str, Path], threads: int, kinds: Sequence[str] = KINDS) -> list[Worker]:
    """In f32 and int8 each."""
    started: list[Worker] = []
    try:
        for precision, model in models.items():
            for kind in kinds:
                started.append(Worker(kind, bundle if kind == "ours" else model, precision, threads))
    except BaseException:
        for worker in started:
            worker.close()
        raise
    return started


def against_ctranslate2(
    works: Sequence[Work], threads: int, seconds: float
) -> tuple[Path, list[dict[str, Any]], dict[str, dict[str, int]]]:
    """Works on the random base model: its bundle, a row for each work, and every engine's memory."""
    from bench.models.peers import prepare_peer
    from bench.models.random_model import BASE, prepare

    prepared = prepare(BASE)
    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    workers = start_workers(prepared.bundle, models, threads)
    try:
        rows = race(workers, works, BASE.vocabulary, seconds)
        memory = {f"{worker.kind} {worker.precision}": worker.memory() for worker in workers}
    except UnequalError as error:
        raise SystemExit(str(error)) from None
    finally:
        for worker in workers:
            worker.close()
    return prepared.bundle, rows, memory


def race(
    workers: Sequence[Worker],
    works: Sequence[Work],
    vocabulary: int,
    seconds: float,
    show: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Rounds of all works by all workers until the seconds are over, or a few; a row for each work."""
    asked = {work: work.sources(vocabulary) for work in works}
    longest = answer_once(workers, asked, show)
    repeats = {work: 1 if work.one_by_one else max(1, min(5, round(SHORT / longest[work]))) for work in works}
    best = {work: {(w.kind, w.precision): float("inf") for w in workers} for work in works}
    busy_before, own = [w.processor_seconds() for w in workers], [0.0] * len(workers)
    began, rounds = time.monotonic(), 0
    while rounds < LEAST_ROUNDS or time.monotonic() - began < seconds:
        for work in works:
            for turn in range(len(workers)):
                number = (turn + rounds) % len(workers)  # none always follows the same
                worker = workers[number]
                time.sleep(SETTLE)
                before = worker.processor_seconds()
                for _ in range(repeats[work]):
                    taken, _ = work.ask(worker, asked[work])
                    key = (worker.kind, worker.precision)
                    best[work][key] = min(best[work][key], taken)
                own[number] += worker.processor_seconds() - before
        rounds += 1
    for worker, before, mine in zip(workers, busy_before, own, strict=True):
        idle = (worker.processor_seconds() - before - mine) / (time.monotonic() - began)
        if idle > IDLE_SHARE:
            show(f"warning: {worker.kind} in {worker.precision} used {idle:.0%} of a core while it should be idle")
    return [row_of(work, best[work], rounds) for work in works]


def answer_once(
    workers: Sequence[Worker], asked: dict[Work, list[list[int]]], show: Callable[[str], None] = print
) -> dict[Work, float]:
    """Every worker answers everything; UnequalError if ours in f32 differs. The longest seconds of each work."""
    longest = {}
    for work, wanted in asked.items():
        first = {(w.kind, w.precision): work.ask(w, wanted) for w in workers}
        check_equal(work, {key: answers for key, (_, answers) in first.items()})
        longest[work] = max(seconds for seconds, _ in first.values())
    if ("ours", "fp32") in {(w.kind, w.precision) for w in workers}:
        show(f"in f32, both give the same tokens in all {len(asked)} works")
    return longest


def check_equal(work: Work, answers: dict[tuple[str, str], list[Answer]]) -> None:
    """Ours in f32 has the tokens of every other engine in f32."""
    ours = answers.get(("ours", "fp32"), [])
    for (kind, precision), theirs in answers.items():
        wrong = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a.ids != b.ids]
        if wrong and precision == "fp32":
            raise UnequalError(
                f"{work.name}: {len(wrong)} of {work.requests} answers have other tokens than those of {kind} in f32, "
                f"the first of them that to request {wrong[0]}; nothing was timed."
            )


def row_of(work: Work, best: dict[tuple[str, str], float], rounds: int) -> dict[str, Any]:
    """The best of ours and of all others, in milliseconds, and how many times faster ours is."""
    kinds = dict.fromkeys(kind for kind, _ in best)
    sides = {
        side: {precision: round(1e3 * taken, 2) for (kind, precision), taken in best.items() if kind == side}
        for side in kinds
    }
    ours, theirs = (
        min((taken for (kind, _), taken in best.items() if (kind == "ours") == mine), default=float("nan"))
        for mine in (True, False)
    )
    return {
        "name": work.name,
        "ours": round(1e3 * ours, 2),
        "theirs": round(1e3 * theirs, 2),
        "ratio": round(theirs / ours, 2),
        "goal": work.goal,
        "unit": "ms",
        "by_precision": sides,
        "rounds": rounds,
    }


def show_row(row: dict[str, Any]) -> str:
    times = ", ".join(
        f"{side} {precision} {value:.1f}"
        for side, each in row["by_precision"].items()
        for precision, value in each.items()
    )
    return f"{row['name']:<32} {row['ratio']:>5.2f}x{goal_text(row['goal']):<11}  {times} ms"
