"""The requests with which the image is overloaded, and whether a server that lives through them is told from others."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from deploy import overload
from tests.support.serving import running

ROOT = Path(__file__).parents[2]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload, "CONNECTIONS", 10)
    monkeypatch.setattr(overload, "HOLD_SECONDS", 0.5)
    monkeypatch.setattr(overload, "PATIENCE", 120.0)


@pytest.mark.usefixtures("few")
def test_a_server_that_lives_is_found_to(tmp_path: Path) -> None:
    with running(tmp_path, memory_megabytes=2000) as (server, _):
        lives, found = overload.survive(f"http://127.0.0.1:{server.port}", lambda: True)
    assert lives, found
    for kind in overload.KINDS:
        assert kind in found


@pytest.mark.usefixtures("few")
def test_one_that_has_ended_is_named_with_what_it_did_not_live_through(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        lives, found = overload.survive(f"http://127.0.0.1:{server.port}", lambda: False)
    assert not lives
    assert found.startswith("it did not live through arriving")


def test_requests_are_as_large_as_the_limits_and_no_larger() -> None:
    limits = {
        "max_body_bytes": 10_000,
        "max_source_length": 63,
        "max_target_length": 64,
        "max_inputs": 256,
        "max_beam_size": 32,
        "max_rows": 64,
        "max_queue_tokens": 200_000,
    }
    for kind, sent in overload.requests(limits).items():
        body = sent.partition(b"\r\n\r\n")[2]
        assert len(body) <= limits["max_body_bytes"]
        if kind in ("arriving", "nested"):
            assert len(body) > limits["max_body_bytes"] - 30
        if kind == "unread":
            assert len(json.loads(body)["inputs"]) * 33 * 64 <= limits["max_queue_tokens"]


def test_every_folder_of_the_package_goes_to_the_builder_of_the_image() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"].values()
    admitted = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{folder}" for folder in folders} <= set(admitted)
