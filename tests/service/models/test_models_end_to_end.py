"""Several real models behind one server process: the same answers as of each alone, through eviction and reloads."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import attendant
from attendant.service.http.app import create_app
from attendant.service.settings import Settings
from tests.support.engines import make_bundle
from tests.support.processes import Process, requests, without_timing
from tests.support.serving import wait_for
from tests.support.small_models import make_model
from tests.support.threads import in_threads, threads_beside

COUNT = 60  # mixed requests
NAMES = ("one", "two")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, and one whose weights were changed after its digest was taken."""
    directory = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(NAMES):
        make_bundle(make_model(seed), directory / name, ("fp32",))
    shutil.copytree(directory / "one", directory / "broken")
    weights = directory / "broken" / "fp32" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    return directory


@contextmanager
def started(directory: Path, *flags: str) -> Iterator[Process]:
    server = Process(None, "--models", str(directory), "--threads", "2", *flags)
    try:
        yield server
    finally:
        code, errors = server.stop()
    assert code == 0, errors
    assert "Traceback" not in errors


def asked(more: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, body in itertools.islice(requests(), COUNT):
        yield path, {**body, **more}


def plain(answer: tuple[int, str], name: str) -> Any:
    """Without what tells its model and the time."""
    status, found = without_timing(answer)
    content = found[-1][1] if isinstance(found, list) else found
    assert content.pop("model", name) == name
    return status, found


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, list[Any]]:
    """What each model answers as the only one of its service."""
    found = {}
    for name in NAMES:
        with TestClient(create_app(Settings(bundle=directory / name, threads=2))) as client:
            wait_for(lambda client=client: client.get("/readyz").status_code == 200)
            answers = [client.post(path, json=body) for path, body in asked({})]
        found[name] = [plain((answer.status_code, answer.text), "small") for answer in answers]
    assert found["one"] != found["two"]
    assert {status for status, _ in found["one"]} == {200}
    return found


def ask_both(server: Process) -> dict[str, list[Any]]:
    """All requests of both models, from threads that each ask some of one."""
    found: dict[str, list[Any]] = {name: [None] * COUNT for name in NAMES}

    def client(place: int) -> None:
        name = NAMES[place % len(NAMES)]
        for number, (path, body) in enumerate(asked({"model": name})):
            if number % 4 == place // len(NAMES):
                found[name][number] = plain(server.post(path, body), name)

    in_threads(4 * len(NAMES), client)
    return found


def states(server: Process) -> dict[str, str]:
    return {model["id"]: model["state"] for model in json.loads(server.ask("GET", "/v1/models")[1])["data"]}


def test_models_under_load_together_answer_as_each_alone(directory: Path, alone: dict[str, list[Any]]) -> None:
    with started(directory) as server:
        assert states(server) == {"broken": "failed", "one": "loaded", "two": "loaded"}
        assert ask_both(server) == alone
        status, text = server.post("/v1/generate", {"inputs": "abc", "model": "broken"})
        assert status == 503
        assert re.search(r"weights\.bin has not the digest", text)
        scraped = server.ask("GET", "/metrics")[1]
        for name in NAMES:
            (steps,) = re.findall(rf'^attendant_step_seconds_count{{model="{name}"}} (\S+)', scraped, re.M)
            assert float(steps) > 0


def test_models_that_take_turns_in_memory_answer_as_each_alone(directory: Path, alone: dict[str, list[Any]]) -> None:
    with started(directory, "--load", "lazy", "--max-loaded", "1") as server:
        assert set(states(server).values()) == {"unloaded"}
        assert ask_both(server) == alone
        assert sorted(states(server).values()) == ["loaded", "unloaded", "unloaded"]


def test_reloads_under_load_add_replace_and_remove_with_nothing_dropped(directory: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(directory, models, ignore=shutil.ignore_patterns("broken"))
    with started(models) as server:
        statuses: set[int] = set()
        over = threading.Event()

        def client(place: int) -> None:
            body = {"inputs": "abc", "max_length": 30, "model": (*NAMES, "one")[place]}
            while not over.is_set():
                statuses.add(server.post("/v1/generate", body)[0])

        with threads_beside(3, client):
            try:
                before = server.post("/v1/score", {"source": "abc", "target": "A B", "model": "two"})
                replace(models / "two", directory / "one")
                shutil.copytree(directory / "two", models / ".three")
                (models / ".three").rename(models / "three")
                server.signal(signal.SIGHUP)
                wait_for(lambda: states(server) == dict.fromkeys(("one", "three", "two"), "loaded"))
                body = {"source": "abc", "target": "A B"}
                wait_for(lambda: server.post("/v1/score", {**body, "model": "two"}) != before)
                assert server.post("/v1/score", {**body, "model": "three"}) == before
                (models / "three").rename(models / ".three")
                server.signal(signal.SIGHUP)
                wait_for(lambda: states(server) == dict.fromkeys(NAMES, "loaded"))
            finally:
                over.set()
        assert statuses == {200}


def replace(directory: Path, other: Path) -> None:
    """Put a copy of another bundle in the place of one, by renaming."""
    beside = directory.with_name(".new")
    shutil.copytree(other, beside)
    directory.rename(directory.with_name(".old"))
    beside.rename(directory)


def test_a_directory_without_a_bundle_is_one_sentence_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attendant.main(["serve", "--models", str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert f"there is no bundle in {tmp_path}; --models takes a directory with a directory for each bundle." in text
    assert text.count("\n") == 1


def test_a_bundle_and_a_directory_of_models_are_not_served_together(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attendant.main(["serve", "--models", str(directory), "--bundle", str(directory / "one")]) == 2
    assert "--bundle and --models are both given" in capsys.readouterr().err
