"""docs/performance.md, from the results of the benchmarks.

    python -m bench.report.report

Every table is made from one file of bench/results/KIND, of one kind of processor, and says by which command, when, with
what and where it was taken; with which version, if not with this one. Goals are those of `bench.report.goals` for that
kind. A benchmark that has not been run yet has no section.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attendant.common.version import VERSION
from bench.report import large, sections, texts
from bench.report.goals import GOALS, goal_of
from bench.report.record import RESULTS

PAGE = RESULTS.parent.parent / "docs" / "performance.md"
INTRODUCTION = """\
# Performance

This page is made by `make bench-report` from the files in [bench/results](../bench/results); every figure can be taken
again by the command beside it. Comparisons are ratios: both sides in one run, taking turns, the best turn of each, each
side in its faster precision, which may be f32 on one and int8 on the other; the tables have both.
Nothing is answered from a cache (`--cache-megabytes 0`), and no computation is shared by equal requests
(`--share-in-flight false`).
Figures of two kinds of processor stand apart, since they cannot be compared: with VNNI, integer products are several
times as fast.

Unless a section names another, the model is the paper's base model with random weights: 6 + 6 layers, d_model 512, d_ff
2048, 8 heads, a shared vocabulary of 32,000. CTranslate2 has the very same weights; before anything is timed, both must
give the same tokens in f32.
"""

SECTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "quick.json": ("Against CTranslate2", sections.quick),
    "large.json": ("A model of NLLB-600M's shape against CTranslate2", large.large),
    "import_large.json": ("Large models, from their files to answers", large.import_large),
    "imported.json": ("An imported model against CTranslate2", sections.imported),
    "words.json": ("The embedded model against CTranslate2", sections.words),
    "words_http.json": ("The embedded model over HTTP", sections.words_http),
    "lengths.json": ("Short and long", sections.lengths),
    "huggingface.json": ("Against Hugging Face", sections.huggingface),
    "serving.json": ("Over HTTP", sections.serving),
    "roofline.json": ("Against the limit of the machine", sections.roofline),
    "constraints.json": ("Terms and forbidden phrases", texts.constraints),
    "texts.json": ("Whole texts", texts.texts),
    "iteration.json": ("Where an iteration's time goes", sections.iteration),
    "lanes.json": ("Lanes on more cores", sections.lanes),
    "start.json": ("Ready after the process starts", sections.start),
    "drawing.json": ("The page in a browser", sections.drawing),
    "growth.json": ("Growth", sections.growth),
    "embedded.json": ("The embedded model", sections.embedded),
    "peers.json": ("The same tokens", sections.peers),
}


KINDS = {
    "amd-avx2": "AMD without VNNI",
    "amd-avx512": "AMD with AVX-512, without VNNI",
    "amd-vnni": "AMD with VNNI",
    "intel-avx2": "Intel without VNNI",
    "intel-avx512": "Intel with AVX-512, without VNNI",
    "intel-vnni": "Intel with VNNI",
}


def page(results: Path) -> str:
    """The whole page, from whatever results there are."""
    parts = [INTRODUCTION]
    for name, (title, make) in SECTIONS.items():
        paths = sorted(results.glob(f"*/{name}"))
        if paths:
            parts.append(f"## {title}\n")
        for path in paths:
            record = json.loads(path.read_text(encoding="utf-8"))
            kind = path.parent.name
            hold_to_goals(record, path.stem, kind)
            text = make(record).replace("](plots/", f"](plots/{kind}-")
            parts.append(f"### {KINDS.get(kind, kind)}\n\n{of_version(record)}{text}\n")
    return "\n".join(parts)


def hold_to_goals(record: Any, benchmark: str, kind: str) -> None:
    """Give rows the goals of today, where `bench.report.goals` has the benchmark: those of its day may have moved."""
    rows = record if isinstance(record, list) else [*record["rows"], *record.get("goals", [])]
    rows = [*rows, *(work for row in rows for work in row.get("works", []))]
    if benchmark in GOALS:
        for row in rows:
            if "goal" in row:
                row["goal"] = goal_of(benchmark, row["name"], kind)


def of_version(record: Any) -> str:
    """A sentence if the figures are of another version than this."""
    measured = (record[0] if isinstance(record, list) else record)["versions"]["attendant"]
    return "" if measured == VERSION else f"**Measured with version {measured}; this is {VERSION}.**\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/performance.md from the results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    options.out.write_text(page(options.results), encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    main()
