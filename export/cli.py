"""The commands of this package: export, verify. Each imports what it needs when it runs."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from attendant.export.bundle import Bundle, BundleError, read_bundle
from attendant.export.verify.extent import extent_of
from attendant.model.files import check_writable
from attendant.model.threads import add_flag, asked_for

LONGEST_DESCRIPTION = 300
SHOWN = 3  # problems of a variant that was left out


def export(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="what attendant train, release or import wrote")
    parser.add_argument("--out", required=True, type=Path, metavar="BUNDLE")
    parser.add_argument("--name", metavar="NAME", help="what the service calls the model (default: the run's name)")
    parser.add_argument("--fp16", action="store_true", help="add a half-precision variant, for CUDA")
    parser.add_argument(
        "--precision",
        action="append",
        choices=("fp32", "int8", "fp16"),
        metavar="P",
        help=("a variant to write: fp32, int8 or fp16; may be repeated (default: fp32 and int8)"),
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="TSV",
        help=("lines of source<TAB>target to prove and measure with (default: the run's own)"),
    )
    parser.add_argument(
        "--require",
        action="append",
        choices=("int8",),
        metavar="P",
        default=[],
        help="int8: refuse to write the bundle where int8 is off (default: it is left out, with a warning)",
    )
    parser.add_argument("--description", metavar="TEXT", help="a sentence on what the model does, which the page shows")
    parser.add_argument(
        "--example",
        action="append",
        metavar="TEXT",
        help="a source to try on the page, which shows the first at once; may be repeated (default: of the samples)",
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40.0,
        metavar="N",
        help=(
            "how long to search certified answers again, to choose the alignment and to compare answers; what does not "
            "fit is told (default: 40)"
        ),
    )
    add_flag(parser)
    options = parser.parse_args(arguments)
    check_writable(options.out, beside=True)

    from attendant.export.make.convert import convert
    from attendant.export.make.sample_pairs import INVENTED, has_samples
    from attendant.export.precisions import DEFAULT

    started, threads = time.monotonic(), asked_for(options.threads)
    variants = tuple(dict.fromkeys((*(options.precision or DEFAULT), *(["fp16"] if options.fp16 else []))))
    for precision in options.require:
        if precision not in variants:
            parser.error(f"--require {precision} needs --precision {precision} too.")
    if options.description is not None and not 0 < len(options.description) <= LONGEST_DESCRIPTION:
        parser.error(f"--description takes 1 to {LONGEST_DESCRIPTION} characters, not {len(options.description)}.")
    given = {"description": options.description, "examples": options.example}
    about = {name: value for name, value in given.items() if value is not None}
    name = options.name or options.run.resolve().name
    if not options.samples and options.run.is_dir() and not has_samples(options.run):
        print(
            f"{options.run} has no samples: proving on {INVENTED} sources of random tokens and the model's own "
            "answers, which do not say how near int8 is to f32 on texts; give --samples TSV to measure it on some."
        )
    bundle = convert(
        options.run,
        options.out,
        name,
        variants,
        options.force,
        options.samples,
        threads,
        options.require,
        _warn,
        options.seconds,
        shows=True,
        about=about,
    )
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(
        f"{options.out}: {', '.join(bundle.variants)}, {size / 1e6:.1f} MB, verified against torch; "
        f"{time.monotonic() - started:.0f} s"
    )
    for line in not_looked_at(bundle):
        print(line)


def not_looked_at(bundle: Bundle) -> list[str]:
    """What the proof of a bundle did not look at, for want of time or memory; one line each."""
    looked_at = bundle.certificate.get("looked_at", {})
    lines = [f"{done:,} of {whole:,} {what}; --seconds allows for more" for what, (done, whole) in looked_at.items()]
    beyond = extent_of(bundle.sizes).left_out(bundle.sizes.max_length)
    return [f"  looked at: {line}" for line in lines] + [f"  not looked at: {line}" for line in beyond]


def _warn(problems: list[str]) -> None:
    """int8 was left out: say why, in a few lines."""
    *found, advice = problems
    more = [f"and {len(found) - SHOWN} more problems"] if len(found) > SHOWN else []
    lines = ["warning: int8 is not the model closely enough, so it was left out:", *found[:SHOWN], *more]
    print("\n".join([*lines, advice, "--require int8 refuses such a bundle."]), file=sys.stderr)


def verify(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--checkpoint", type=Path, metavar="RUN", help="compare with this torch model too")
    parser.add_argument("--samples", type=Path, metavar="TSV", help="what it was exported with, if not the run's own")
    options = parser.parse_args(arguments)
    if options.samples and not options.checkpoint:
        parser.error("--samples needs --checkpoint RUN: the samples are compared with the torch model.")
    bundle = read_bundle(options.bundle)

    from attendant.export.verify.verify import verify as find_problems

    samples = None
    if options.checkpoint:
        from attendant.export.make.balance import load_balanced
        from attendant.export.make.samples import read_samples

        samples = read_samples(options.checkpoint, load_balanced(options.checkpoint), options.samples)
    problems = find_problems(bundle, samples)
    if problems:
        raise BundleError("\n".join([f"{options.bundle} is not what it should be:", *problems]))
    against = f", against torch on {len(samples.texts):,} held-out inputs" if samples else ""
    print(f"{options.bundle}: {', '.join(bundle.variants)}; nothing is off{against}")
