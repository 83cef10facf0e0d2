"""One label for a whole sentence, with its probability. Trains, exports and asks a tiny model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attendant import Model, main

SENTENCES = [
    "the plot of the film was clever",
    "the plot of the film was not clever",
    "the ending of the book is not dull",
]


def run(out: Path, steps: int) -> None:
    attendant("data", "sentiment", "--out", out)
    attendant(
        *("train", "--preset", "tiny", "--data", out / "train.tsv", "--valid", out / "valid.tsv", "--out", out / "run"),
        *("--source-tokenizer", "words", "--target-tokenizer", "words"),
        *("--set", f"steps={steps}", "--set", "learning_rate=3e-3", "--resume"),
    )
    attendant("export", out / "run", "--out", out / "bundle", "--force")
    with Model(out / "bundle") as model:
        for sentence in SENTENCES:
            # a label is the first target token, so the softmax over that token is the classifier
            best = model.next_token(sentence, top_k=2).tokens[0]
            print(f"{best.probability:.2f} {best.token}: {sentence}")


def attendant(*arguments: object) -> None:
    if code := main([str(argument) for argument in arguments]):
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sentiment"))
    parser.add_argument("--steps", type=int, default=300)
    run(**vars(parser.parse_args()))
