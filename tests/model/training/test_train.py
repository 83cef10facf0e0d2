from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import attendant
from attendant.model import checkpoint, config
from attendant.model.errors import DataError, UserError
from attendant.model.evaluation.evaluate import evaluate_run
from attendant.model.files import locked
from attendant.model.text.tokenizer import load
from attendant.model.training import prepare
from attendant.model.training.history import read_history
from attendant.model.training.prepare import Plan
from attendant.model.training.train import Result, train
from attendant.model.training.validate import fitting_references, spread
from tests.support.children import started

ROOT = Path(__file__).parents[3]
WORDS = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmnopqr"]
LINES = [f"{word}\t{' '.join(word[::-1].upper())}" for word in WORDS]  # 200 lines
TOKENIZERS = (checkpoint.SOURCE_TOKENIZER, checkpoint.TARGET_TOKENIZER)
QUICK = {
    "steps": 12,
    "validate_every": 4,
    "log_every": 2,
    "warmup": 5,
    "batch_tokens": 512,
    "dropout": 0.1,
    "precision": "fp32",
}


@pytest.fixture
def tsv(write_tsv: Callable[..., Path]) -> Path:
    return write_tsv(*LINES, name="train.tsv")


def plan_for(tsv: Path, out: Path, resume: bool = False, **changes: Any) -> Plan:
    model, training = config.build("tiny", {**QUICK, **changes})
    return Plan(
        data=tsv,
        valid=tsv,
        out=out,
        model=model,
        train=training,
        source_tokenizer="chars",
        target_tokenizer="words",
        resume=resume,
    )


def run(tsv: Path, out: Path, **changes: Any) -> Result:
    return train(plan_for(tsv, out, **changes))


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.checkpoints(run)[-1] / checkpoint.MODEL)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def command(tsv: Path, out: Path, **settings: Any) -> list[str]:
    sets = [f"--set={name}={value}" for name, value in {**QUICK, **settings}.items()]
    return [
        "-m",
        "attendant",
        "train",
        "--preset",
        "tiny",
        "--data",
        str(tsv),
        "--valid",
        str(tsv),
        "--out",
        str(out),
        "--target-tokenizer",
        "words",
        "--resume",
        *sets,
    ]


def latest_step(run: Path) -> int:
    """Of the last checkpoint; 0 if there is none."""
    found = checkpoint.checkpoints(run)
    return int(found[-1].name.rpartition("-")[2]) if found else 0


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_the_tiny_preset_learns_200_lines_to_near_zero_loss(tsv: Path, tmp_path: Path) -> None:
    model, training = config.build("tiny", {"steps": 300, "validate_every": 300})
    train(Plan(data=tsv, valid=tsv, out=tmp_path / "run", model=model, train=training, target_tokenizer="words"))
    valid = [e for e in read_history(tmp_path / "run" / "history.jsonl") if e["kind"] == "valid"]
    assert valid[-1]["loss"] < 0.01


def test_a_run_killed_again_and_again_ends_with_the_weights_of_one_left_alone(tsv: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = {"steps": 60, "validate_every": 5, "average": 2}
    subprocess.run([sys.executable, *command(tsv, whole, **settings)], cwd=ROOT, env=environment(), check=True)
    rng, kills, code = random.Random(1), 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        wanted = latest_step(killed) + 10
        with started([sys.executable, *command(tsv, killed, **settings)], cwd=ROOT, env=environment()) as process:
            if kills < 4:
                while process.poll() is None and latest_step(killed) < wanted:
                    time.sleep(0.005)
                time.sleep(rng.random() * 0.1)
                process.kill()
            code = process.wait(timeout=120)
        kills += code == -signal.SIGKILL
    assert code == 0
    assert kills >= 2
    assert same(last_weights(whole), last_weights(killed))
    assert [b.name for b in checkpoint.checkpoints(whole, "best")] == [
        b.name for b in checkpoint.checkpoints(killed, "best")
    ]
    steps = [entry["step"] for entry in read_history(killed / "history.jsonl") if entry["kind"] == "train"]
    assert steps == list(range(2, 61, 2))


@pytest.mark.parametrize("name", ["data", "split"])
def test_a_directory_that_a_run_would_replace_is_left_alone(name: str, tsv: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "runs" / name / "train.tsv"
    corpus.parent.mkdir(parents=True)
    corpus.write_bytes(tsv.read_bytes())
    with pytest.raises(UserError, match=f"runs/{name} has train.tsv, .* name another --out"):
        train(replace(plan_for(corpus, tmp_path / "runs"), valid=None))
    assert corpus.read_bytes() == tsv.read_bytes()


@pytest.mark.parametrize("given", [False, True])
def test_a_users_samples_are_left_alone(given: bool, tsv: Path, tmp_path: Path) -> None:
    """Also where the corpus itself has the name that a run gives to its samples."""
    samples = tmp_path / "run" / "samples.tsv"
    samples.parent.mkdir()
    shutil.copy(tsv, samples)
    if given:
        (samples.parent / "source.tokenizer.json").write_text("{}")  # as if a run had been begun here
    with pytest.raises(UserError, match=r"run/samples\.tsv is there, .* name another --out"):
        run(samples if given else tsv, tmp_path / "run")
    assert samples.read_bytes() == tsv.read_bytes()


def test_a_run_that_another_process_writes_is_refused(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run", steps=2, validate_every=2)
    with locked(tmp_path / "run"), pytest.raises(UserError, match="run is in use by another process"):
        run(tsv, tmp_path / "run", steps=4, validate_every=2, resume=True)
    run(tsv, tmp_path / "run", steps=4, validate_every=2, resume=True)


def test_an_imported_model_is_not_trained_over(tsv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"format": 1, "model": {}, "imported": {}}', encoding="utf-8")
    files = ["--data", str(tsv), "--valid", str(tsv), "--out", str(tmp_path)]
    assert attendant.main(["train", *files, "--resume"]) == 1
    assert "holds an imported model, which cannot be trained" in capsys.readouterr().err


def test_a_run_killed_before_its_first_checkpoint_begins_again(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "whole")
    long = command(tsv, tmp_path / "killed", validate_every=100_000, steps=100_000)
    with started([sys.executable, *long], cwd=ROOT, env=environment()) as process:
        while not (tmp_path / "killed" / checkpoint.CONFIG).exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert checkpoint.latest(tmp_path / "killed") is None
    run(tsv, tmp_path / "killed", resume=True)
    assert same(last_weights(tmp_path / "whole"), last_weights(tmp_path / "killed"))


def test_two_processes_compute_what_one_does_with_the_joint_batch(tsv: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    run(tsv, one, dropout=0.0, optimizer="sgd", learning_rate=0.3)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    on_loopback = {**environment(), "GLOO_SOCKET_IFNAME": "lo"}
    whole = [sys.executable, *torchrun, *command(tsv, two, dropout=0.0, optimizer="sgd", learning_rate=0.3)]
    with started(whole, cwd=ROOT, env=on_loopback) as process:
        assert process.wait(timeout=120) == 0
    a, b = last_weights(one), last_weights(two)
    assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)
    losses = [[e["loss"] for e in read_history(r / "history.jsonl") if "loss" in e] for r in (one, two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_accumulated_batches_count_like_one(tsv: Path, tmp_path: Path) -> None:
    """Both updates see all 200 pairs: one batch of everything, or as many small ones as an epoch has."""
    everything = 200 * 8
    run(tsv, tmp_path / "one", dropout=0.0, batch_tokens=everything, steps=1, optimizer="sgd")
    run(tsv, tmp_path / "four", dropout=0.0, batch_tokens=everything // 4, accumulate=4, steps=1, optimizer="sgd")
    a, b = last_weights(tmp_path / "one"), last_weights(tmp_path / "four")
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def test_early_stopping_ends_a_run_that_no_longer_improves(tsv: Path, tmp_path: Path) -> None:
    result = run(tsv, tmp_path / "run", steps=400, validate_every=2, patience=3, learning_rate=1e-12)
    assert result.step < 400
    assert result.step - result.best_step == 6


def test_the_result_is_the_average_of_the_last_checkpoints(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run", steps=12, validate_every=4, average=3, keep=3)
    saved = [load_file(path / checkpoint.MODEL) for path in checkpoint.checkpoints(tmp_path / "run")]
    best = load_file(checkpoint.checkpoints(tmp_path / "run", "best")[-1] / checkpoint.MODEL)
    assert len(saved) == 3
    for name, value in best.items():
        assert torch.allclose(value, sum(weights[name] for weights in saved) / 3, atol=1e-6)


def test_selecting_by_error_reports_error_rates(tsv: Path, tmp_path: Path) -> None:
    result = run(tsv, tmp_path / "run", select="error", steps=120, validate_every=40)
    valid = [e for e in read_history(tmp_path / "run" / "history.jsonl") if e["kind"] == "valid"]
    assert result.best_value == min(entry["sequence_error_rate"] for entry in valid) < 100
    found = evaluate_run(checkpoint.load_trained(tmp_path / "run"), tsv, 1, 1.0, None)
    assert found["sequence_error_rate"] == pytest.approx(result.best_value)


def test_validation_sources_that_are_too_long_are_left_out_with_their_count(
    write_tsv: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tsv = write_tsv(*LINES, f"{'a' * 40}\tA", f"afk\t{'A ' * 40}", name="train.tsv")
    run(tsv, tmp_path / "run", select="error", max_length=32)
    assert "left out 2 pairs of 32 tokens or more" in capsys.readouterr().out
    references = fitting_references(tsv, *(load(tmp_path / "run" / n) for n in TOKENIZERS), 32)
    assert references == {line.split("\t")[0]: [line.split("\t")[1]] for line in LINES}


def test_a_run_that_is_resumed_with_another_select_chooses_its_best_anew(tsv: Path, tmp_path: Path) -> None:
    """An untrained model's loss is some 3 nats, far below its error rate of nearly 100 percent."""
    run(tsv, tmp_path / "run", steps=4, select="loss")
    result = run(tsv, tmp_path / "run", resume=True, steps=8, select="error")
    assert result.best_step == 8
    state = checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run", "best")[-1])
    assert result.best_value == state["sequence_error_rate"]


def test_the_best_can_be_chosen_by_the_error_without_what_is_ignored(tsv: Path, tmp_path: Path) -> None:
    result = run(tsv, tmp_path / "run", select="error", select_ignore="[A-Z]")
    valid = [e for e in read_history(tmp_path / "run" / "history.jsonl") if e["kind"] == "valid"]
    assert all(entry["sequence_error_rate"] > 0 for entry in valid)
    assert result.best_value == min(entry["sequence_error_rate_ignoring"] for entry in valid)


def test_validation_can_decode_some_of_the_sources_evenly_spaced() -> None:
    references = {word: [word] for word in WORDS}
    assert list(spread(references, 4)) == WORDS[::50]
    assert spread(references, 0) == spread(references, 1000) == references


def test_the_result_is_the_moving_average_of_the_weights(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run", steps=3, validate_every=1, ema=0.25, keep=3, average=1)
    one, two, three = (load_file(path / checkpoint.MODEL) for path in checkpoint.checkpoints(tmp_path / "run"))
    best = load_file(checkpoint.checkpoints(tmp_path / "run", "best")[-1] / checkpoint.MODEL)
    for name, value in best.items():
        two_steps = one[name].lerp(two[name], 1 - 2 / 11)  # the decay of the second step: (1 + 1) / (10 + 1)
        assert torch.allclose(value, two_steps.lerp(three[name], 0.75), atol=1e-6)


def test_a_resumed_run_goes_on_with_its_moving_average_bit_for_bit(tsv: Path, tmp_path: Path) -> None:
    options = {"ema": 0.9, "schedule": "paper"}
    run(tsv, tmp_path / "whole", **options)
    run(tsv, tmp_path / "parts", steps=4, **options)
    run(tsv, tmp_path / "parts", resume=True, **options)
    for file in (checkpoint.MODEL, checkpoint.EMA):
        assert same(*(load_file(checkpoint.checkpoints(tmp_path / r)[-1] / file) for r in ("whole", "parts")))


def test_bf16_trains(tsv: Path, tmp_path: Path) -> None:
    for precision in ("bf16", "fp32"):
        run(tsv, tmp_path / precision, steps=40, validate_every=40, dropout=0.0, precision=precision)
    losses = [e["loss"] for e in read_history(tmp_path / "bf16" / "history.jsonl") if e["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    found, full = last_weights(tmp_path / "bf16"), last_weights(tmp_path / "fp32")
    assert all(weight.dtype == torch.float32 for weight in found.values())
    assert not same(found, full)  # it was computed in bf16


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "rmsprop", "muon"])
def test_every_optimizer_lowers_the_loss(optimizer: str, tsv: Path, tmp_path: Path) -> None:
    rate = {"sgd": 0.3, "momentum": 0.05, "adagrad": 0.02, "rmsprop": 0.001, "muon": 0.01}[optimizer]
    run(tsv, tmp_path / "run", optimizer=optimizer, learning_rate=rate, steps=40, validate_every=40, dropout=0.0)
    losses = [e["loss"] for e in read_history(tmp_path / "run" / "history.jsonl") if e["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]


def test_one_tokenizer_for_both_sides_ties_all_three_matrices(tsv: Path, tmp_path: Path) -> None:
    model, training = config.build("tiny", QUICK)
    train(Plan(data=tsv, valid=tsv, out=tmp_path / "run", model=model, train=training, shared_tokenizer="bpe:300"))
    assert sum("tokens" in name or name == "output.weight" for name in last_weights(tmp_path / "run")) == 1


def test_a_finished_run_is_not_overwritten(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already; add --resume"):
        run(tsv, tmp_path / "run")


def test_resuming_with_another_model_or_other_data_is_refused(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    with pytest.raises(UserError, match="other values of d_ff;"):
        run(tsv, tmp_path / "run", resume=True, d_ff=32)
    tsv.write_text(LINES[0] + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"the contents of .*train\.tsv"):
        run(tsv, tmp_path / "run", resume=True)


def test_a_run_of_a_version_that_lacked_an_option_can_be_resumed(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    written = tmp_path / "run" / checkpoint.CONFIG
    config = json.loads(written.read_text())
    del config["model"]["output_bias"]
    written.write_text(json.dumps(config))
    assert run(tsv, tmp_path / "run", resume=True, steps=16).step == 16


def test_a_resumed_run_may_be_made_longer(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    assert run(tsv, tmp_path / "run", resume=True, steps=16).step == 16
    assert json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["train"]["steps"] == 16


def test_the_history_tells_every_change_of_options(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    run(tsv, tmp_path / "run", resume=True)
    run(tsv, tmp_path / "run", resume=True, steps=16, learning_rate=1e-4)
    told = [e for e in read_history(tmp_path / "run" / "history.jsonl") if e["kind"] == "options"]
    assert [entry["step"] for entry in told] == [0, 12]
    assert told[1]["options"]["learning_rate"] == 1e-4


def test_a_resumed_run_may_change_its_dropout(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    run(tsv, tmp_path / "run", resume=True, steps=16, dropout=0.3)
    assert checkpoint.load_trained(tmp_path / "run").config.dropout == 0.3


def test_a_resumed_run_may_change_its_optimizer(tsv: Path, tmp_path: Path) -> None:
    run(tsv, tmp_path / "run")
    assert run(tsv, tmp_path / "run", resume=True, steps=16, optimizer="muon").step == 16


def test_a_source_is_among_the_samples_with_all_of_its_targets(tmp_path: Path) -> None:
    lines = [f"{source}\t{target}\n" for source in "abcdef" for target in ("A", "B", "C")]
    (tmp_path / "valid.tsv").write_text("".join(lines), encoding="utf-8")
    prepare.write_samples(tmp_path / "valid.tsv", prepare.SAMPLES * 2, tmp_path / "some.tsv")  # as if it were that long
    kept = (tmp_path / "some.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    assert kept == [line for line in lines if line[0] in "ace"]


def test_a_run_keeps_evenly_spaced_samples_of_its_validation_file(tsv: Path, tmp_path: Path) -> None:
    prepare.write_samples(tsv, 200, tmp_path / "all.tsv")
    assert (tmp_path / "all.tsv").read_text(encoding="utf-8") == tsv.read_text(encoding="utf-8")
    prepare.write_samples(tsv, prepare.SAMPLES * 50, tmp_path / "few.tsv")  # as if it were that long
    assert (tmp_path / "few.tsv").read_text(encoding="utf-8").splitlines() == LINES[::50]


def test_bad_data_is_refused_before_anything_is_written(
    write_tsv: Callable[..., Path], tsv: Path, tmp_path: Path
) -> None:
    bad = write_tsv(*LINES, "no tab", name="bad.tsv")
    for data, valid in ((bad, tsv), (tsv, bad)):
        model, training = config.build("tiny", QUICK)
        with pytest.raises(DataError, match=r"bad\.tsv, line 201"):
            train(Plan(data=data, valid=valid, out=tmp_path / "run", model=model, train=training))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_stops_with_advice(tsv: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lower --set learning_rate"):
        run(tsv, tmp_path / "run", optimizer="sgd", learning_rate=1e30, clip=0.0)
