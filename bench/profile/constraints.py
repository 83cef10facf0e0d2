"""What terms and forbidden phrases cost: the time of a beam search with them over that of the same without.

    python -m bench.profile.constraints --out FILE.json

The paper's base model with random weights, in int8; every answer has as many tokens, with and without, so that only
their price is compared. And the default model, as it is, whose answers with a term may be longer. The kinds take turns;
the median of each counts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

from attendant.export.bundle import Bundle, read_bundle
from attendant.service.engine.engine import Engine, EngineSettings
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.constraints.forbidden import Forbidden, chain
from attendant.service.engine.search.constraints.terms import Form, Term
from attendant.service.engine.tasks import Generate, Generated, Ids, Options
from attendant.service.settings import DEFAULT_BUNDLE
from bench.models.random_model import prepare
from bench.report.goals import goal_of
from bench.report.record import RESULTS_HERE, write_record

BEAM, LENGTH, REQUESTS, TURNS, TERM_TOKENS, TERMS, FORBIDDEN = 5, 24, (1, 8), 7, 2, 2, 20
WORDS = ("potato", "encyclopedia", "attendant", "transformer", "through", "language", "sentence", "glossary")
KINDS = ("none", "terms", "forbid")
FIRST = 4  # the first id that is no special token


def constraints(kind: str, vocabulary: int, source: Ids) -> Constraints | None:
    """Of one text: its terms or forbidden phrases are random tokens, as its source decides."""
    draw = random.Random(f"{kind} {source}")

    def phrase() -> Ids:
        return tuple(draw.randrange(FIRST, vocabulary) for _ in range(TERM_TOKENS))

    if kind == "none":
        return None
    if kind == "forbid":
        return Constraints(forbidden=Forbidden(chain(phrase()) for _ in range(FORBIDDEN)))
    return Constraints(terms=tuple(Term((Form(phrase(), ""),)) for _ in range(TERMS)))


def tasks_of(kind: str, bundle: Bundle, sources: list[Ids], length: int | None) -> list[Generate]:
    """Of this length, or where it is None as the model ends them."""
    limit = length or bundle.limits["max_target_length"]
    options = Options(beam_size=BEAM, max_length=limit, min_length=0 if length is None else limit)
    vocabulary = bundle.sizes.target_vocab
    return [Generate(source=each, options=options, constraints=constraints(kind, vocabulary, each)) for each in sources]


def measure(name: str, bundle: Bundle, sources: list[Ids], length: int | None, turns: int) -> list[dict[str, Any]]:
    """A row for each number of requests decoded together."""
    engine = Engine(bundle, EngineSettings(precision="int8", lanes=1))
    rows = []
    try:
        for count in REQUESTS:
            seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
            tokens: dict[str, float] = {}
            for turn in range(turns + 1):  # the first one warms up
                for kind in KINDS:
                    tasks = tasks_of(kind, bundle, sources[:count], length)
                    started = time.perf_counter()
                    results = engine.run(tasks)
                    if turn:
                        seconds[kind].append(time.perf_counter() - started)
                    found = [len(each.hypotheses[0].logprobs) for each in results if isinstance(each, Generated)]
                    tokens[kind] = statistics.mean(found)
            median = {kind: statistics.median(taken) for kind, taken in seconds.items()}
            rows += [
                {
                    "name": f"{name}, {kind}",
                    "model": name,
                    "requests": count,
                    "kind": kind,
                    "ms": 1000 * median[kind],
                    "tokens": tokens[kind],
                    "ratio": median[kind] / median["none"],
                    "goal": goal_of("constraints", f"{name}, {kind}"),
                }
                for kind in KINDS
            ]
    finally:
        engine.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of terms and forbidden phrases.")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "constraints.json")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    base = read_bundle(prepare().bundle)
    draw = random.Random(0)
    sources = [
        tuple(draw.randrange(FIRST, base.sizes.source_vocab) for _ in range(LENGTH)) for _ in range(max(REQUESTS))
    ]
    rows = measure("base", base, sources, LENGTH, options.turns)
    default = read_bundle(DEFAULT_BUNDLE)
    letters = {chr(ord("a") + number): number for number in range(26)}
    words = [tuple(FIRST + letters[letter] for letter in word) for word in WORDS]
    rows += measure("default", default, words, None, options.turns)
    for row in rows:
        print(
            "  ".join(
                f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    write_record(options.out, "bench.profile.constraints", rows)


if __name__ == "__main__":
    main()
