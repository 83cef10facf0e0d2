from __future__ import annotations

from pathlib import Path

import pytest

from attendant.model.text.tokenizer import learn
from attendant.service.errors import StartError
from attendant.service.text.glossary import Glossary, Pair, check_targets, digest_of, directory_of, read_glossaries
from attendant.service.text.tokenizer import Tokenizer


def pairs(*sources: str) -> Glossary:
    return Glossary(Pair(source, (source.upper(),)) for source in sources)


def write(directory: Path, text: str | bytes, name: str = "office.tsv") -> Path:
    bundle = directory / "en-de"
    path = directory_of(bundle) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return bundle


@pytest.mark.parametrize(
    ("sources", "text", "found"),
    [
        (["house"], "the house is", ["house"]),
        (["house"], "the House is", ["house"]),  # no capitals: in any case
        (["US"], "the us is in the US.", ["US"]),  # a capital: as it is written
        (["US"], "the us is", []),
        (["house"], "houses, in-house", ["house"]),
        (["house"], "housed warehouse house_", []),
        (["house", "house price", "price"], "the house price", ["house price"]),
        (["b", "a"], "a b a", ["a", "b"]),
        (["北京"], "我在北京住", ["北京"]),
        (["İx"], "aİx İx", ["İx"]),
        ([], "anything", []),
    ],
)
def test_a_phrase_is_found_as_whole_words_the_longest_first(sources: list[str], text: str, found: list[str]) -> None:
    assert [pair.source for pair in pairs(*sources).find(text)] == found


def test_a_file_has_phrases_forms_comments_and_empty_lines(tmp_path: Path) -> None:
    bundle = write(tmp_path, "\ufeff# words\n\nhouse\tHaus\tHauses\r\ncat \t Katze\t\n")
    glossary = read_glossaries(bundle)["office"]
    assert list(glossary.pairs()) == [Pair("house", ("Haus", "Hauses")), Pair("cat", ("Katze",))]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("house\n", "office.tsv:1: a line takes a source phrase, a tab"),
        ("a\tb\n\thaus\n", "office.tsv:2: a line takes"),
        ("a\tb\nc\td\na\te\n", "office.tsv:3: 'a' is on line 1 already"),
        (b"a\t\xff\n", "is not UTF-8: its byte 3"),
        ("a\t" + "b" * 1001, "at most 1000 characters"),
        ("a" + "\tb" * 21, "at most 20 forms"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(StartError) as caught:
        read_glossaries(write(tmp_path, text))
    assert sentence in str(caught.value)


def test_a_name_is_plain_and_other_files_are_left_alone(tmp_path: Path) -> None:
    bundle = write(tmp_path, "nothing of this", "readme.txt")
    assert read_glossaries(bundle) == {}
    with pytest.raises(StartError, match="names a glossary"):
        read_glossaries(write(tmp_path, "a\tb\n", "a b.tsv"))


def test_all_glossaries_of_a_bundle_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write(tmp_path, "a\tb\nc\td\n")
    write(tmp_path, "a\tb\n", "home.tsv")
    for name, limit in (("MOST_GLOSSARIES", 1), ("MOST_BYTES", 10), ("MOST_TERMS", 2)):
        with monkeypatch.context() as patched:
            patched.setattr(f"attendant.service.text.glossary.{name}", limit)
            with pytest.raises(StartError, match="a bundle has at most"):
                read_glossaries(bundle)


def test_the_digest_changes_with_a_glossary(tmp_path: Path) -> None:
    assert digest_of(tmp_path / "en-de") == ""
    first = digest_of(write(tmp_path, "a\tb\n"))
    assert first != digest_of(write(tmp_path, "a\tc\n")) != ""


def test_a_target_that_the_model_cannot_write_is_refused(tmp_path: Path) -> None:
    learn("words", ["A B C"]).save(tmp_path / "target.json")
    tokenizer = Tokenizer(tmp_path / "target.json", {"pad": 0, "unk": 1, "bos": 2, "eos": 3})
    bundle = tmp_path / "en-de"
    check_targets({"x": Glossary([Pair("a", ("A B", "C"))])}, tokenizer, 2, bundle)
    for target, sentence in (("A Z", "what the model's vocabulary lacks"), ("A B C", "has 3 tokens, and 1 to 2 fit")):
        with pytest.raises(StartError, match=sentence):
            check_targets({"x": Glossary([Pair("a", ("A", target))])}, tokenizer, 2, bundle)
