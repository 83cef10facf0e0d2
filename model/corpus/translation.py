"""A small synthetic corpus of translations: English sentences about people and things, in German.

German has what makes a translation more than a row of words: three genders, cases, endings of adjectives, the verb in
the second place and an infinitive at the end. 'Today Anna wants to sell the old house.' -> 'Heute will Anna das alte
Haus verkaufen.' Some words have a second, rarer translation: what a glossary is for.
"""

from __future__ import annotations

import random

Noun = tuple[str, tuple[str, ...], str]  # English, German (the usual word, and a rarer one), gender
RARER = 0.2  # how often a noun is translated by its rarer word
NAMES = ["Anna", "Peter", "Clara", "Paul", "{name}"]  # a text of a program has a placeholder where a name will be
PEOPLE: list[Noun] = [
    ("doctor", ("Arzt", "Mediziner"), "m"),
    ("teacher", ("Lehrer",), "m"),
    ("lawyer", ("Anwalt",), "m"),
    ("woman", ("Frau",), "f"),
    ("daughter", ("Tochter",), "f"),
    ("child", ("Kind",), "n"),
    ("girl", ("Mädchen",), "n"),
]
THINGS: list[Noun] = [
    ("house", ("Haus", "Gebäude"), "n"),
    ("room", ("Zimmer",), "n"),
    ("car", ("Auto", "Fahrzeug"), "n"),
    ("roof", ("Dach",), "n"),
    ("book", ("Buch",), "n"),
    ("contract", ("Vertrag", "Kaufvertrag"), "m"),
    ("letter", ("Brief",), "m"),
    ("key", ("Schlüssel",), "m"),
    ("garden", ("Garten",), "m"),
    ("bill", ("Rechnung", "Quittung"), "f"),
    ("door", ("Tür",), "f"),
    ("lamp", ("Lampe",), "f"),
]
ADJECTIVES = [("old", "alt"), ("new", "neu"), ("small", "klein"), ("big", "groß"), ("red", "rot"), ("good", "gut")]
VERBS = [  # English infinitive and present, German infinitive and present, what they are done to; None: to all things
    ("buy", "buys", "kaufen", "kauft", None),
    ("sell", "sells", "verkaufen", "verkauft", None),
    ("see", "sees", "sehen", "sieht", None),
    ("find", "finds", "finden", "findet", None),
    ("need", "needs", "brauchen", "braucht", None),
    ("read", "reads", "lesen", "liest", ("book", "letter", "contract", "bill")),
    ("sign", "signs", "unterschreiben", "unterschreibt", ("letter", "contract", "bill")),
    ("open", "opens", "öffnen", "öffnet", ("house", "room", "car", "book", "letter", "door")),
]
MODALS = [("wants to", "will"), ("must", "muss"), ("can", "kann")]
TIMES = [("Today", "Heute"), ("Tomorrow", "Morgen"), ("Now", "Jetzt")]
# By case and gender: the definite article, the indefinite one, and the endings of adjectives after them.
FORMS = {
    "subject": {"m": ("der", "ein", "e", "er"), "f": ("die", "eine", "e", "e"), "n": ("das", "ein", "e", "es")},
    "object": {"m": ("den", "einen", "en", "en"), "f": ("die", "eine", "e", "e"), "n": ("das", "ein", "e", "es")},
}


def translation(rng: random.Random) -> tuple[str, str]:
    """One sentence and its translation: one clause, or two."""
    source, target = _clause(rng, timed=rng.random() < 0.25)
    if rng.random() < 0.3:
        second, german_second = _clause(rng)
        source, target = f"{source}, and {second}", f"{target}, und {german_second}"
    return _sentence(source), _sentence(target)


def _clause(rng: random.Random, timed: bool = False) -> tuple[str, str]:
    """What a thing is like, or what someone does with it; after a time the German verb still comes second."""
    if not timed and rng.random() < 0.3:
        (english, german), (adjective, german_adjective) = _noun_phrase(rng, THINGS, "subject"), rng.choice(ADJECTIVES)
        return f"{english} is {adjective}", f"{german} ist {german_adjective}"
    subject, german_subject = _someone(rng)
    infinitive, present, german_infinitive, german_present, taken = rng.choice(VERBS)
    thing, german_thing = _noun_phrase(rng, [each for each in THINGS if taken is None or each[0] in taken], "object")
    verb, german_verb, last = present, german_present, ""
    if rng.random() < 0.3:
        modal, german_verb = rng.choice(MODALS)
        verb, last = f"{modal} {infinitive}", f" {german_infinitive}"
    if not timed:
        return f"{subject} {verb} {thing}", f"{german_subject} {german_verb} {german_thing}{last}"
    time, german_time = rng.choice(TIMES)
    return f"{time} {subject} {verb} {thing}", f"{german_time} {german_verb} {german_subject} {german_thing}{last}"


def _someone(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.4:
        name = rng.choice(NAMES)
        return name, name
    return _noun_phrase(rng, PEOPLE, "subject")


def _noun_phrase(rng: random.Random, nouns: list[Noun], case: str) -> tuple[str, str]:
    english, words_for_it, gender = rng.choice(nouns)
    german = words_for_it[-1] if rng.random() < RARER else words_for_it[0]
    the, a, after_the, after_a = FORMS[case][gender]
    definite = rng.random() < 0.6
    adjective = rng.choice(ADJECTIVES) if rng.random() < 0.4 else None
    words = english if adjective is None else f"{adjective[0]} {english}"
    ending = after_the if definite else after_a
    german_words = german if adjective is None else f"{adjective[1]}{ending} {german}"
    article = "the" if definite else "an" if words[0] in "aeiou" else "a"
    return f"{article} {words}", f"{the if definite else a} {german_words}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
