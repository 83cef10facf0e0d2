"""The commands of this package: data, train, distill, plot, release. Each imports what it needs when it runs."""

from __future__ import annotations

import dataclasses
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from attendant.model import threads
from attendant.model.errors import ConfigError, UserError
from attendant.model.files import check_writable

if TYPE_CHECKING:
    from attendant.model.training.prepare import Plan


def data(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "corpus",
        choices=["g2p", "tagging", "sentiment", "spelling", "translation"],
        help=(
            "g2p: English words to phones (the default model's); small synthetic ones: tagging (an output as long as "
            "the input), sentiment (one label), spelling (digits to words, of any length), translation (English "
            "sentences to German)"
        ),
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    check_writable(options.out)
    if options.corpus == "g2p":
        from attendant.model.corpus.g2p import make_corpus

        counts = make_corpus(options.out)
    else:
        from attendant.model.corpus.synthetic import make_synthetic

        counts = make_synthetic(options.corpus, options.out)
    for part, count in counts.items():
        print(f"{options.out / part}.tsv: {count:,} pairs")


def train(parser: ArgumentParser, arguments: list[str]) -> None:
    pairs = parser.add_mutually_exclusive_group(required=True)
    pairs.add_argument("--data", type=Path, metavar="TSV", help="lines of source<TAB>target")
    pairs.add_argument("--distilled", type=Path, metavar="DIR", help="what attendant distill wrote")
    parser.add_argument(
        "--valid", type=Path, metavar="TSV", help="held-out lines, to validate on (default: some are split off --data)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="the directory of the run")
    parser.add_argument(
        "--init-from", type=Path, metavar="MODEL", help="begin with a trained model: its weights, tokenizers and shape"
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="tiny, g2p, base or big (default: what fits the corpus and the machine)"
    )
    parser.add_argument("--source-tokenizer", metavar="T", help="chars, words or bpe:SIZE (default: chars)")
    parser.add_argument("--target-tokenizer", metavar="T", help="chars, words or bpe:SIZE (default: chars)")
    parser.add_argument("--tokenizer", metavar="T", help="one for both sides")
    parser.add_argument(
        "--normalize", metavar="LIST", help="of lower, nfc, strip: done to every source, here and where it is served"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any option of model/config.py")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")
    threads.add_flag(parser)
    options = parser.parse_args(arguments)
    number = threads.asked_for(options.threads)
    plan = train_plan(options)
    check_writable(options.out)

    from attendant.model.training.estimate import duration
    from attendant.model.training.train import train as run_training

    result = run_training(dataclasses.replace(plan, threads=number))
    if os.environ.get("RANK", "0") != "0":  # under torchrun, one process prints
        return
    bundle = result.run.with_name(f"{result.run.name}-bundle") if result.run.name else "bundle"  # the run may be `.`
    unit = "nats per token" if plan.train.select == "loss" else "% of sequences wrong"
    best = f"best at step {result.best_step:,}: validation {plan.train.select} {result.best_value:.4g} {unit}"
    print(
        f"{result.run}: {result.step:,} steps in {duration(result.seconds)}; "
        f"{best if result.best_step else 'nothing was validated by that criterion'}\n"
        f"next: attendant export {result.run} --out {bundle}"
    )


def train_plan(options: Namespace) -> Plan:
    """The plan that the flags of `attendant train` ask for; wrong flags raise an error before any work is done."""
    from attendant.model import config
    from attendant.model.text import normalize, tokenizer

    named = options.tokenizer or options.source_tokenizer or options.target_tokenizer
    if named and options.distilled:
        raise ConfigError("--distilled brings the teachers' tokenizers; leave out those that are named.")
    if named and options.init_from:
        raise ConfigError("--init-from brings the model's tokenizers; leave out those that are named.")
    if options.distilled and not options.valid:
        raise ConfigError("--distilled needs --valid, a file that no teacher was trained on.")
    if options.tokenizer and (options.source_tokenizer or options.target_tokenizer):
        raise ConfigError("--tokenizer is one for both sides; leave out --source-tokenizer and --target-tokenizer.")
    for flag in ("tokenizer", "source_tokenizer", "target_tokenizer"):
        if getattr(options, flag):
            tokenizer.check_kind(getattr(options, flag), f"--{flag.replace('_', '-')}")
    settings = dict(map(config.parse_setting, options.set))
    model, training = config.build(options.preset or "tiny", settings if options.preset else {})
    names = normalize.parse(options.normalize)

    from attendant.model import checkpoint
    from attendant.model.distillation import teachers
    from attendant.model.training import estimate, initial, recipe
    from attendant.model.training.prepare import Plan, tokenizer_kinds

    plan = Plan(
        data=options.data or options.distilled / teachers.PAIRS,
        distilled=options.distilled,
        init_from=options.init_from,
        valid=options.valid,
        out=options.out,
        model=model,
        train=training,
        source_tokenizer=options.source_tokenizer or "chars",
        target_tokenizer=options.target_tokenizer or "chars",
        shared_tokenizer=options.tokenizer,
        normalize=names,
        resume=options.resume,
    )
    if not options.preset:
        if (options.out / checkpoint.CONFIG).exists():
            model, training = recipe.options_of(options.out, settings)
        else:
            model, training = config.build(*estimate.preset_for(plan.data, tokenizer_kinds(plan), settings))
    if options.init_from:
        model = initial.shape_of(options.init_from, model, settings)
    return dataclasses.replace(plan, model=model, train=training)


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
        "--hypotheses",
        type=Path,
        metavar="FILE",
        help="another model's best targets for the words, lines of source<TAB>cost<TAB>target: they help to label",
    )
    parser.add_argument(
        "--min-probability", type=float, default=0.0, metavar="P", help="leave out labels below (default: 0)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    check_writable(options.out, beside=True)

    from attendant.model.distillation.distill import DistillPlan
    from attendant.model.distillation.distill import distill as run_distillation

    counts = run_distillation(DistillPlan(**vars(options)))["counts"]
    print(
        f"{options.out}: {counts['pairs']:,} pairs and {counts['labelled']:,} labelled words, of which "
        f"{counts['labelled_with_hypotheses']:,} with another model's hypotheses; left out: "
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
    parser.add_argument(
        "--allow-unknown", action="store_true", help="for attention: read what the vocabulary lacks as unknown tokens"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    if options.what != "positions" and options.run is None:
        raise ConfigError(f"attendant plot {options.what} takes a RUN.")
    if options.what == "attention" and not options.source:
        raise ConfigError("attendant plot attention takes --source TEXT, a text for the model to read.")

    check_writable(options.out)

    from attendant.model.plots import draw as plots

    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "history":
        written = plots.plot_history(options.run, options.out)
    elif options.what == "positions":
        written = plots.plot_positions(options.out)
    else:
        written = plots.plot_attention(options.run, options.source, options.out, options.allow_unknown)
    for path in written:
        print(path)


def release(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="what attendant train wrote")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new directory")
    parser.add_argument("--step", type=int, metavar="N", help="a checkpoint's own weights (default: the best average)")
    options = parser.parse_args(arguments)
    if options.out.exists():
        raise UserError(f"{options.out} is there already; name a new directory, or remove it first.")
    check_writable(options.out, beside=True)

    from attendant.model import checkpoint

    checkpoint.release(options.run, options.out, options.step)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {size / 1e6:.1f} MB, half precision")
