"""What memory and time an export may take: told, kept to, and refused in a sentence."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attendant.common.stages import Stages
from attendant.export import cli
from attendant.export.bundle import BundleError
from attendant.export.graphs.graphs import sizes_of
from attendant.export.make import certificate, convert, memory
from attendant.export.make.certificate import make_certificate, search_again
from attendant.export.make.samples import read_samples
from attendant.export.verify.torch_checks import check_searched, held_out, looked_at
from attendant.export.verify.verify import verify
from attendant.model.checkpoint import load_trained
from attendant.model.search.reference import Hypothesis
from tests.support.exporting import WORDS, write_run
from tests.support.small_models import make_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", [(a + b + a, "A B") for a in WORDS for b in WORDS[:3]])


def test_a_machine_with_too_little_memory_is_told_at_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda _: 300 * 10**6)
    with pytest.raises(BundleError, match=r"takes up to \d+ MB of memory, .* use a machine or a container with more"):
        convert.convert(run, tmp_path / "bundle", "small")
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_process_counts(run: Path, tmp_path: Path) -> None:
    """A real limit: the sentence, exit 1, and nothing written."""
    program = (
        "import resource, sys; from attendant.cli import main; sys.argv = ['attendant', *sys.argv[1:]]; "
        "resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)); sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "export", str(run), "--out", str(tmp_path / "bundle")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 1
    assert "exporting this model takes up to" in found.stderr
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_memory_that_is_promised_grows_with_the_weights_and_not_with_the_positions() -> None:
    sizes = sizes_of(make_model().config)
    assert memory.needed(dataclasses.replace(sizes, max_length=5000)) == memory.needed(sizes)
    assert memory.needed(dataclasses.replace(sizes, d_model=1024)) > memory.needed(sizes)


def test_what_did_not_fit_the_seconds_is_recorded_told_and_verified(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = convert.convert(run, tmp_path / "bundle", "small", ("fp32",), seconds=1e-6, shows=True)
    told = bundle.certificate["looked_at"]
    assert told["certified answers searched again"] == [1, 16]
    assert told["pairs for the alignment"] == [4, 16]  # of those inputs
    assert told["held-out inputs"] == [16, 36]
    assert bundle.variants["fp32"].measured["held_out_inputs"] == 16
    assert "it will hold up to" in capsys.readouterr().out
    assert any("16 of 36 held-out inputs" in line for line in cli.not_looked_at(bundle))
    samples = read_samples(run, load_trained(run))
    assert len(held_out(bundle, samples).texts) == 16
    assert verify(bundle, samples) == []


@pytest.mark.parametrize("told", [None, {}, {"held-out inputs": "all"}, {"held-out inputs": [10**9, 1]}])
def test_a_note_that_makes_no_sense_leaves_nothing_out(run: Path, told: Any, tmp_path: Path) -> None:
    trained = load_trained(run)
    held = make_certificate(trained, WORDS)
    bundle: Any = type("Bundle", (), {"certificate": held | {"looked_at": told}})()
    assert looked_at(bundle, "held-out inputs", 24) == 24


def test_an_answer_that_is_not_the_best_is_found_by_the_slow_search(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = load_trained(run)
    held = make_certificate(trained, WORDS)
    assert [problem for problem in search_again(held, trained) if problem] == []
    assert [problem for problem in search_again(held, trained, tokens=5) if problem] == []
    monkeypatch.setattr(certificate, "greedy", lambda *_: Hypothesis((4, 4), (-1.0, -1.0, -1.0), "stop"))
    problems = [problem for problem in search_again(held, trained) if problem]
    assert len(problems) >= len(held["samples"]) - 1
    assert "greedy of sample" in problems[0]
    samples = read_samples(run, trained)
    bundle: Any = type("Bundle", (), {"certificate": held})()
    assert list(check_searched(bundle, samples)) == problems


def test_stages_say_what_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0, 10)  # ten between two readings of the clock
    monkeypatch.setattr("attendant.common.stages.time.monotonic", lambda: next(seconds))
    stages = Stages("export", {"reading": 1, "writing": 3})
    for name in ("reading", "writing", "unplanned", "writing"):
        stages.begin(name)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "export: 1 of 2, reading"
    assert second == "export: 2 of 2, writing; 0:00:20 so far, about 0:01:00 left"
