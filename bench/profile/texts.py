"""What texts cost: a text of 10,000 sentences against the same sentences in bulk, splitting alone, and tags.

    python -m bench.profile.texts [--sentences 10000] [--turns 2]

The paper's base model with random weights, in int8, greedy, whose answers are as long as their sources. Every way is
the same command, `attendant generate --input`, less its time for one sentence, which is the start; the ways take turns,
and the best of each counts. The last word of a sentence has a full stop, which this vocabulary lacks: it is unknown.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import attendant
from attendant.export.bundle import read_bundle
from attendant.service.documents.building import Format, Reader, build_document
from attendant.service.documents.protection import Protection
from attendant.service.text.tokenizer import Tokenizer
from bench.models.random_model import BASE, Shape, prepare
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import random_ids, text

SENTENCES, TURNS = 10_000, 2
WORDS = (4, 24)  # of a sentence, from and to
PARAGRAPH, PAGE = 8, 5000  # sentences
WAYS = BULK, LINES, TEXT, HTML = "bulk", "lines", "sentences", "html"


def make_sentences(count: int, vocabulary: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [text(random_ids(rng, int(rng.integers(*WORDS)), vocabulary)) + "." for _ in range(count)]


def paragraphs(sentences: Sequence[str]) -> str:
    parts = [sentences[first : first + PARAGRAPH] for first in range(0, len(sentences), PARAGRAPH)]
    return "\n\n".join(map(" ".join, parts))


def tagged(sentence: str) -> str:
    """The same words, the second one in an element."""
    first, second, rest = sentence.split(" ", 2)
    return f"{first} <b>{second}</b> {rest}"


def page(sentences: Sequence[str]) -> str:
    return "\n".join(f"<p>{tagged(sentence)}</p>" for sentence in sentences)


def pages(sentences: Sequence[str]) -> str:
    """As many as it takes: a line of bulk has less than 1 MiB."""
    return "".join(record(page(sentences[first : first + PAGE])) for first in range(0, len(sentences), PAGE))


def record(source: str) -> str:
    return json.dumps({"text": source}) + "\n"


def ways(sentences: Sequence[str]) -> dict[str, tuple[str, str, list[str]]]:
    """(file, its contents, flags) of each."""
    return {
        BULK: ("bulk.txt", "\n".join(sentences) + "\n", []),
        LINES: ("lines.jsonl", record("\n".join(sentences)), ["--split", "lines"]),
        TEXT: ("text.jsonl", record(paragraphs(sentences)), ["--split", "sentences"]),
        HTML: ("html.jsonl", pages(sentences), ["--split", "sentences", "--html"]),
    }


def generate(bundle: Path, directory: Path, sentences: Sequence[str], way: str) -> float:
    """Seconds of the command; RuntimeError unless every sentence was answered."""
    name, contents, flags = ways(sentences)[way]
    source = directory / name
    source.write_text(contents, encoding="utf-8")
    out = Path(tempfile.mkdtemp(dir=directory)) / "answers"
    command = ["generate", "--bundle", str(bundle), "--input", str(source), "--output", str(out)]
    command += ["--allow-unknown", "true", "--precision", "int8", *flags]
    started = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code = attendant.main(command)
    seconds = time.perf_counter() - started
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit {code}\n{errors.getvalue()}")
    return seconds


def splitting(tokenizer: Tokenizer, source: str, html: bool, limit: int) -> float:
    """Seconds to read a text as its segments, each of which is fitted to the model's limit."""
    form = Format(split="sentences", html=html, protection=Protection(), language="en", most=10**9)
    reader = Reader(
        limit=limit,
        spans=lambda part: [span for span in tokenizer.spans(part, False) if span is not None],
        knows=lambda _: True,
    )
    started = time.perf_counter()
    build_document(source, form, reader, "inputs")
    return time.perf_counter() - started


def best_of(turns: int, measured: dict[str, Callable[[], float]]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(turns):
        for name, measure in measured.items():
            taken[name].append(measure())
    return {name: min(seconds) for name, seconds in taken.items()}


def measure(directory: Path, count: int, turns: int) -> list[dict[str, Any]]:
    """A row for each way."""
    bundle = read_bundle(directory)
    tokenizer = Tokenizer(directory / bundle.tokenizers["source"], bundle.special_ids)
    limit = bundle.limits["max_source_length"]
    sentences = make_sentences(count, bundle.sizes.source_vocab)
    words = sum(len(sentence.split()) for sentence in sentences)
    with tempfile.TemporaryDirectory() as here:
        generating = partial(generate, directory, Path(here))
        starts = best_of(turns, {way: partial(generating, sentences[:1], way) for way in WAYS})
        found = best_of(turns, {way: partial(generating, sentences, way) for way in WAYS})
    split = best_of(
        turns,
        {
            TEXT: partial(splitting, tokenizer, paragraphs(sentences), False, limit),
            HTML: partial(splitting, tokenizer, page(sentences), True, limit),
        },
    )
    seconds = {way: found[way] - starts[way] for way in found}
    return [
        {
            "way": way,
            "sentences": count,
            "words": words,
            "seconds": seconds[way],
            "words_per_second": words / seconds[way],
            "ratio": seconds[way] / seconds[BULK],
            "splitting_seconds": split.get(way),
        }
        for way in seconds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What texts cost.")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "texts.json")
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    shape = Shape(**{**vars(BASE), "ending": True})
    rows = measure(prepare(shape).bundle, options.sentences, options.turns)
    for row in rows:
        print(f"{row['way']:10} {row['seconds']:7.1f} s  {row['words_per_second']:7.0f} words/s  {row['ratio']:.2f}")
    write_record(options.out, "bench.profile.texts", rows)


if __name__ == "__main__":
    main()
