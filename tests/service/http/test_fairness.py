"""One request or one key does not harm the others, over HTTP and with a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine.engine import Engine
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.queue.scheduler import MAX_HELD_ITERATIONS
from attendant.service.engine.tasks import Generated
from attendant.service.settings import Settings
from tests.support.engines import Callback, finish_all, generate, make_bundle, make_engine
from tests.support.serving import Running, in_process, wait_for
from tests.support.small_models import make_model

BATCH = {"inputs": ["abc", "cab"] * 48, "beam_size": 4, "min_length": 60}  # minutes, with a model of the usual size
SMALL: dict[str, Any] = {"inputs": "bca", "max_length": 5}


class Steps(EngineObserver):
    """Counts the steps of all lanes, and those from a submission to the end of a small request."""

    def __init__(self) -> None:
        self.count = self.submitted = self.needed = 0

    def stepped(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        self.count += 1

    def generated(self, target_tokens: int, pruned_tokens: int, seconds_per_token: float) -> None:  # noqa: ARG002
        if target_tokens <= SMALL["max_length"] + 1:
            self.needed = self.count - self.submitted


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("fair") / "small", ("fp32",))


@pytest.fixture
def served(bundle: Bundle) -> Iterator[tuple[Running, Engine, Steps]]:
    steps = Steps()
    engine = make_engine(bundle, steps, max_rows=32, max_queue_tokens=20_000)
    engine.start()
    server = Running(lambda _: engine)
    try:
        wait_for(lambda: server.lines or server.failure)
        yield server, engine, steps
    finally:
        server.server.handle_exit(0, None)
        server.join()


def test_beside_a_batch_that_takes_long_a_small_request_needs_about_the_steps_that_it_needs_alone(
    served: tuple[Running, Engine, Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has a larger token budget than the queue, and is accepted."""
    server, engine, steps = served
    submit = engine.submit

    def noted(*arguments: Any) -> Any:
        steps.submitted = steps.count
        return submit(*arguments)

    monkeypatch.setattr(engine, "submit", noted)
    assert server.request("POST", "/v1/generate", SMALL)[0] == 200
    alone = steps.needed
    batch = server.connect()
    batch.request("POST", "/v1/generate", json.dumps(BATCH))
    wait_for(engine.count_running)
    for text in ("bca", "cba", "aab"):
        assert server.request("POST", "/v1/generate", {**SMALL, "inputs": text})[0] == 200
        assert 0 < steps.needed <= alone + MAX_HELD_ITERATIONS + 4  # it joins between two steps
    assert engine.count_waiting() > len(BATCH["inputs"]) // 2  # type: ignore[arg-type]
    batch.close()
    wait_for(lambda: not engine.count_running() + engine.count_waiting())


def test_requests_are_told_apart_by_their_key(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=("one", "two"), admin_keys=("admin",)) as service:
        for key in ("one", "two", "admin", "one"):
            service.client.headers["Authorization"] = f"Bearer {key}"
            assert service.generate().status_code == 200
        first, second, third, again = service.engine.clients
    assert first == again
    assert len({first, second, third}) == 3
    assert not {"one", "two", "admin"} & {first, second, third}  # keys are secret


def test_without_keys_nobody_is_told_apart(tmp_path: Path) -> None:
    with in_process(tmp_path) as service:
        service.client.headers["Authorization"] = "Bearer any"
        assert service.generate().status_code == 200
        assert service.engine.clients == [None]


def test_as_many_texts_as_are_allowed_fit_in_the_queue_with_any_beam(bundle: Bundle) -> None:
    """Of a model whose texts may be 512 tokens long, 256 with beam 5 have a budget of 650,000 tokens."""
    settings = Settings()
    engine = make_engine(bundle, max_queue_tokens=settings.max_queue_tokens // 8)  # its texts have 64
    callback = Callback(settings.max_inputs)
    engine.submit([generate([4, 5], beam_size=5, max_length=64)] * settings.max_inputs, callback)
    finish_all(engine)
    assert all(isinstance(answer, Generated) for answer in callback.wait().values())
