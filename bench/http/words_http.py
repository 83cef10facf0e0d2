"""The embedded model over HTTP: `attendant serve` against CTranslate2 behind a thin app, word by word, greedy.

    python -m bench.http.words_http [--seconds 8]

CTranslate2 is given each word as its ids, and tried in every way that `bench.http.serving` tries; the best is
compared with.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from attendant.service.hardware import available_cpus
from bench.http.load import Mix
from bench.http.servers import ROOT, attendant
from bench.http.serving import best_peer, closed, compare, unequal_lengths
from bench.report.goals import goal_of, goal_text
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import text
from bench.versus.words import EMBEDDED, peer_models, read_words

CLIENTS = (1, 16, 64)
WORDS = 1_000


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
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "data" / "test.tsv", help="TSV of sources")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "words_http.json")
    options = parser.parse_args()
    asked = mixes(options.data)
    peer, tried = best_peer(peer_models(), available_cpus(), asked["ctranslate2"], options.seconds)
    servers = {"attendant": (attendant(EMBEDDED), asked["attendant"]), "ctranslate2": (peer, asked["ctranslate2"])}
    rows = compare(servers, [closed(clients, options.seconds) for clients in CLIENTS], options.rounds)
    goals = ratios(rows)
    write_record(options.out, "bench.http.words_http", rows, tried=tried, goals=goals)
    sentence = unequal_lengths(rows)
    if sentence:
        print(f"warning: {sentence}")
    for row in goals:
        print(
            "{name}: {ours} requests/s against {theirs}, {ratio} times as many".format(**row) + goal_text(row["goal"])
        )


if __name__ == "__main__":
    main()
