"""`attendant evaluate`: error rates of a run, by torch, or of a bundle, by the graphs that are served."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendant.export.bundle import MANIFEST, Bundle, BundleError, read_bundle
from attendant.model.threads import add_flag, asked_for, fastest, processors, seconds_of

if TYPE_CHECKING:
    from attendant.model.evaluation.evaluate import Answers
    from attendant.model.text.tokenizer import Tokenizer

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
    parser.add_argument("--errors", type=int, default=0, metavar="N", help="show N wrong answers with their references")
    parser.add_argument(
        "--predictions", type=Path, metavar="FILE", help="write every source, output and reference, a line of JSON each"
    )
    parser.add_argument(
        "--allow-unknown", action="store_true", help="decode sources with what the vocabulary lacks, as unknown tokens"
    )
    add_flag(parser)
    options = parser.parse_args(arguments)
    if options.beam_size < 1:
        raise EvaluateUsageError(f"--beam-size takes a whole number from 1, not {options.beam_size}.")
    if not math.isfinite(options.length_penalty):
        raise EvaluateUsageError(f"--length-penalty takes a number, not {options.length_penalty}.")
    options.threads = asked_for(options.threads)

    from attendant.model.evaluation.evaluate import check_pattern, errors_table, table

    check_pattern(options.ignore)
    answers, target, report = _of_bundle(options) if (options.model / MANIFEST).exists() else _of_run(options)
    print(table(report))
    if options.errors > 0:
        print("\n" + errors_table(answers, target.pieces, options.errors))
    if options.predictions:
        options.predictions.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(line, ensure_ascii=False) for line in answers.lines(target.pieces))
        options.predictions.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
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
    from attendant.model.evaluation.evaluate import check_pattern, report_of
    from attendant.model.text import tokenizer

    check_pattern(ignore)
    answers = bundle_answers(bundle, precision, data, beam_size, length_penalty)
    target = tokenizer.load(bundle.tokenizers["target"])
    about = {"precision": precision, "beam_size": beam_size, "length_penalty": length_penalty}
    report: dict[str, Any] = report_of(answers, target, ignore, **about)
    return report


def bundle_answers(
    bundle: Bundle,
    precision: str,
    data: Path,
    beam_size: int = 1,
    length_penalty: float = 1.0,
    allow_unknown: bool = False,
    threads: int | None = None,
) -> Answers:
    """A variant's answers; `threads`: 0 measures how many are fastest, None leaves onnxruntime's default."""
    from attendant.export.runner import GraphStepper, Runner
    from attendant.model.evaluation.evaluate import MEASURED, MEASURED_STEPS, WORTH_MEASURING, answers_to
    from attendant.model.search.decode import decode_sources
    from attendant.model.text import tokenizer

    start = _start(bundle)

    def stepper(number: int) -> GraphStepper:
        return GraphStepper(Runner(bundle.variants[precision].graphs, bundle.sizes, threads=number))

    def decode(sources: list[list[int]]) -> list[list[int]]:
        some = sources[:: max(1, len(sources) // MEASURED)]

        def seconds_with(number: int) -> float:
            short = stepper(number)
            short.max_length = MEASURED_STEPS
            return float(seconds_of(lambda: decode_sources(short, some, beam_size, start=start)))

        number = threads or 0
        if threads == 0 and len(sources) >= WORTH_MEASURING:
            number, _ = fastest(seconds_with, processors())
        return list(decode_sources(stepper(number), sources, beam_size, length_penalty, start=start))

    source, target = (tokenizer.load(bundle.tokenizers[side]) for side in ("source", "target"))
    return answers_to(data, source, target, bundle.limits["max_source_length"], decode, allow_unknown)


def _of_bundle(options: Namespace) -> tuple[Answers, Tokenizer, dict[str, Any]]:
    """The answers, the target tokenizer and the report."""
    from attendant.model.evaluation.evaluate import report_of
    from attendant.model.text import tokenizer

    bundle = read_bundle(options.model)
    precision = choose_precision(bundle, options.precision)
    search = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    more = {"allow_unknown": options.allow_unknown, "threads": options.threads}
    answers = bundle_answers(bundle, precision, options.data, **search, **more)
    target = tokenizer.load(bundle.tokenizers["target"])
    return answers, target, report_of(answers, target, options.ignore, precision=precision, **search)


def _of_run(options: Namespace) -> tuple[Answers, Tokenizer, dict[str, Any]]:
    """The answers, the target tokenizer and the report."""
    if options.precision:
        raise EvaluateUsageError(f"--precision is for a bundle, and {options.model} is none; leave it out.")

    from attendant.model.checkpoint import load_trained, read_config
    from attendant.model.evaluation.evaluate import report_of, run_answers

    trained = load_trained(options.model)
    _check_languages(read_config(options.model).get("languages", {}), options.model)
    search = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    more = {"allow_unknown": options.allow_unknown, "threads": options.threads}
    answers = run_answers(trained, options.data, **search, **more)
    return answers, trained.target, report_of(answers, trained.target, options.ignore, **search)


def _start(bundle: Bundle) -> list[int]:
    """The tokens that every target starts with, as the service decodes them where a request names no language."""
    start = bundle.generation.get("target_prefix", [])
    if not isinstance(start, list) or not all(type(i) is int and 0 <= i < bundle.sizes.target_vocab for i in start):
        raise BundleError(f"{bundle.directory / MANIFEST}: generation.target_prefix is no list of target ids.")
    _check_languages(bundle.languages, bundle.directory)
    return start


def _check_languages(languages: dict[str, Any], path: Path) -> None:
    """A model of several languages is evaluated in those that its import named."""
    for side, tables in (("source", ("source_prefix",)), ("target", ("target_prefix", "source_prefix_by_target"))):
        if any(languages.get(name) for name in tables) and not languages.get(f"{side}_language"):
            raise EvaluateUsageError(
                f"{path} has several {side} languages, and its import named none; import it with --{side}-language."
            )
