"""Requests over HTTP: `attendant serve` against CTranslate2 behind a thin app, under the same load.

    python -m bench.http.serving [--seconds 20] [--parts 32 64]

The random base model whose answers end by themselves, as long as their sources (`bench.models.ending`), so that both
servers compute equally many tokens; sources of 4 to 60 tokens, a quarter of the requests with beam 4. CTranslate2 is
first tried in f32 and int8, as one batch on all threads and as two batches on one thread each; the best of these by
requests/s is what we compare with. Then both servers take turns at each load. Each part is written when it is
done, and `--parts` measures some of them by themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

from bench.http.load import Load, Mix, measure_load, show
from bench.http.servers import Server, attendant, ctranslate2, serving
from bench.models.peers import prepare_peer
from bench.report.goals import goal_of, goal_text
from bench.report.record import RESULTS_HERE, warn_of_few_cores, write_record

HEADLINE = 32  # clients
RANDOM, STREAMED = "random", "streamed"
PARTS = ("peers", "1", "8", "32", "64", RANDOM, STREAMED)  # CTranslate2's ways; numbers of clients; random arrivals
LOADED = 0.7  # of CTranslate2's best requests/s: the rate of the open loop
LENGTHS_APART = 1.05  # the ratio of mean lengths up to which requests are equal work
WARM_UP = Load(clients=8, requests=16, seconds=20.0)
MANY = 10**6  # requests: time is what ends a load
RUN_IN = 3.0  # seconds before anything is measured


def measure(server: Server, mix: Mix, load: Load) -> dict[str, Any]:
    measure_load(server.port, dataclasses.replace(mix, seed=mix.seed + 1), WARM_UP)
    return measure_load(server.port, mix, load)


def best_peer(
    models: dict[str, Path], threads: int, mix: Mix, seconds: float
) -> tuple[list[str], list[dict[str, Any]]]:
    """The arguments of CTranslate2's fastest way to serve this load, and what each way did."""
    tried = []
    for precision, model in models.items():
        for workers in sorted({1, threads}):
            arguments = ctranslate2(model, precision, workers, threads // workers)
            with serving(arguments) as server:
                found = measure(server, mix, closed(HEADLINE, seconds))
            name = f"{precision}, {workers} x {threads // workers} threads"
            tried.append({"server": "ctranslate2", "way": name, **found, "arguments": arguments})
            print(f"CTranslate2 {name}: {show(found)}", flush=True)
    best = max(tried, key=lambda row: row["requests_per_second"])
    return best.pop("arguments"), [{k: v for k, v in row.items() if k != "arguments"} for row in tried]


def closed(clients: int, seconds: float, run_in: float = RUN_IN) -> Load:
    return Load(clients=clients, requests=MANY, seconds=run_in + seconds, run_in=run_in)


def arriving(rate: float, seconds: float) -> Load:
    return Load(rate=rate, requests=MANY, seconds=RUN_IN + seconds, run_in=RUN_IN)


def unequal_lengths(goals_of: list[dict[str, Any]]) -> str | None:
    """A sentence where the servers' answers are not equally long, so that their requests are not equal work."""
    shortest, longest = (pick(row["mean_target_tokens"] for row in goals_of) for pick in (min, max))
    if longest <= LENGTHS_APART * shortest:
        return None
    return f"answers have {shortest} tokens on one side and {longest} on the other: compare tokens/s, not requests/s"


def headline(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The goals of the load, from the rows of both servers."""
    ours, theirs = (
        next(row for row in rows if row["server"] == server and row["load"] == name)
        for server in ("attendant", "ctranslate2")
    )
    rate = ("requests_per_second", "requests/s", ours["requests_per_second"], theirs["requests_per_second"])
    tail = ("p99", "ms", ours["latency_ms"]["p99"], theirs["latency_ms"]["p99"])
    found = []
    for what, unit, mine, others in (rate, tail):
        ratio = mine / others if what == "requests_per_second" else others / mine
        called = f"{name} over HTTP, {what.replace('_', ' ')}"
        found.append(
            {
                "name": called,
                "ours": mine,
                "theirs": others,
                "ratio": round(ratio, 2),
                "goal": goal_of("serving", called),
                "unit": unit,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The service against CTranslate2 over HTTP.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server at each load; the best counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="auto", help="ours")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="each adds to what is in --out")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "serving.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)

    from bench.models.random_model import Shape, prepare

    shape = Shape(ending=True)
    prepared = prepare(shape)
    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    mix = Mix(vocabulary=shape.vocabulary)
    if "peers" in options.parts:  # which begins anew: rows of two measurements never mix
        _, tried = best_peer(models, options.threads, mix, options.seconds)
        write_rows(options.out, [], tried, options.threads)
    before = json.loads(options.out.read_text(encoding="utf-8"))
    rows, tried = before["rows"], before["tried"]
    peer = way_of(best_way(tried), models, options.threads)
    rate = LOADED * best_way(tried)["requests_per_second"]
    ours = attendant(prepared.bundle, options.precision, options.threads)
    servers = {"attendant": (ours, mix), "ctranslate2": (peer, mix)}
    for part in [each for each in PARTS if each in options.parts and each != "peers"]:
        if part == STREAMED:
            with serving(ours) as server:
                streamed = measure(server, dataclasses.replace(mix, stream=True), arriving(rate, options.seconds))
            found = [{"server": "attendant", "way": "streamed", **streamed}]
            print(f"streamed: {show(streamed)}")
        else:
            load = arriving(rate, options.seconds) if part == RANDOM else closed(int(part), options.seconds)
            found = compare(servers, [load], options.rounds)
        rows = [*(row for row in rows if row["part"] != part), *({"part": part, **row} for row in found)]
        rows.sort(key=lambda row: PARTS.index(row["part"]))
        write_rows(options.out, rows, tried, options.threads)
    same_load = [row for row in rows if row["load"] == f"{HEADLINE} clients"]
    for sentence in filter(None, [unequal_lengths(same_load) if same_load else None]):
        print(f"warning: {sentence}")
    for goal in goals_of(rows):
        print("{name}: {ours} {unit} against {theirs}, {ratio} times as good".format(**goal) + goal_text(goal["goal"]))


def write_rows(out: Path, rows: list[dict[str, Any]], tried: list[dict[str, Any]], threads: int) -> None:
    write_record(out, "bench.http.serving", rows, tried=tried, goals=goals_of(rows), threads=threads)


def goals_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """None while their load is not measured yet."""
    name = f"{HEADLINE} clients"
    return headline(rows, name) if any(row["load"] == name for row in rows) else []


def best_way(tried: list[dict[str, Any]]) -> dict[str, Any]:
    return max(tried, key=lambda row: row["requests_per_second"])


def way_of(tried: dict[str, Any], models: dict[str, Path], threads: int) -> list[str]:
    """The arguments of a way that was tried."""
    precision, workers = tried["way"].split(", ")[0], int(tried["way"].split(", ")[1].split(" x ")[0])
    return ctranslate2(models[precision], precision, workers, threads // workers)


def compare(servers: dict[str, tuple[list[str], Mix]], wanted: list[Load], rounds: int) -> list[dict[str, Any]]:
    """Both servers in turn at every load, one idle while the other is measured; of its turns, the best counts.

    Each has its arguments, and what it is asked for: the same sources in its own words.
    """
    best: dict[tuple[int, str], dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        started = {name: stack.enter_context(serving(arguments)) for name, (arguments, _) in servers.items()}
        for number, load in enumerate(wanted):
            for _ in range(rounds):
                for name, server in started.items():
                    found = measure(server, servers[name][1], load)
                    print(f"{name}: {show(found)}", flush=True)
                    row = {"server": name, **found, "memory": server.memory(), "ready_seconds": server.ready_seconds}
                    held = best.get((number, name))
                    if held is None or better(row, held):
                        best[number, name] = row
    return [best[key] for key in sorted(best)]


def better(row: dict[str, Any], held: dict[str, Any]) -> bool:
    """More requests a second; where these are given, the shorter tail."""
    if "random" in row["load"]:
        return (row["latency_ms"]["p99"] or float("inf")) < (held["latency_ms"]["p99"] or float("inf"))
    return bool(row["requests_per_second"] > held["requests_per_second"])


if __name__ == "__main__":
    main()
