from __future__ import annotations

from pathlib import Path

import pytest

from attendant.model.corpus.g2p import make_corpus, parse, part_of
from attendant.model.corpus.pairs import read_pairs


def test_an_entry_loses_its_number_and_its_comment() -> None:
    lines = ["aalborg AO1 L B AO0 R G # place, danish\n", "aalborg(2) AA1 L B AO0 R G\n", "'bout B AW1 T\n", "\n"]
    assert list(parse(lines)) == [("aalborg", "AO1 L B AO0 R G"), ("aalborg", "AA1 L B AO0 R G"), ("'bout", "B AW1 T")]


def test_a_word_keeps_its_part_for_ever() -> None:
    words = ["attendant", "transformer", "aasen", "dictionary", "zebra", "abated"]
    assert [part_of(word) for word in words] == ["train", "train", "test", "train", "train", "test"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("g2p")
    make_corpus(out)
    return out


def test_no_word_is_in_two_parts_and_the_shares_are_90_5_5(corpus: Path) -> None:
    words = {part: {word for word, _ in read_pairs(corpus / f"{part}.tsv")} for part in ("train", "valid", "test")}
    total = sum(map(len, words.values()))
    assert len(set.union(*words.values())) == total > 120_000
    for part, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
        assert len(words[part]) / total == pytest.approx(share, abs=0.003)


def test_phones_carry_stress_and_the_notice_is_kept(corpus: Path) -> None:
    assert ("aasen", "AA1 S AH0 N") in list(read_pairs(corpus / "test.tsv"))
    assert "Carnegie Mellon" in (corpus / "LICENSE.cmudict").read_text(encoding="utf-8")


def test_the_words_to_label_are_in_no_part(corpus: Path) -> None:
    words = (corpus / "words.txt").read_text(encoding="utf-8").split()
    listed = {word for part in ("train", "valid", "test") for word, _ in read_pairs(corpus / f"{part}.tsv")}
    assert len(words) == len(set(words)) > 200_000
    assert listed.isdisjoint(words)
    assert "smith" not in words
    assert "haddix" in words  # a name
    assert "zettabyte" in words  # a word
