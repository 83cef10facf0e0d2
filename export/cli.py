"""The commands of this package: export, verify. Each imports what it needs when it runs."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from pathlib import Path

from export.bundle import BundleError, read_bundle
from model.threads import add_flag, asked_for


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
        help=("lines of source<TAB>target to calibrate and prove with (default: the run's own)"),
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    add_flag(parser)
    options = parser.parse_args(arguments)

    from export.convert import convert
    from export.precisions import DEFAULT
    from export.sample_pairs import INVENTED, has_samples

    started, threads = time.monotonic(), asked_for(options.threads)
    variants = tuple(dict.fromkeys((*(options.precision or DEFAULT), *(["fp16"] if options.fp16 else []))))
    name = options.name or options.run.resolve().name
    if not options.samples and options.run.is_dir() and not has_samples(options.run):
        print(
            f"{options.run} has no samples: calibrating and proving on {INVENTED} sources of random tokens and the "
            "model's own answers; give --samples TSV for int8 that is calibrated on real texts."
        )
    bundle = convert(options.run, options.out, name, variants, options.force, options.samples, threads)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(
        f"{options.out}: {', '.join(bundle.variants)}, {size / 1e6:.1f} MB, verified against torch; "
        f"{time.monotonic() - started:.0f} s"
    )


def verify(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--checkpoint", type=Path, metavar="RUN", help="compare with this torch model too")
    parser.add_argument("--samples", type=Path, metavar="TSV", help="what it was exported with, if not the run's own")
    options = parser.parse_args(arguments)
    if options.samples and not options.checkpoint:
        parser.error("--samples needs --checkpoint RUN: the samples are compared with the torch model.")
    bundle = read_bundle(options.bundle)

    from export.verify import verify as find_problems

    samples = None
    if options.checkpoint:
        from export.samples import read_samples
        from model.checkpoint import load_trained

        samples = read_samples(options.checkpoint, load_trained(options.checkpoint), options.samples)
    problems = find_problems(bundle, samples)
    if problems:
        raise BundleError("\n".join([f"{options.bundle} is not what it should be:", *problems]))
    against = f", against torch on {len(samples.texts):,} held-out inputs" if samples else ""
    print(f"{options.bundle}: {', '.join(bundle.variants)}; nothing is off{against}")
