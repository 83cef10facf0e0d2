"""An output of any length: a number becomes words, with a beam of hypotheses. Trains, exports and asks a tiny model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attendant import Model, main

NUMBERS = ["42", "305", "1234", "9090"]


def run(out: Path, steps: int) -> None:
    attendant("data", "spelling", "--out", out)
    attendant(
        *("train", "--preset", "tiny", "--data", out / "train.tsv", "--valid", out / "valid.tsv", "--out", out / "run"),
        *("--source-tokenizer", "chars", "--target-tokenizer", "words"),
        *("--set", f"steps={steps}", "--set", "learning_rate=3e-3", "--resume"),
    )
    attendant("export", out / "run", "--out", out / "bundle", "--force")
    with Model(out / "bundle") as model:
        outputs = model.generate(NUMBERS, beam_size=4)  # all of them are decoded together
        for number, output in zip(NUMBERS, outputs, strict=True):
            print(f"{number}: {output.text}")


def attendant(*arguments: object) -> None:
    if code := main([str(argument) for argument in arguments]):
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/spelling-example"))
    parser.add_argument("--steps", type=int, default=800)
    run(**vars(parser.parse_args()))
