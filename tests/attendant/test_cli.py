"""The command as a user meets it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import attendant
from attendant.common.version import VERSION

ROOT = Path(__file__).parents[2]
LINES = [f"{a}{b}\t{b} {a}" for a in "abcdef" for b in "uvwxyz"]


def run(*arguments: object) -> int:
    return attendant.main([str(a) for a in arguments])


@pytest.fixture
def tsv(write_tsv: Callable[..., Path]) -> Path:
    return write_tsv(*LINES, name="train.tsv")


def train(tsv: Path, out: Path, *more: str) -> int:
    quick = ["--set=steps=6", "--set=validate_every=3", "--set=log_every=1"]
    return run("train", "--preset", "tiny", "--data", tsv, "--valid", tsv, "--out", out, *quick, *more)


def test_train_evaluate_and_plot(tsv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tsv, tmp_path / "run", "--target-tokenizer", "words") == 0
    assert "6 steps" in capsys.readouterr().out
    assert run("evaluate", tmp_path / "run", "--data", tsv, "--json", tmp_path / "report.json") == 0
    assert "sequence_error_rate" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["sources"] == len(LINES)
    assert run("plot", "history", tmp_path / "run", "--out", tmp_path / "plots") == 0
    assert run("plot", "positions", "--out", tmp_path / "plots") == 0
    assert run("plot", "attention", tmp_path / "run", "--source", "au", "--out", tmp_path / "plots") == 0
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {
        "loss.png",
        "learning_rate.png",
        "position_curves.png",
        "position_heat_map.png",
        "attention_encoder.png",
        "attention_decoder.png",
        "attention_cross.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["frobnicate"], r"unknown command 'frobnicate'; it takes one of data, train"),
        (["train"], r"required: --out"),
        (["train", "--preset", "huge"], r"--preset takes one of tiny, g2p, base, big, not 'huge'"),
        (["train", "--tokenizer", "letters"], r"--tokenizer takes chars, words or bpe:SIZE, not 'letters'"),
        (["train", "--tokenizer", "chars", "--source-tokenizer", "chars"], r"--tokenizer is one for both sides"),
        (["trian"], r"unknown command 'trian', did you mean train\?; it takes one of"),
        (["train", "--set", "dropuot=1"], r"--set dropuot: there is no such option; did you mean dropout\?"),
        (["train", "--set", "nonsense"], r"--set takes name=value"),
        (["serve", "--prot", "1"], r"unrecognized arguments: --prot, did you mean --port\? \(see"),
        (["serve", "--hepl"], r"unrecognized arguments: --hepl, did you mean --help\? \(see"),
        (["train", "--distiled", "x"], r"--distiled x, did you mean --distilled\? \(see"),
        (["train", "--set", "heads=0"], r"heads must be at least 1, not 0"),
        (["train", "--bogus"], r"unrecognized arguments: --bogus"),
        (["data", "nothing", "--out", "x"], r"invalid choice: 'nothing' \(choose from '?g2p"),
        (["evaluate", "run", "--data", "x", "--beam-size", "0"], r"--beam-size takes a whole number from 1, not 0"),
        (["evaluate", "run", "--data", "x", "--beam-size", "two"], r"--beam-size: invalid int value: 'two'"),
        (["plot", "attention", "run", "--out", "x"], r"takes --source TEXT"),
        (["plot", "history", "--out", "x"], r"takes a RUN"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[0] == "train" and len(arguments) > 1:
        arguments = [*arguments, "--data", "d.tsv", "--valid", "v.tsv", "--out", str(tmp_path / "run")]
    assert run(*arguments) == 2
    complaint = capsys.readouterr().err
    assert re.search(sentence, complaint)
    assert complaint.count("\n") == 1


def test_a_failed_run_is_one_sentence_and_exit_1(tsv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tsv.write_text("a\tb\nno tab\n", encoding="utf-8")
    assert train(tsv, tmp_path / "run") == 1
    complaint = capsys.readouterr().err
    assert "line 2, has no tab" in complaint
    assert complaint.count("\n") == 1


def test_evaluating_what_is_no_run_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", tmp_path, "--data", "x.tsv") == 1
    assert "config.json is not there" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"attendant {VERSION}\n"


def test_the_usage_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in attendant.cli.COMMANDS)
    assert run() == 2


def test_naming_a_command_imports_no_torch() -> None:
    for arguments in (["info"], ["serve", "--help"], ["train", "--help"]):
        code = f"import attendant, sys\ntry: attendant.main({arguments})\nfinally: assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory of another project, with packages of the same names."""
    for name in ("model", "export", "service"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')", encoding="utf-8")
    return tmp_path


STARTS = {
    "the console script": ["attendant"],
    "python -m": [sys.executable, "-m", "attendant"],
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node=1", "--no-python", "attendant"],
    "torchrun -m": ["torchrun", "--standalone", "--nproc-per-node=1", "-m", "attendant"],
}


@pytest.mark.parametrize("start", STARTS)
def test_packages_of_the_current_directory_are_not_imported(start: str, elsewhere: Path) -> None:
    program, *arguments = STARTS[start]
    path = [program] if program == sys.executable else [str(Path(sys.executable).parent / program)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [*path, *arguments, "data", "spelling", "--out", "corpus"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "corpus" / "train.tsv").is_file()


def test_packages_on_the_python_path_are_not_imported(elsewhere: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attendant", "data", "spelling", "--out", str(tmp_path / "corpus")],
        cwd=ROOT.parent,
        env={**os.environ, "PYTHONPATH": str(elsewhere)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
