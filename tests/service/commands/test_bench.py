"""`attendant bench`: every setting of this machine is measured, and the best are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attendant import main
from attendant.export.bundle import read_bundle
from attendant.service.api import Model
from attendant.service.commands.bench import (
    BEAMS,
    CLIENTS,
    Measured,
    Setting,
    best_settings,
    measure,
    percentile,
    read_texts,
    settings_for,
)
from attendant.service.settings import DEFAULT_BUNDLE, read_settings


def row(precision: str, lanes: int, clients: int, p50: float, rate: float, beam: int = 1) -> Measured:
    return Measured(precision, lanes, beam, clients, p50, p50, rate, rate, 9, 100.0)


def test_every_precision_is_tried_with_every_number_of_lanes_that_fits() -> None:
    lanes = [setting.lanes for setting in settings_for(["int8"], 6)]
    assert lanes == [1, 2, 4]
    assert settings_for(["fp32", "int8"], 1) == [Setting("fp32", 1), Setting("int8", 1)]


def test_the_best_settings_are_by_latency_alone_and_by_texts_of_many() -> None:
    most = max(CLIENTS)
    rows = [
        row("int8", 1, 1, 2.0, 500),
        row("int8", 2, 1, 3.0, 300),
        row("int8", 1, most, 90.0, 600),
        row("int8", 2, most, 60.0, 900),
        row("fp32", 1, 1, 0.1, 9999, beam=4),  # greedy counts
    ]
    assert best_settings(rows) == {"latency": Setting("int8", 1), "throughput": Setting("int8", 2)}


def test_a_percentile_is_the_time_within_which_that_share_came() -> None:
    times = [float(n) for n in range(1, 101)]
    assert (percentile(times, 0.5), percentile(times, 0.99), percentile([7.0], 0.99)) == (51.0, 100.0, 7.0)


def test_what_is_measured_adds_up() -> None:
    with Model() as model:
        found = measure(model, Setting("int8", 2), ["tea", "cat"], beam_size=1, clients=3, seconds=0.05)
    assert found.texts >= 3
    assert found.p50_ms <= found.p99_ms
    assert found.tokens_per_second > found.texts_per_second > 0


@pytest.mark.parametrize("texts", ["☃\n", "tea\n☃\n"])
def test_a_text_that_the_model_refuses_ends_the_command_with_its_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: str
) -> None:
    (tmp_path / "texts").write_text(texts, encoding="utf-8")
    assert main(["bench", "--texts", str(tmp_path / "texts"), "--seconds", "1"]) == 1
    assert "☃" in capsys.readouterr().err


def test_only_a_line_break_separates_texts(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\ufeffa\u2028b\r\n\nc\n", encoding="utf-8", newline="")
    assert read_texts(read_bundle(DEFAULT_BUNDLE), tmp_path / "texts") == ["a\u2028b", "c"]


def test_the_command_prints_a_table_and_flags_that_serve_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("tea\n\ncat\n", encoding="utf-8")
    arguments = ["bench", "--texts", str(tmp_path / "texts"), "--seconds", "1", "--json", str(tmp_path / "out.json")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert printed[0].startswith("g2p, 2 sources, on ")
    assert len(found["rows"]) == len([line for line in printed if line.startswith(("fp32", "int8"))])
    assert {(r["beam_size"], r["clients"]) for r in found["rows"]} == {(b, c) for b in BEAMS for c in CLIENTS}
    for name in ("latency", "throughput"):
        read_settings({key: str(value) for key, value in found[name].items()}, {})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seconds", "0"], "--seconds takes a number above 0, not 0."),
        (["--texts", "nothing"], "nothing cannot be read"),
        (["nothing"], "nothing"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) != 0
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
