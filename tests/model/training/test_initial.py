"""attendant train --init-from: a run that begins with a trained model."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import attendant
from attendant.model import checkpoint
from attendant.model.training import recipe

ROOT = Path(__file__).parents[3]
WORDS = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmno"]
LINES = [f"{word}\t{' '.join(word[::-1].upper())}\n" for word in WORDS]  # 125 lines
QUICK = {"steps": 8, "validate_every": 4, "warmup": 2, "batch_tokens": 256, "max_length": 16, "precision": "fp32"}
STANDING = ["--set=optimizer=sgd", "--set=schedule=cosine", "--set=learning_rate=1e-9", "--set=average=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/data, and runs/first: a small model whose shape is no preset's."""
    here = tmp_path_factory.mktemp("here")
    data = here / "runs" / "data"
    data.mkdir(parents=True)
    (data / "train.tsv").write_text("".join(LINES[:100]), encoding="utf-8")
    (data / "valid.tsv").write_text("".join(LINES[100:]), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("OMP_NUM_THREADS", "1")
        own = ["--target-tokenizer=words", "--normalize=lower,strip", "--set=d_ff=96"]
        assert attendant.main(train("first", *own)) == 0
    return here


def train(out: str, *flags: str, **changes: object) -> list[str]:
    sets = [f"--set={name}={value}" for name, value in (QUICK | changes).items()]
    files = ["--data", "runs/data/train.tsv", "--valid", "runs/data/valid.tsv", "--out", f"runs/{out}"]
    return ["train", "--preset=tiny", *files, *sets, *flags]


@pytest.fixture(autouse=True)
def _in_that_place(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_file(checkpoint.find_weights(run))


def test_a_run_begins_with_the_weights_of_the_model(runs: Path) -> None:
    assert attendant.main(train("standing", "--init-from=runs/first", *STANDING, seed=9)) == 0
    begun, standing = weights(runs / "runs/first"), weights(runs / "runs/standing")
    assert begun.keys() == standing.keys()
    for name, value in begun.items():
        assert_close(standing[name], value, atol=1e-6, rtol=0)


def test_shape_tokenizers_and_normalization_are_the_models_and_dropout_the_runs(runs: Path) -> None:
    assert attendant.main(train("dropped", "--init-from=runs/first", dropout=0.25)) == 0
    first, dropped = (checkpoint.load_trained(runs / "runs" / name) for name in ("first", "dropped"))
    assert (dropped.config.d_ff, dropped.config.dropout, first.config.dropout) == (96, 0.25, 0.0)
    assert dropped.source.encode(" AFK") == first.source.encode("afk")
    assert dropped.target.to_str() == first.target.to_str()


def test_a_stopped_run_goes_on_to_the_same_bits(runs: Path) -> None:
    flags = ["--init-from=runs/first", "--set=schedule=trapezoid", "--set=decay=0"]  # a rate that knows no end
    assert attendant.main(train("whole", *flags)) == 0
    assert attendant.main(train("parts", *flags, steps=4)) == 0
    assert attendant.main(train("parts", *flags, "--resume")) == 0
    whole, parts = (checkpoint.checkpoints(runs / "runs" / name)[-1] / checkpoint.MODEL for name in ("whole", "parts"))
    assert all(
        torch.equal(a, b) for a, b in zip(*map(dict.values, map(checkpoint.load_file, (whole, parts))), strict=True)
    )


def test_the_commands_of_the_run_begin_with_those_of_the_model(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attendant.main(train("second", "--init-from=runs/first", dropout=0.25, seed=5)) == 0
    commands = recipe.commands(runs / "runs" / "second")
    assert [shlex.split(command)[1] for command in commands] == ["train", "train"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "data").symlink_to(runs / "runs" / "data")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert attendant.main(shlex.split(command)[1:]) == 0
    made, again = weights(runs / "runs" / "second"), weights(tmp_path / "runs" / "second")
    assert all(torch.equal(made[name], again[name]) for name in made)
    assert not recipe.changed_on_the_way(runs / "runs" / "second")


def test_the_commands_of_a_run_can_be_given_to_a_shell(runs: Path) -> None:
    assert attendant.main(train("with space", "--init-from=runs/first", "--set=select_ignore=it's")) == 0
    words = shlex.split(recipe.commands(runs / "runs" / "with space")[-1])
    assert "runs/with space" in words
    assert "select_ignore=it's" in words


def test_another_schedule_has_its_own_default_rate_and_not_the_saved_one(runs: Path) -> None:
    assert attendant.main(train("paced", "--init-from=runs/first", schedule="paper")) == 0
    for changes, rate in (
        ({}, 1.0),
        ({"schedule": "cosine"}, 1e-3),
        ({"schedule": "cosine", "learning_rate": 0.01}, 0.01),
    ):
        assert recipe.options_of(runs / "runs" / "paced", changes)[1].learning_rate == rate


def test_a_run_from_a_model_whose_options_were_changed_says_so(runs: Path) -> None:
    assert attendant.main(train("changed", "--target-tokenizer=words", steps=4)) == 0
    assert attendant.main(train("changed", "--target-tokenizer=words", "--set=learning_rate=1e-4", "--resume")) == 0
    assert attendant.main(train("after", "--init-from=runs/changed")) == 0
    assert attendant.main(train("third", "--init-from=runs/after")) == 0
    assert recipe.changed_on_the_way(runs / "runs" / "after")
    assert recipe.changed_on_the_way(runs / "runs" / "third")
    begun = recipe.begun_with(checkpoint.read_config(runs / "runs" / "third"))
    assert [before["name"] for before in begun] == ["changed", "after"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--init-from=runs/first", "--set=d_ff=128"], "--set d_ff=128: runs/first has d_ff=96"),
        (["--init-from=runs/first", "--target-tokenizer=words"], "--init-from brings the model's tokenizers"),
        (["--init-from=runs/none"], "runs/none/config.json is not there"),
    ],
)
def test_what_a_model_cannot_begin_is_said_at_once(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attendant.main(train("refused", *flags)) != 0
    assert said in capsys.readouterr().err
    assert not Path("runs/refused").exists()


@pytest.mark.parametrize("kept", [None, 1])
def test_a_model_without_its_history_can_be_begun_with(runs: Path, kept: int | None) -> None:
    """A run that was stopped before its first logged step has only its options in it; a copy may lack the file."""
    model, history = f"bare{kept}", (runs / "runs/first/history.jsonl").read_text(encoding="utf-8")
    shutil.copytree(runs / "runs/first", runs / "runs" / model)
    (runs / "runs" / model / "history.jsonl").unlink()
    if kept:
        lines = history.splitlines(keepends=True)[:kept]
        (runs / "runs" / model / "history.jsonl").write_text("".join(lines), encoding="utf-8")
    assert attendant.main(train(f"from-{model}", f"--init-from=runs/{model}")) == 0


def test_weights_that_are_not_numbers_are_refused_by_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "runs/first", runs / "runs/broken")
    path = checkpoint.find_weights(runs / "runs/broken")
    tensors = checkpoint.load_file(path)
    next(iter(tensors.values()))[0] = torch.nan
    checkpoint.save_weights(tensors, path)
    assert attendant.main(train("from-broken", "--init-from=runs/broken")) == 1
    assert "holds NaN or infinity" in capsys.readouterr().err


def test_an_imported_model_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((runs / "runs/first/config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"imported": {}}), encoding="utf-8")
    assert attendant.main(train("refused", f"--init-from={tmp_path}")) == 1
    assert "was imported; --init-from takes a model that attendant train made" in capsys.readouterr().err


def test_a_run_does_not_go_on_from_another_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert attendant.main(train("one", "--init-from=runs/first")) == 0
    assert attendant.main(train("other", "--init-from=runs/first", seed=7)) == 0
    assert attendant.main(train("one", "--init-from=runs/other", "--resume")) == 1
    assert "other values of --init-from" in capsys.readouterr().err


def test_make_train_is_the_recipe_that_the_run_tells(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's commands are run on a small corpus with a small model, and the release says how it was made."""
    shape = {"d_model": 16, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1, "max_length": 16}
    settings = " ".join(f"--set {name}={value}" for name, value in {**shape, "steps": 2}.items())
    make = ["make", "-n", "-C", str(ROOT), "train", "RUNS=runs", f"SETTINGS={settings}"]
    printed = subprocess.run(make, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    wanted = [shlex.split(line)[1:] for line in printed.splitlines() if ".venv/bin/attendant " in line]
    wanted = [command for command in wanted if command[0] != "data"]
    shutil.copytree(runs / "runs" / "data", tmp_path / "runs" / "data")
    shutil.copy(runs / "runs" / "data" / "valid.tsv", tmp_path / "runs" / "data" / "test.tsv")
    (tmp_path / "runs" / "data" / "words.txt").write_text("ba\ncab\n", encoding="utf-8")
    (tmp_path / "runs" / "data" / "hypotheses.tsv").write_text("ba\t0.1\tA B\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in wanted:
        assert attendant.main(command) == 0
    told = [shlex.split(command)[1:] for command in recipe.commands(tmp_path / "runs" / "default")]
    assert wanted[-1] == ["release", "runs/student", "--out", "runs/default"]
    first, second, distill, student = wanted[:-1]
    assert [effective(command) for command in told] == [
        effective(first),
        effective(second, inherited=tuple(shape)),
        effective(distill),
        effective(student, inherited=tuple(shape)),
    ]


def effective(command: list[str], inherited: tuple[str, ...] = ()) -> list[str]:
    """A command without regard to the order of its settings; of two values of one, the last; less those inherited."""
    settings = dict(value.split("=", 1) for flag, value in itertools.pairwise(command) if flag == "--set")
    others = [word for before, word in itertools.pairwise(["", *command]) if "--set" not in (before, word)]
    return [*sorted(others), *sorted(f"{name}={value}" for name, value in settings.items() if name not in inherited)]
