"""The goals that figures are held to: one table, by benchmark and by the name of its row.

Those in times CTranslate2's depend on what the processor has for products of 8 bits: without VNNI only those of
`bench.versus.quick` are set, as what 0.1.0 reached. The others hold on any processor.
"""

from __future__ import annotations

from bench.report.machine import machine_facts

Goals = dict[str, dict[str, float]]

# Base model, in one process; an imported model of that size has the same.
BASE_WORKS = ("1 request, greedy", "1 request, beam 4", "32 requests, greedy", "16 requests, beam 4")
BASE_WITH_VNNI = dict(zip(BASE_WORKS, (5.0, 6.0, 2.0, 2.5), strict=True))
BASE_WITHOUT = dict(zip(BASE_WORKS, (2.7, 4.4, 1.9, 2.1), strict=True))

WITH_VNNI: Goals = {
    "quick": BASE_WITH_VNNI,
    "imported": BASE_WITH_VNNI,
    "words": {
        "1 word, greedy": 1.6,
        "1 word, beam 4": 1.6,
        "32 words, greedy": 1.4,
        "1,024 words, greedy": 1.4,
        "256 words, beam 4": 1.6,
    },
    "words_http": {"16 clients": 1.4, "64 clients": 1.4},
    "serving": {"32 clients over HTTP, requests per second": 3.0, "32 clients over HTTP, p99": 3.0},
    "large": {"1 request, greedy": 3.0, "1 request, beam 4": 3.5, "8 requests, beam 4": 2.2},
    "import_large": {"1 request, greedy": 2.1, "1 request, beam 4": 2.4, "8 requests, beam 4": 1.5},
}
WITHOUT: Goals = {"quick": BASE_WITHOUT, "imported": BASE_WITHOUT}
ANYWHERE: Goals = {
    "quick": {"peak memory, int8": 1.0, "the same with --lanes 1": 1.0},
    "large": {"peak memory, int8, two lanes": 1.0},
    "import_large": {
        "peak memory, int8, two lanes": 1.0,
        "export of base, seconds": 120.0,
        "export, times the weights": 4.0,  # in f32, of the peak memory
    },
    "start": {"base": 1.0, "large": 2.0, "embedded": 2.0},  # seconds until it is ready
    "drawing": {"drawing": 100.0, "files": 300.0},  # ms, and kB
    "constraints": {"base, terms": 1.3, "base, forbid": 1.3},  # times a plain beam of the same size
    "roofline": {"int8, 1 row": 1.3, "int8, 32 rows": 1.5, "int8, 64 rows": 1.4},  # times the machine's limit
}
GOALS = {*WITH_VNNI, *WITHOUT, *ANYWHERE}  # benchmarks that have some
HERE: str = machine_facts()["kind"]


def goal_of(benchmark: str, name: str, kind: str = HERE) -> float | None:
    """The goal of a row of a benchmark on a kind of processor, if there is one."""
    by_kind = WITH_VNNI if kind.endswith("vnni") else WITHOUT
    return {**ANYWHERE.get(benchmark, {}), **by_kind.get(benchmark, {})}.get(name)


def goal_text(goal: float | None) -> str:
    return "" if goal is None else f" (goal {goal:g})"
