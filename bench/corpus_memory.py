"""Memory of preparing and reading a corpus, small and large: it must not grow with the number of lines.

    python -m bench.corpus_memory --out FILE.json [--lines 100000 5000000]

Each size runs in a process of its own: it learns a byte-pair tokenizer, encodes the corpus, and goes through one epoch
of batches. The figure is that process's peak resident memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import machine_facts
from model.data import EncodedCorpus, epoch_batches
from model.pairs import read_pairs
from model.tokenizer import learn

BEGINNINGS, MIDDLES, ENDS = ("ba", "ne", "ko", "li", "su", "ra"), ("m", "st", "r", "l"), ("a", "o", "ing", "ed")
WORDS = [a + b + c for a in BEGINNINGS for b in MIDDLES for c in ENDS]


def write_corpus(path: Path, lines: int) -> None:
    """Sentences of 2 to 8 words, and the same words backwards."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            words = rng.choices(WORDS, k=rng.randint(2, 8))
            file.write(f"{' '.join(words)}\t{' '.join(reversed(words))}\n")


def peak_memory(tsv: str) -> dict[str, float]:
    """What one process needs for one epoch of a corpus."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        tokenizer = learn("bpe:400", (text for pair in read_pairs(Path(tsv)) for text in pair))
        corpus, _ = EncodedCorpus.write(Path(tsv), Path(directory) / "corpus", tokenizer, tokenizer, 512)
        pairs = sum(len(batch.source) for batch in epoch_batches(corpus, 8192, 1, 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"pairs": pairs, "peak_mib": round(peak / 2**20), "seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of going through a corpus.")
    parser.add_argument("--lines", type=int, nargs="+", default=[500_000, 5_000_000])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for lines in options.lines:
            tsv = Path(directory) / "corpus.tsv"
            write_corpus(tsv, lines)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                measured = pool.apply(peak_memory, (str(tsv),))
            rows.append({"lines": lines, "file_mib": round(tsv.stat().st_size / 2**20), **measured})
            print("{lines:>9,} lines, {file_mib:>5,} MiB: peak {peak_mib:,} MiB in {seconds:,.0f} s".format(**rows[-1]))
    command = shlex.join(["python", "-m", "bench.corpus_memory", *sys.argv[1:]])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"rows": rows, "machine": machine_facts(), "command": command}
    options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
