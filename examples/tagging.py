"""An output as long as the input: each word gets its part of speech. Trains, exports and asks a tiny model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attendant import Model, main

SENTENCES = ["the old dogs run", "some walks plans the quiet visits", "the plans visits the walks"]


def run(out: Path, steps: int) -> None:
    attendant("data", "tagging", "--out", out)
    attendant(
        *("train", "--preset", "tiny", "--data", out / "train.tsv", "--valid", out / "valid.tsv", "--out", out / "run"),
        *("--tokenizer", "words", "--set", f"steps={steps}", "--set", "learning_rate=3e-3", "--resume"),
    )
    attendant("export", out / "run", "--out", out / "bundle", "--force")
    with Model(out / "bundle") as model:
        for sentence in SENTENCES:
            # `run` is no word of the corpus, so it is read as the unknown token: the place decides
            answer = model.generate(sentence, allow_unknown=True)
            print(*(f"{word}/{tag}" for word, tag in zip(sentence.split(), answer.text.split(), strict=False)))


def attendant(*arguments: object) -> None:
    if code := main([str(argument) for argument in arguments]):
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/tagging"))
    parser.add_argument("--steps", type=int, default=600)
    run(**vars(parser.parse_args()))
