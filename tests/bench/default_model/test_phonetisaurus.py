from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path

import pytest

from attendant.model.distillation.labelling import read_hypotheses
from attendant.model.errors import UserError
from bench.default_model.phonetisaurus import find_tool, main, parse_hypotheses, score, write_lexicon

# Programs that do next to nothing: the alignment loses its last line, and the decoder knows three words, the second
# of them only with its 8-gram model.
PROGRAMS = {
    "phonetisaurus-align": 'sed "$ d" train.lexicon > train.corpus',
    "estimate-ngram": 'echo "$LD_LIBRARY_PATH $*" > "$8"',
    "phonetisaurus-arpa2wfst": 'touch "${2#--ofile=}"',
    "phonetisaurus-g2pfst": r"""
while read -r word; do
  case "$word$1" in
    one*) printf 'one\t1.5\tW AH1 N\n';;
    two*o8*) printf 'two\t1.5\tT UW1\n';;
    two*) printf 'two\t1.5\tT OW1\n';;
    ten*) printf 'ten\t1.5\tT EH0 N\n';;
    *) printf '%s\t1.5\t\n' "$word";;
  esac
done < words""",
}


def install(site: Path, programs: dict[str, str]) -> None:
    binaries = site / "phonetisaurus" / "bin" / platform.machine()
    binaries.mkdir(parents=True)
    for name, script in programs.items():
        (binaries / name).write_text(f"#!/bin/sh\n{script}\n")
        (binaries / name).chmod(0o755)
    metadata = site / "phonetisaurus-0.3.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: phonetisaurus\nVersion: 0.3.0\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    corpus = {
        "train": "won\tW AH1 N\ntoo\tT UW1\ntent\tT EH1 N T\n",
        "valid": "two\tT UW1\n",
        "test": "one\tHH W AH1 N\none\tW AH1 N\nten\tT EH1 N\nzéro\tZ IH1 R OW0\n",
    }
    for part, lines in corpus.items():
        (tmp_path / f"{part}.tsv").write_text(lines, encoding="utf-8")
    return tmp_path


def test_a_lexicon_has_a_line_for_each_pronunciation_and_none_with_a_reserved_character(tmp_path: Path) -> None:
    pairs = [("a", "AH0"), ("a", "EY1"), ("a_b", "EY1 B"), ("it's", "IH1  T S"), ("b", "B|B")]
    assert write_lexicon(pairs, tmp_path / "lexicon") == (3, 2)
    assert (tmp_path / "lexicon").read_text(encoding="utf-8") == "a\tAH0\na\tEY1\nit's\tIH1 T S\n"


def test_the_first_hypothesis_of_a_word_is_taken_and_an_empty_one_is_none() -> None:
    text = "abated\t20.1\tAH0 B EY1 T IH0 D\nabated\t22.7\tAE1 B\n''''\t32.9\t\nhello world\t9\tHH AH0\nalone\n"
    assert parse_hypotheses(text) == {"abated": ["AH0", "B", "EY1", "T", "IH0", "D"], "hello world": ["HH", "AH0"]}


def test_any_listed_pronunciation_is_right_and_stress_counts_only_with_stress() -> None:
    references = {"a": ["EY1", "AH0"], "abbey": ["AE1 B IY0"], "the": ["DH AH0", "DH IY0"], "q": ["K Y UW1"]}
    found = {"a": ["AH0"], "abbey": ["AE0", "B", "IY0"], "the": ["DH", "IY0", "Z"]}
    assert score(found, references) == {
        "word_error_rate": 75.0,
        "phone_error_rate": pytest.approx(100 * 5 / 9),
        "word_error_rate_without_stress": 50.0,
        "phone_error_rate_without_stress": pytest.approx(100 * 4 / 9),
    }


def test_a_missing_package_is_one_sentence_and_exit_1(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert main(["--data", str(data), "--out", str(data / "out.json")]) == 1
    assert capsys.readouterr() == (
        "",
        "phonetisaurus is not installed; run: pip install 'attendant-transformer[baseline]'.\n",
    )
    assert not (data / "out.json").exists()


def test_the_setting_is_chosen_on_valid_and_scored_on_test(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(data / "site", PROGRAMS)
    monkeypatch.syspath_prepend(str(data / "site"))
    arguments = ["--data", str(data), "--out", str(data / "results" / "out.json"), "--order", "7", "8", "9"]
    assert main([*arguments, "--smoothing", "FixKN", "--work", str(data / "work")]) == 0
    report = json.loads((data / "results" / "out.json").read_text())
    assert (report["version"], report["order"], report["smoothing"]) == ("0.3.0", 8, "FixKN")
    assert [one["word_error_rate"] for one in report["valid"]] == [100.0, 0.0, 100.0]
    assert (report["words"], report["undecodable_words"], report["words_with_unseen_letters"]) == (3, 1, 1)
    assert report["word_error_rate"] == pytest.approx(200 / 3)
    assert report["phone_error_rate"] == pytest.approx(100 * 5 / 10)
    assert report["word_error_rate_without_stress"] == pytest.approx(100 / 3)
    assert report["phone_error_rate_without_stress"] == pytest.approx(100 * 4 / 10)
    assert (report["training_lines"], report["training_lines_not_aligned"]) == (3, 1)
    assert report["sha256"]["test.tsv"] == hashlib.sha256((data / "test.tsv").read_bytes()).hexdigest()
    assert "estimate-ngram -o 8 -s FixKN -t train.corpus -wl o8.FixKN.arpa" in report["commands"]
    assert report["command"].startswith("python -m bench.default_model.phonetisaurus --data ")
    libraries = data / "site" / "phonetisaurus" / "lib" / platform.machine()
    assert (data / "work" / "o8.FixKN.arpa").read_text().startswith(str(libraries))
    assert "without stress             33.33 %           40.00 %" in capsys.readouterr().out


def test_the_chosen_setting_writes_the_hypotheses_that_a_student_learns_from(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(data / "site", PROGRAMS)
    monkeypatch.syspath_prepend(str(data / "site"))
    (data / "words.txt").write_text("one\ntwo\n", encoding="utf-8")
    files = ["--words", str(data / "words.txt"), "--hypotheses", str(data / "hypotheses.tsv")]
    arguments = ["--data", str(data), "--out", str(data / "out.json"), "--order", "7", "8", "--smoothing", "FixKN"]
    assert main([*arguments, *files, "--work", str(data / "work")]) == 0
    assert read_hypotheses(data / "hypotheses.tsv") == {"one": {"W AH1 N": 1.5}, "two": {"T UW1": 1.5}}
    wanted = "phonetisaurus-g2pfst --model=o8.FixKN.fst --nbest=6 --wordlist=words"
    assert json.loads((data / "out.json").read_text())["commands"][-1] == wanted
    with pytest.raises(SystemExit):
        main([*arguments, *files[:2]])


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [
        ({"estimate-ngram": "echo begun >&2; echo no libquadmath.so.0 >&2; exit 127"}, "status 127.*no libquadmath"),
        ({}, "estimate-ngram of the package phonetisaurus cannot be run on .*: No such file"),
    ],
)
def test_a_program_that_does_not_run_is_named(
    programs: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, programs)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=sentence):
        find_tool(tmp_path).run("estimate-ngram")
