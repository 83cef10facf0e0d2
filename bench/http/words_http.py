"""The embedded model over HTTP: `attendant serve` against CTranslate2 behind a thin app, word by word, greedy.

    python -m bench.http.words_http [--seconds 8] [--parts 16 64]

CTranslate2 is given each word as its ids, and tried in every way that `bench.http.serving` tries; the best is
compared with. Each part is written when it is done, and `--parts` measures some of them by themselves.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from attendant.common.hardware import available_cpus
from bench.http.load import Mix
from bench.http.servers import ROOT, attendant
from bench.http.serving import best_peer, best_way, closed, compare, unequal_lengths, way_of
from bench.report.goals import goal_of, goal_text
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import text
from bench.versus.words import EMBEDDED, peer_models, read_words

CLIENTS = (1, 16, 64)
PARTS = ("peers", *map(str, CLIENTS))  # CTranslate2's ways; numbers of clients
WORDS = 1_000
RUN_IN = 0.5  # seconds before anything is measured: an answer takes milliseconds


def mixes(data: Path) -> dict[str, Mix]:
    """The same words for both servers."""
    lines = data.read_text(encoding="utf-8").splitlines()
    words = list(dict.fromkeys(line.partition("\t")[0] for line in lines))[:WORDS]
    named = [text(list(ids)) for ids in read_words(data)[:WORDS]]
    return {
        name: Mix(texts=tuple(texts), beams=(1,), max_length=None)
        for name, texts in (("attendant", words), ("ctranslate2", named))
    }


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each number of clients, our requests/s over CTranslate2's."""
    found = []
    for clients in CLIENTS:
        load = f"{clients} clients"
        rates = {row["server"]: row["requests_per_second"] for row in rows if row["load"] == load}
        if not rates:  # not measured yet
            continue
        goal = goal_of("words_http", load)
        ratio = round(rates["attendant"] / rates["ctranslate2"], 2)
        found.append(
            {"name": load, "ours": rates["attendant"], "theirs": rates["ctranslate2"], "ratio": ratio, "goal": goal}
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The embedded model against CTranslate2 over HTTP.")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="each adds to what is in --out")
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "data" / "test.tsv", help="TSV of sources")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "words_http.json")
    options = parser.parse_args()
    asked = mixes(options.data)
    models, threads = peer_models(), available_cpus()
    if "peers" in options.parts:  # which begins anew: rows of two measurements never mix
        _, tried = best_peer(models, threads, asked["ctranslate2"], options.seconds)
        write_record(options.out, "bench.http.words_http", [], tried=tried, goals=[])
    before = json.loads(options.out.read_text(encoding="utf-8"))
    rows, tried = before["rows"], before["tried"]
    peer = way_of(best_way(tried), models, threads)
    servers = {"attendant": (attendant(EMBEDDED), asked["attendant"]), "ctranslate2": (peer, asked["ctranslate2"])}
    for clients in [each for each in CLIENTS if str(each) in options.parts]:
        load = closed(clients, options.seconds, RUN_IN)
        rows = [row for row in rows if row["load"] != f"{clients} clients"] + compare(servers, [load], options.rounds)
        write_record(options.out, "bench.http.words_http", rows, tried=tried, goals=ratios(rows))
    sentence = unequal_lengths(rows) if rows else None
    if sentence:
        print(f"warning: {sentence}")
    for row in ratios(rows):
        print(
            "{name}: {ours} requests/s against {theirs}, {ratio} times as many".format(**row) + goal_text(row["goal"])
        )


if __name__ == "__main__":
    main()
