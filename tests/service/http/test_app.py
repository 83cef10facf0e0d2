"""The application's life: loading, readiness, reload with nothing dropped, draining."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from attendant.export.bundle import BundleError
from attendant.service.errors import StartError
from attendant.service.http import app
from attendant.service.http.app import create_app
from attendant.service.settings import Settings
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import Service, in_process, wait_for
from tests.support.threads import threads_beside

KEY = {"Authorization": "Bearer key"}


class Loader:
    """Loads stand-in engines, named after their directory; what `refuse` is set to is raised instead."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loaded: list[FakeEngine] = []
        self.refuse: Exception | None = None
        self.may_load = threading.Event()
        self.may_load.set()

    def __call__(self, directory: Path | None) -> FakeEngine:
        assert self.may_load.wait(20)
        if self.refuse is not None:
            raise self.refuse
        name = "configured" if directory is None else directory.name
        engine = FakeEngine(make_bundle(self.directory / name, name))
        engine.start()
        self.loaded.append(engine)
        return engine


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


def reload(service: Service, **body: Any) -> Any:
    return service.client.post("/v1/reload", json=body, headers=KEY)


def model(service: Service) -> str:
    return str(service.client.get("/v1/info", headers=KEY).json()["model"])


def test_it_is_alive_while_it_loads_and_ready_once_it_has(loader: Loader) -> None:
    loader.may_load.clear()
    registry = CollectorRegistry()
    with TestClient(create_app(Settings(), registry=registry, load=loader)) as client:
        assert client.get("/healthz").status_code == 200
        for answer in (
            client.get("/readyz"),
            client.get("/v1/info"),
            client.post("/v1/generate", json={"inputs": "a"}),
        ):
            assert answer.status_code == 503
            assert "still being loaded" in answer.json()["error"]["message"]
        assert registry.get_sample_value("attendant_ready") == 0
        loader.may_load.set()
        wait_for(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/generate", json={"inputs": "a"}).json()["model"] == "configured"
        assert registry.get_sample_value("attendant_ready") == 1


@pytest.mark.parametrize("error", [BundleError("the bundle is torn."), StartError("no cuda."), RuntimeError("a bug")])
def test_who_runs_it_hears_why_it_could_not_load(error: Exception, loader: Loader) -> None:
    loader.refuse = error
    heard: list[Exception] = []
    with TestClient(create_app(Settings(), load=loader, on_failure=heard.append)) as client:
        wait_for(lambda: heard)
        assert client.get("/readyz").status_code == 503
    assert heard == [error]


def test_a_closed_application_leaves_no_engine_running(loader: Loader) -> None:
    with TestClient(create_app(Settings(), load=loader)) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
    assert not loader.loaded[0]._thread.is_alive()


def test_a_reload_swaps_the_bundle_and_closes_the_old_engine(loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service:
        answer = reload(service, bundle=str(tmp_path / "second"))
        assert (answer.status_code, answer.json()["model"]) == (200, "second")
        assert model(service) == "second"
        wait_for(lambda: not service.engine._thread.is_alive())
        assert service.registry.get_sample_value("attendant_reloads_total", {"model": "fake", "outcome": "ok"}) == 1
        assert reload(service).json()["model"] == "configured"


def test_without_a_body_the_configured_bundle_is_reloaded(loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service:
        answer = service.client.post("/v1/reload", headers=KEY)
        assert (answer.status_code, answer.json()["model"]) == (200, "configured")


def test_a_bundle_whose_path_cannot_be_is_refused(loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service:
        loader.refuse = OSError(errno.ENAMETOOLONG, "File name too long")
        answer = reload(service, bundle="b" * 5000)
        assert answer.status_code == 422
        said = "The bundle is refused, and fake still serves: it cannot be read: File name too long."
        assert answer.json()["error"]["message"] == said


@pytest.mark.parametrize("error", [BundleError("x has not its digest."), StartError("it drifts.")])
def test_a_refused_bundle_leaves_the_old_one_serving(error: Exception, loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service:
        loader.refuse = error
        answer = reload(service, bundle="elsewhere")
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == "bundle"
        assert answer.json()["error"]["message"] == f"The bundle is refused, and fake still serves: {error}"
        assert model(service) == "fake"
        assert (
            service.registry.get_sample_value("attendant_reloads_total", {"model": "fake", "outcome": "refused"}) == 1
        )


def test_a_reload_that_fails_otherwise_is_opaque_and_leaves_the_old_one_serving(loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service:
        loader.refuse = RuntimeError("a bug")
        answer = reload(service)
        assert answer.status_code == 500
        assert "a bug" not in answer.text
        assert model(service) == "fake"
        assert (
            service.registry.get_sample_value("attendant_reloads_total", {"model": "fake", "outcome": "refused"}) == 1
        )


@pytest.mark.parametrize(
    ("settings", "key", "status", "sentence"),
    [
        ({}, "any", 403, "needs admin keys to be set (ATTENDANT_ADMIN_KEYS); the signal SIGHUP reloads too."),
        ({"api_keys": ("normal",)}, "normal", 403, "needs admin keys to be set"),
        ({"api_keys": ("normal",), "admin_keys": ("admin",)}, "normal", 403, "This API key may not reload"),
        ({"api_keys": ("normal",), "admin_keys": ("admin",)}, "admin2", 401, "The admin key is missing or wrong"),
        ({"admin_keys": ("admin",)}, "", 401, "The admin key is missing or wrong"),
    ],
)
def test_reloading_over_http_needs_an_admin_key(
    settings: dict[str, Any], key: str, status: int, sentence: str, loader: Loader, tmp_path: Path
) -> None:
    with in_process(tmp_path, loader, **settings) as service:
        answer = service.client.post("/v1/reload", json={}, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == status
        assert sentence in answer.json()["error"]["message"]
        assert not loader.loaded


def test_a_line_feed_after_the_path_does_not_open_it(loader: Loader, tmp_path: Path) -> None:
    """A route's pattern ends with `$`, which a line feed may follow; the keys' list of paths has none."""
    with in_process(tmp_path, loader, api_keys=("normal",), admin_keys=("admin",)) as service:
        answer = service.client.post("/v1/reload%0A", json={}, headers={"Authorization": "Bearer normal"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found")
        assert not loader.loaded


def test_an_admin_key_reloads_and_opens_what_a_key_opens(loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path, loader, api_keys=("normal",), admin_keys=("key",)) as service:
        assert reload(service).json()["model"] == "configured"
        assert model(service) == "configured"


def test_no_request_is_dropped_by_reloads(loader: Loader, tmp_path: Path) -> None:
    """Four clients ask without a pause, before, during and after each of them."""
    names = ["fake", *(f"bundle-{number}" for number in range(4))]
    answers: list[tuple[int, str, str]] = []
    over = threading.Event()
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service:

        def ask(_: int) -> None:
            while not over.is_set():
                answer = service.client.post("/v1/generate", json={"inputs": "facade"}, headers=KEY)
                text = answer.json()["outputs"][0]["hypotheses"][0]["text"]
                answers.append((answer.status_code, answer.json()["model"], text))

        with threads_beside(4, ask):
            try:
                for name in names:
                    if name != "fake":
                        assert reload(service, bundle=name).status_code == 200
                    wait_for(lambda name=name: name in {model for _, model, _ in answers})
            finally:
                over.set()
    assert {status for status, _, _ in answers} == {200}
    assert {model for _, model, _ in answers} == set(names)
    assert len({text for _, _, text in answers}) == 1


def test_what_is_running_at_a_reload_finishes_on_the_old_engine(loader: Loader, tmp_path: Path) -> None:
    with in_process(tmp_path / "first", loader, admin_keys=("key",)) as service, ThreadPoolExecutor(1) as pool:
        service.engine.pause_after = 1
        body = {"inputs": "facade"}
        asked = pool.submit(lambda: service.client.post("/v1/generate", json=body, headers=KEY))
        wait_for(service.engine.count_running)
        assert reload(service).status_code == 200
        assert not asked.done()
        service.engine.resume()
        answer = asked.result()
        assert (answer.status_code, answer.json()["model"]) == (200, "fake")


def test_draining_refuses_the_new_and_finishes_the_accepted(tmp_path: Path) -> None:
    with in_process(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        service.engine.pause_after = 1
        asked = pool.submit(service.generate)
        wait_for(service.engine.count_running)
        models = service.client.app.state.parts.models  # type: ignore[attr-defined]
        service.client.portal.call(lambda: asyncio.sleep(0, models.refuse()))  # type: ignore[union-attr]
        for answer in (service.client.get("/readyz"), service.generate()):
            assert answer.status_code == 503
            assert "stopping" in answer.json()["error"]["message"]
        assert service.client.get("/healthz").status_code == 200
        assert service.registry.get_sample_value("attendant_ready") == 0
        service.engine.resume()
        assert asked.result().status_code == 200


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/next-token", "/v1/score", "/v1/completions"])
@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"inputs": "cat", "none": 1}', b"null"])
@pytest.mark.parametrize("key", ["key", "wrong"])
def test_a_busy_route_refuses_the_same_with_and_without_the_router(
    path: str, body: bytes, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for direct in (app.direct_applications, lambda _: {}):
        monkeypatch.setattr(app, "direct_applications", direct)
        with in_process(tmp_path / str(len(answers)), api_keys=("key",)) as service:
            answer = service.client.post(path, content=body, headers={"Authorization": f"Bearer {key}"})
            answers.append((answer.status_code, answer.json()))
    assert answers[0] == answers[1]
    assert answers[0][0] == (401 if key == "wrong" else answers[0][0])
    assert answers[0][0] >= 400
