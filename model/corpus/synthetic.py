"""Small synthetic corpora for several kinds of sequence task, all as text to text.

tagging     an output as long as the input: 'the old dogs run' -> 'DET ADJ NOUN VERB'
sentiment   one label: 'the plot was not dull' -> 'positive'
spelling    any length: '305' -> 'three hundred five'
translation sentences of another language: translation.py
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

from attendant.model.corpus.translation import translation
from attendant.model.files import write_text

SIZES = {"train": 3000, "valid": 200, "test": 200}  # pairs
TRAINED = {"translation": 12_000}  # pairs of train.tsv that are more than that

NOUNS = ["dogs", "cats", "walks", "runs", "plans", "visits", "birds", "guards"]
VERBS = ["see", "like", "walks", "runs", "plans", "visits", "guards", "draws"]  # some are nouns too: position decides
ADJECTIVES = ["old", "young", "quick", "quiet", "loud", "small"]

PRAISE = ["good", "great", "lovely", "clever", "moving", "bright"]
BLAME = ["bad", "dull", "awful", "silly", "tired", "weak"]
THINGS = ["plot", "film", "book", "song", "cast", "ending", "food", "room"]

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def make_synthetic(task: str, out: Path) -> dict[str, int]:
    """Write train.tsv, valid.tsv and test.tsv, with no source in two of them; returns their numbers of pairs."""
    rng = random.Random(task)
    often = OFTEN.get(task, [])  # all in train.tsv
    pairs = dict(often)
    known = len(pairs)
    sizes = SIZES | {"train": TRAINED.get(task, SIZES["train"])}
    while len(pairs) - known + len(often) < sum(sizes.values()):
        source, target = TASKS[task](rng)
        pairs[source] = target
    drawn = iter(list(pairs.items())[known:])
    out.mkdir(parents=True, exist_ok=True)
    for part, size in sizes.items():
        chosen = often if part == "train" else []
        chosen = [*chosen, *itertools.islice(drawn, size - len(chosen))]
        if often:
            rng.shuffle(chosen)
        write_text(out / f"{part}.tsv", "".join(f"{source}\t{target}\n" for source, target in chosen))
    return sizes


def tagging(rng: random.Random) -> tuple[str, str]:
    """A noun phrase, a verb, and sometimes another noun phrase."""
    tagged = [*_noun_phrase(rng), (rng.choice(VERBS), "VERB")]
    if rng.random() < 0.7:
        tagged += _noun_phrase(rng)
    return " ".join(word for word, _ in tagged), " ".join(tag for _, tag in tagged)


def _noun_phrase(rng: random.Random) -> list[tuple[str, str]]:
    adjectives = [(word, "ADJ") for word in rng.sample(ADJECTIVES, rng.randint(0, 2))]
    return [(rng.choice(["the", "some"]), "DET"), *adjectives, (rng.choice(NOUNS), "NOUN")]


def sentiment(rng: random.Random) -> tuple[str, str]:
    """A verdict on something, reversed in half of the cases by 'not'."""
    praise, negated = rng.random() < 0.5, rng.random() < 0.5
    words = ["the", rng.choice(THINGS), "of", "the", rng.choice(THINGS), rng.choice(["is", "was", "seemed"])]
    words += ["not"] * negated + [rng.choice(PRAISE if praise else BLAME)]
    return " ".join(words), "positive" if praise != negated else "negative"


def spelling(rng: random.Random) -> tuple[str, str]:
    number = rng.randrange(10_000)
    return str(number), spelled(number)


def spelled(number: int) -> str:
    """A number under ten thousand in English words, without 'and'."""
    if number < 20:
        return ONES[number]
    if number < 100:
        return f"{TENS[number // 10 - 2]} {ONES[number % 10]}" if number % 10 else TENS[number // 10 - 2]
    unit, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = f" {spelled(number % unit)}" if number % unit else ""
    return f"{spelled(number // unit)} {word}{rest}"


# Few of all numbers are small, and those are what everyone tries first: all below 100 are trained, single digits often.
OFTEN = {"spelling": [(str(n), spelled(n)) for n in range(100) for _ in range(10 if n < 10 else 1)]}
TASKS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "tagging": tagging,
    "sentiment": sentiment,
    "spelling": spelling,
    "translation": translation,
}
