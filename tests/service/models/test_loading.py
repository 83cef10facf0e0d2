"""Loads that hang, as on a mount that does not answer: they end in time, and keep neither other loads nor the stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attendant.service.errors import StartError
from attendant.service.models import registry
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import Running, wait_for
from tests.support.several import Loader, serving, write_manifest


class HangingLoader(Loader):
    """Loads of the names in `hang` do not return before `let_go` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.hang: set[str] = set()
        self.let_go = threading.Event()

    def __call__(self, directory: Path | None) -> FakeEngine:
        assert directory is not None
        if directory.name in self.hang:
            self.asked.append(directory.name)
            self.let_go.wait()
        return super().__call__(directory)


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[HangingLoader]:
    made = HangingLoader(tmp_path / "models")
    yield made
    made.let_go.set()


def test_a_load_that_hangs_is_given_up_and_the_next_one_succeeds(loader: HangingLoader) -> None:
    with serving(loader.directory, "a", "b", loader=loader, load="lazy", load_seconds=0.3) as service:
        loader.hang.add("a")
        refused = service.generate("a")
        assert refused.status_code == 503
        assert "was not loaded within 0.3 s" in refused.json()["error"]["message"]
        assert service.generate("b").status_code == 200


def test_a_reload_that_hangs_is_refused_and_the_old_one_serves_on(loader: HangingLoader) -> None:
    with serving(loader.directory, "a", "b", loader=loader, load_seconds=0.3) as service:
        loader.hang.add("a")
        for name in ("a", "b"):
            write_manifest(loader.directory / name, version="2")
        refused = service.reload()
        assert refused.status_code == 422
        assert "was not loaded within 0.3 s" in refused.json()["error"]["message"]
        assert service.generate("a").status_code == 200
        assert len(loader.engines["b"]) == 2  # the other was taken up
        assert service.reload(model="b").status_code == 200


def test_what_still_hangs_is_not_tried_again(loader: HangingLoader) -> None:
    with serving(loader.directory, "a", loader=loader, load_seconds=0.3) as service:
        loader.hang.add("a")
        for _ in range(3):
            assert service.reload(model="a").status_code == 422
        assert "still hangs" in service.reload(model="a").json()["error"]["message"]
        assert loader.asked.count("a") == 2  # at the start, and the first reload


def test_an_engine_that_comes_too_late_is_closed_and_its_model_can_be_loaded_again(loader: HangingLoader) -> None:
    with serving(loader.directory, "a", loader=loader, load_seconds=0.3) as service:
        loader.hang.add("a")
        assert service.reload(model="a").status_code == 422
        loader.hang.clear()
        loader.let_go.set()
        wait_for(lambda: len(loader.engines["a"]) == 2 and len(loader.alive()) == 1)
        assert service.generate("a").status_code == 200
        wait_for(lambda: service.reload(model="a").status_code == 200)


def test_a_directory_of_models_that_hangs_is_told_at_the_reload(
    loader: HangingLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(loader.directory, "a", loader=loader, load_seconds=0.3) as service:
        monkeypatch.setattr(registry, "find_bundles", lambda *_: loader.let_go.wait())
        refused = service.reload()
        assert refused.status_code == 422
        assert "was not read within 0.3 s" in refused.json()["error"]["message"]


def test_a_manifest_that_is_a_pipe_is_refused_at_once(loader: HangingLoader) -> None:
    with serving(loader.directory, "a", "b", loader=loader) as service:
        (loader.directory / "c").mkdir()
        os.mkfifo(loader.directory / "c" / "manifest.json")
        refused = service.reload()
        assert refused.status_code == 422
        assert "it is not a regular file" in refused.json()["error"]["message"]
        assert service.generate("b").status_code == 200


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_stop_during_a_load_that_hangs_takes_its_grace_and_no_longer(let_go: threading.Event) -> None:
    asked = threading.Event()

    def load(_: Path | None) -> Any:
        asked.set()
        let_go.wait()

    server = Running(load, grace_seconds=0.3)
    assert asked.wait(20)
    server.stop()
    server.join()
    assert server.failure is None
    assert not [thread for thread in _loading_threads() if not thread.daemon]  # which would hold up the exit


def test_a_stop_during_a_reload_that_hangs_answers_it_and_ends(tmp_path: Path, let_go: threading.Event) -> None:
    asked = threading.Event()
    first = FakeEngine(make_bundle(tmp_path))
    first.start()
    engines = iter([first])

    def load(_: Path | None) -> Any:
        engine = next(engines, None)
        if engine is None:
            asked.set()
            let_go.wait()
        return engine

    server = Running(load, grace_seconds=0.3, admin_keys=("key",))
    wait_for(lambda: server.lines)
    with ThreadPoolExecutor(1) as pool:
        reload = pool.submit(server.request, "POST", "/v1/reload", {}, Authorization="Bearer key")
        assert asked.wait(20)
        server.stop()
        assert reload.result()[0] == 503
    server.join()


def test_a_start_that_hangs_ends_with_a_sentence(let_go: threading.Event) -> None:
    server = Running(lambda _: let_go.wait(), load_seconds=0.2)
    server.join()
    assert isinstance(server.failure, StartError)
    assert "was not loaded within 0.2 s" in str(server.failure)


def test_a_load_that_goes_on_while_the_service_stops_is_waited_for(tmp_path: Path, let_go: threading.Event) -> None:
    asked, engine = threading.Event(), FakeEngine(make_bundle(tmp_path))

    def load(_: Path | None) -> Any:
        asked.set()
        let_go.wait()
        engine.start()
        return engine

    server = Running(load, grace_seconds=20)
    assert asked.wait(20)
    server.stop()
    wait_for(lambda: server.server.models.draining)
    let_go.set()
    server.join()
    assert not engine._thread.is_alive()


def _loading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("attendant-models")]
