"""The sections of docs/performance.md on constraints and on texts."""

from __future__ import annotations

from typing import Any

from bench.report.text import table, taken, verdict

KINDS = {"none": "none", "terms": "2 terms of 2 tokens", "forbid": "20 forbidden phrases of 2 tokens"}
WAYS = {
    "bulk": "in bulk, a sentence a line",
    "lines": "one text, split into lines",
    "sentences": "one text, split into sentences",
    "html": "one text of HTML, a tag in each sentence",
}


def constraints(record: Any) -> str:
    body = [
        [
            row["model"],
            row["requests"],
            KINDS[row["kind"]],
            row["ms"],
            row["tokens"],
            f"{row['ratio']:.2f}x",
            *_goal(row),
        ]
        for row in record["rows"]
    ]
    text = (
        "A beam of 5, in int8, with and without constraints of random tokens. The base model's answers have 24 tokens "
        "in either case, so that only the price is compared; the default model's are as long as they become, which "
        "with such terms is longer, and its steps take less time than a search in Python.\n\n"
    )
    heads = ["model", "requests", "constraints", "ms", "tokens", "to none", "goal, at most", "reached"]
    return f"{text}{table(heads, body)}\n\n{taken(record)}"


def _goal(row: dict[str, Any]) -> list[str]:
    goal = row.get("goal")
    return ["" if goal is None else f"{goal:g}x", verdict(round(row["ratio"], 2), goal, most=True)]


def texts(record: Any) -> str:
    rows = record["rows"]
    body = [
        [
            WAYS[row["way"]],
            row["seconds"],
            row["words_per_second"],
            f"{row['ratio']:.2f}x",
            row["splitting_seconds"],
        ]
        for row in rows
    ]
    text = (
        f"{rows[0]['sentences']:,} sentences of {rows[0]['words']:,} words, greedy, in int8, whose answers are as long "
        "as they are. Every way is `attendant generate --input`, less the time of the same command for one sentence; "
        "splitting alone finds the segments and their tokens, without a model. Tags cost a pass for the alignment.\n\n"
    )
    heads = ["way", "s", "words/s", "time to bulk", "of it splitting alone, s"]
    return f"{text}{table(heads, body)}\n\n{taken(record)}"
