"""`attendant evaluate`: error rates of a run, by torch, or of a bundle, by the graphs that are served."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from export.bundle import MANIFEST, Bundle, BundleError, read_bundle

PREFERRED = ("int8", "fp32")  # on a CPU, fastest first


class EvaluateUsageError(Exception):
    exit_code = 2


def evaluate(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "model", type=Path, metavar="RUN_OR_BUNDLE", help="what attendant train, release or export wrote"
    )
    parser.add_argument("--data", required=True, type=Path, metavar="TSV")
    parser.add_argument("--beam-size", type=int, default=1, metavar="K", help="1 is greedy (default: 1)")
    parser.add_argument("--length-penalty", type=float, default=1.0, metavar="P", help="default: 1.0")
    parser.add_argument("--precision", metavar="NAME", help="of a bundle (default: int8 where it has that, else fp32)")
    parser.add_argument("--ignore", metavar="REGEX", help="report also with what matches taken out of both sides")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args(arguments)
    if options.beam_size < 1:
        raise EvaluateUsageError(f"--beam-size takes a whole number from 1, not {options.beam_size}.")
    report = _of_bundle(options) if (options.model / MANIFEST).exists() else _of_run(options)

    from model.evaluate import table

    print(table(report))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def choose_precision(bundle: Bundle, asked: str | None) -> str:
    """The variant that was asked for, else the fastest on a CPU."""
    if asked is None:
        return next((name for name in PREFERRED if name in bundle.variants), next(iter(bundle.variants)))
    if asked not in bundle.variants:
        raise EvaluateUsageError(
            f"--precision takes one of {', '.join(bundle.variants)}, which {bundle.directory} holds, not {asked!r}."
        )
    return asked


def evaluate_bundle(
    bundle: Bundle, precision: str, data: Path, beam_size: int, length_penalty: float, ignore: str | None
) -> dict[str, Any]:
    """Decode every source of a TSV with a variant's graphs and score it against all of its targets."""
    from export.runner import GraphStepper, Runner
    from model import tokenizer
    from model.decode import decode_sources
    from model.evaluate import check_pattern, measure
    from model.pairs import read_references

    check_pattern(ignore)
    source, target = (tokenizer.load(bundle.tokenizers[side]) for side in ("source", "target"))
    references = read_references(data)
    encoded = source.encode_batch(list(references))
    _check_lengths(bundle, data, list(references), encoded)
    stepper = GraphStepper(Runner(bundle.variants[precision].graphs, bundle.sizes))
    found = decode_sources(stepper, encoded, beam_size, length_penalty)
    report: dict[str, Any] = {"data": data.name, "sources": len(references), "precision": precision}
    report |= {"beam_size": beam_size, "length_penalty": length_penalty}
    return report | dict(measure([target.decode(ids) for ids in found], list(references.values()), target, ignore))


def _of_bundle(options: Namespace) -> dict[str, Any]:
    bundle = read_bundle(options.model)
    precision = choose_precision(bundle, options.precision)
    search = (options.beam_size, options.length_penalty)
    return evaluate_bundle(bundle, precision, options.data, *search, options.ignore)


def _of_run(options: Namespace) -> dict[str, Any]:
    if options.precision:
        raise EvaluateUsageError(f"--precision is for a bundle, and {options.model} is none; leave it out.")

    from model.checkpoint import load_trained
    from model.evaluate import evaluate_run

    trained = load_trained(options.model)
    report: dict[str, Any] = evaluate_run(
        trained, options.data, options.beam_size, options.length_penalty, options.ignore
    )
    return report


def _check_lengths(bundle: Bundle, data: Path, texts: list[str], encoded: list[list[int]]) -> None:
    limit = bundle.limits["max_source_length"]
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) > limit:
            raise BundleError(f"{data}: a source has {len(ids)} tokens, and the model reads {limit}: {text[:40]!r}.")
