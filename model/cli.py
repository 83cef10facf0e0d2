"""The commands of this package: data, train, distill, plot, release. Each imports what it needs when it runs."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path

from model.errors import ConfigError, InterruptedRunError, UserError


def data(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "corpus",
        choices=["g2p", "tagging", "sentiment", "spelling"],
        help=(
            "g2p: English words to phones (the default model's); small ones, made up: tagging (an output as long as "
            "the input), sentiment (one label), spelling (digits to words, of any length)"
        ),
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    if options.corpus == "g2p":
        from model.g2p import make_corpus

        counts = make_corpus(options.out)
    else:
        from model.tasks import make_task

        counts = make_task(options.corpus, options.out)
    for part, count in counts.items():
        print(f"{options.out / part}.tsv: {count:,} pairs")


def train(parser: ArgumentParser, arguments: list[str]) -> None:
    pairs = parser.add_mutually_exclusive_group(required=True)
    pairs.add_argument("--data", type=Path, metavar="TSV", help="lines of source<TAB>target")
    pairs.add_argument("--distilled", type=Path, metavar="DIR", help="what attendant distill wrote")
    parser.add_argument("--valid", required=True, type=Path, metavar="TSV", help="held-out lines, to validate on")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="the directory of the run")
    parser.add_argument("--preset", default="base", metavar="NAME", help="tiny, g2p, base or big (default: base)")
    parser.add_argument("--source-tokenizer", metavar="T", help="chars, words or bpe:SIZE (default: chars)")
    parser.add_argument("--target-tokenizer", metavar="T", help="chars, words or bpe:SIZE (default: chars)")
    parser.add_argument("--tokenizer", metavar="T", help="one for both sides")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any option of model/config.py")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")
    options = parser.parse_args(arguments)

    from model import config, teachers, tokenizer

    if options.distilled and (options.tokenizer or options.source_tokenizer or options.target_tokenizer):
        raise ConfigError("--distilled brings the teachers' tokenizers; leave out those that are named.")
    if options.tokenizer and (options.source_tokenizer or options.target_tokenizer):
        raise ConfigError("--tokenizer is one for both sides; leave out --source-tokenizer and --target-tokenizer.")
    for flag in ("tokenizer", "source_tokenizer", "target_tokenizer"):
        if getattr(options, flag):
            tokenizer.check_kind(getattr(options, flag), f"--{flag.replace('_', '-')}")
    model, training = config.build(options.preset, dict(map(config.parse_setting, options.set)))

    from model.prepare import Plan
    from model.train import train as run_training

    plan = Plan(
        data=options.data or options.distilled / teachers.PAIRS,
        distilled=options.distilled,
        valid=options.valid,
        out=options.out,
        model=model,
        train=training,
        source_tokenizer=options.source_tokenizer or "chars",
        target_tokenizer=options.target_tokenizer or "chars",
        shared_tokenizer=options.tokenizer,
        resume=options.resume,
    )
    try:
        result = run_training(plan)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"stopped; --resume goes on from the last checkpoint in {options.out}.") from None
    if os.environ.get("RANK", "0") != "0":  # under torchrun, one process speaks
        return
    print(
        f"{result.run}: {result.step} steps in {result.seconds:,.0f} s; "
        f"best at step {result.best_step} ({training.select} {result.best_value:.4g})"
    )


def distill(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("teachers", nargs="+", type=Path, metavar="RUN", help="trained models with the same tokenizers")
    parser.add_argument("--data", required=True, type=Path, metavar="TSV", help="what they were trained on")
    parser.add_argument(
        "--words",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help=("sources without a target, one a line, that the teachers label"),
    )
    parser.add_argument(
        "--held-out", nargs="+", default=[], type=Path, metavar="TSV", help="never label a source of these"
    )
    parser.add_argument(
        "--min-probability", type=float, default=0.0, metavar="P", help="leave out labels below (default: 0)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)

    from model.distill import DistillPlan
    from model.distill import distill as run_distillation

    counts = run_distillation(DistillPlan(**vars(options)))["counts"]
    print(
        f"{options.out}: {counts['pairs']:,} pairs and {counts['labelled']:,} labelled words; left out: "
        f"{counts['words_with_targets']:,} with a target, {counts['words_held_out']:,} held out, "
        f"{counts['words_unreadable']:,} unreadable"
    )


def plot(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "what",
        choices=["history", "positions", "attention"],
        help=(
            "history: loss and learning rate of a run; positions: the sinusoidal encoding; "
            "attention: where each head of a trained model looks, for one source"
        ),
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="not for positions")
    parser.add_argument("--source", metavar="TEXT", help="for attention: what to read")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    if options.what != "positions" and options.run is None:
        raise ConfigError(f"attendant plot {options.what} takes a RUN.")
    if options.what == "attention" and not options.source:
        raise ConfigError("attendant plot attention takes --source TEXT, a text for the model to read.")

    from model import plots

    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "history":
        written = plots.plot_history(options.run, options.out)
    elif options.what == "positions":
        written = plots.plot_positions(options.out)
    else:
        written = plots.plot_attention(options.run, options.source, options.out)
    for path in written:
        print(path)


def release(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="what attendant train wrote")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new directory")
    parser.add_argument("--step", type=int, metavar="N", help="a checkpoint's own weights (default: the best average)")
    options = parser.parse_args(arguments)
    if options.out.exists():
        raise UserError(f"{options.out} is there already; name a new directory, or remove it first.")

    from model import checkpoint

    checkpoint.release(options.run, options.out, options.step)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {size / 1e6:.1f} MB, half precision")
