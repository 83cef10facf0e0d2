"""Where a pronunciation model errs: by length, names and other words, phones that are confused, calibration.

    python -m bench.default_model.analysis --model model/default --data DIR [--json FILE]

Greedy answers for the words of DIR/test.tsv, by the weights on disk. A word is wrong if it equals none of its listed
pronunciations. Stress is left out unless a column says otherwise. The dictionary does not say which of its words are
names, so a name is a word that the US census of 1990 lists as a surname or first name (among them words that are both,
such as baker).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.model.checkpoint import TrainedModel, load_trained
from attendant.model.corpus.g2p import census_names
from attendant.model.corpus.pairs import read_references
from attendant.model.distillation.distill import fits
from attendant.model.distillation.labelling import log_probabilities
from attendant.model.evaluation.evaluate import edit_distance, run_answers

STRESS = re.compile("[0-9]")
LENGTHS = ((1, 4), (5, 6), (7, 8), (9, 10), (11, 99))  # letters
BINS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)  # of an answer's probability
NOTHING = "-"
CONFUSIONS = 10


@dataclass(frozen=True)
class Answer:
    """A word, the model's answer, the pronunciations that count as right, and the answer's probability."""

    word: str
    output: list[str]
    references: list[list[str]]
    probability: float

    @property
    def right(self) -> bool:
        return self.output in self.references

    @property
    def right_without_stress(self) -> bool:
        return plain(self.output) in map(plain, self.references)


def plain(phones: list[str]) -> list[str]:
    """['AH0', 'B'] -> ['AH', 'B']"""
    return [STRESS.sub("", phone) for phone in phones]


def analyse(answers: list[Answer], names: set[str]) -> dict[str, Any]:
    return {
        "by_length": [
            _rates(
                answers,
                f"{low} to {high} letters" if high < 99 else f"{low} letters and more",
                lambda answer, low=low, high=high: low <= len(answer.word) <= high,
            )
            for low, high in LENGTHS
        ],
        "by_kind": [
            _rates(answers, "names of the US census", lambda answer: answer.word in names),
            _rates(answers, "other words", lambda answer: answer.word not in names),
        ],
        "confusions": confusions(answers),
        "calibration": calibration(answers),
    }


def _rates(answers: list[Answer], of: str, belongs: Callable[[Answer], bool]) -> dict[str, Any]:
    chosen = [answer for answer in answers if belongs(answer)]
    wrong = sum(not answer.right for answer in chosen)
    wrong_without_stress = sum(not answer.right_without_stress for answer in chosen)
    return {
        "of": of,
        "words": len(chosen),
        "wrong": percent(wrong, len(chosen)),
        "wrong_without_stress": percent(wrong_without_stress, len(chosen)),
    }


def confusions(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """The commonest edits, without stress, between an answer and its nearest reference."""
    counts: Counter[tuple[str, str]] = Counter()
    for answer in answers:
        output = plain(answer.output)
        nearest = min(map(plain, answer.references), key=lambda reference: edit_distance(output, reference))
        counts.update(edits(nearest, output))
    return [{"wanted": a, "said": b, "times": times} for (a, b), times in counts.most_common(CONFUSIONS)]


def edits(wanted: list[str], said: list[str]) -> list[tuple[str, str]]:
    """The fewest edits from one list to the other: (wanted, said), '-' where one of them has nothing."""
    table = [[max(i, j) if 0 in (i, j) else 0 for j in range(len(said) + 1)] for i in range(len(wanted) + 1)]
    for i, a in enumerate(wanted, start=1):
        for j, b in enumerate(said, start=1):
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (a != b))
    found, i, j = [], len(wanted), len(said)
    while i or j:
        if i and j and table[i][j] == table[i - 1][j - 1] + (wanted[i - 1] != said[j - 1]):
            i, j = i - 1, j - 1
            found.append((wanted[i], said[j]))
        elif i and table[i][j] == table[i - 1][j] + 1:
            i -= 1
            found.append((wanted[i], NOTHING))
        else:
            j -= 1
            found.append((NOTHING, said[j]))
    return [(a, b) for a, b in reversed(found) if a != b]


def calibration(answers: list[Answer]) -> dict[str, Any]:
    """How often answers of a probability are right, stress included, and the mean distance between the two."""
    rows, distance = [], 0.0
    for low, high in itertools.pairwise(BINS):
        chosen = [a for a in answers if low <= a.probability < high or (high == 1.0 and a.probability >= low)]
        if not chosen:
            continue
        mean = 100 * sum(answer.probability for answer in chosen) / len(chosen)
        right = percent(sum(answer.right for answer in chosen), len(chosen))
        rows.append({"from": low, "to": high, "words": len(chosen), "mean_probability": mean, "right": right})
        distance += abs(mean - right) * len(chosen) / len(answers)
    return {"expected_error": distance, "bins": rows}


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def answers_of(trained: TrainedModel, data: Path) -> list[Answer]:
    references = read_references(data)
    outputs = run_answers(trained, data).outputs
    limit = trained.config.max_length  # an answer of that length never ended
    scored = [pair for pair in zip(references, outputs, strict=True) if pair[1] and fits(pair, trained, limit)]
    logprobs = dict(zip(scored, log_probabilities([trained.model], scored, trained), strict=True))
    return [
        Answer(word, output.split(), [text.split() for text in listed], math.exp(logprobs.get((word, output), -99)))
        for (word, listed), output in zip(references.items(), outputs, strict=True)
    ]


def tables(found: dict[str, Any]) -> str:
    """The analysis as the sections of a card."""
    rates = [
        _row(row["of"], f"{row['words']:,}", f"{row['wrong']:.1f} %", f"{row['wrong_without_stress']:.1f} %")
        for row in (*found["by_length"], *found["by_kind"])
    ]
    confused = [_row(row["wanted"], row["said"], str(row["times"])) for row in found["confusions"]]
    bins = [
        _row(
            f"{row['from']:g} to {row['to']:g}",
            f"{row['words']:,}",
            f"{row['mean_probability']:.1f} %",
            f"{row['right']:.1f} %",
        )
        for row in found["calibration"]["bins"]
    ]
    return TEMPLATE.format(
        rates="\n".join(rates),
        confused="\n".join(confused),
        bins="\n".join(bins),
        error=f"{found['calibration']['expected_error']:.1f}",
        nothing=NOTHING,
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


TEMPLATE = """\
| words of the test part | number | wrong | wrong without stress |
|---|---|---|---|
{rates}

A name is a word that the US census of 1990 lists as a surname or first name; the dictionary itself does not mark them.

The ten commonest confusions of phones, without stress, against the nearest listed pronunciation (`{nothing}`: none):

| listed | answered | times |
|---|---|---|
{confused}

How often an answer of a probability is right, stress included. On average the two are {error} points apart:

| probability of the answer | words | mean probability | right |
|---|---|---|---|
{bins}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Where a pronunciation model errs.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = analyse(answers_of(load_trained(options.model), options.data / "test.tsv"), set(census_names()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(tables(found))


if __name__ == "__main__":
    main()
