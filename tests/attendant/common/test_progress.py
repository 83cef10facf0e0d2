from __future__ import annotations

import sys

import pytest

from attendant.common import progress
from attendant.common.progress import Count, TrainingProgress


def test_plain_lines_tell_loss_speed_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    shown = TrainingProgress(steps=4, done=2)
    shown.advance(loss=1.5, tokens=100)
    line = capsys.readouterr().out
    assert line.startswith("training: 3 of 4 steps, loss 1.5000, ")
    assert "tokens/s, 0:00:00 left" in line


def test_lines_do_not_come_too_often(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Count("encoding", "pairs")
    for _ in range(1000):
        shown.add(1)
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = TrainingProgress(steps=2)
    shown.advance(loss=1.5, tokens=100)
    shown.say("step 1: loss 1.5")
    shown.close()
    captured = capsys.readouterr()
    assert "training" in captured.err
    assert "loss 1.5000" in captured.err
    assert captured.out == "step 1: loss 1.5\n"


def test_a_bar_counts_steps_per_second_however_slow_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for total in (3, None):
        bar = Count("training", "steps", total)._bar
        slow = bar.format_meter(**{**bar.format_dict, "n": 2, "elapsed": 4.0, "rate": 0.5})
        bar.close()
        assert "0.50 steps/s" in slow


def test_nothing_is_shown_where_another_process_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    shown = TrainingProgress(steps=2, shows=False)
    shown.advance(loss=1.5, tokens=100)
    shown.say("hello")
    assert capsys.readouterr() == ("", "")
