"""`attendant serve` as a user meets it before it serves."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import attendant
from attendant.service.http import app
from attendant.service.settings import Settings, flag


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTENDANT_PORT", "ATTENDANT_HOST", "ATTENDANT_BUNDLE", "ATTENDANT_MODELS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "http"], r"--port takes a whole number from 0 to 65535, not 'http'"),
        (["--precision", "int4", "--port", "-1"], r"--port takes .+ --precision takes one of auto, int8, fp32, fp16"),
        (["--bogus"], r"unrecognized arguments: --bogus"),
        (["--log-texts", "maybe"], r"--log-texts takes true or false"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attendant.main(["serve", *arguments]) == 2
    assert re.search(sentence, complaint(capsys))


def test_an_unknown_variable_is_one_sentence_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTENDANT_MAX_BEAMS", "3")
    assert attendant.main(["serve"]) == 1
    assert "ATTENDANT_MAX_BEAMS: unknown setting" in complaint(capsys)


def test_a_missing_bundle_is_one_sentence_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attendant.main(["serve", "--bundle", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is not a directory; a bundle is what `attendant export --out` writes." in complaint(capsys)


def test_a_torn_bundle_is_one_sentence_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    assert attendant.main(["serve", "--bundle", str(tmp_path)]) == 1
    assert "manifest.json cannot be read as JSON" in complaint(capsys)


def test_an_installation_without_the_embedded_model_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "DEFAULT_BUNDLE", tmp_path / "absent")
    assert attendant.main(["serve"]) == 1
    assert "there is no embedded model in this installation; give a bundle with --bundle DIR." in complaint(capsys)


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        attendant.main(["serve", "--help"])
    text = capsys.readouterr().out
    assert all(flag(setting.name) in text for setting in fields(Settings))
