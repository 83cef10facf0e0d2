"""Requests that are asked twice, over HTTP and with the real engine, as `attendant serve` loads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from attendant.service.http.app import create_app
from attendant.service.settings import Settings
from tests.support import engines
from tests.support.serving import events_of, wait_for
from tests.support.small_models import make_model

KEY = {"Authorization": "Bearer admin"}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/generate", {"inputs": ["abc", "ab", "abc"], "beam_size": 3, "num_hypotheses": 2, "logprobs": True}),
    ("/v1/generate", {"inputs": "cab", "temperature": 1.0, "seed": 7}),
    ("/v1/next-token", {"source": "abc", "top_k": 0}),
    ("/v1/score", {"source": "abc", "target": "A B"}),
    ("/v1/completions", {"model": "small", "prompt": "abc", "logprobs": 2}),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle") / "small"
    return engines.make_bundle(make_model(seed=3), directory, ("fp32",)).directory


class Served:
    def __init__(self, client: TestClient, registry: CollectorRegistry) -> None:
        self.client, self._registry = client, registry

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.client.post(path, json=body, headers=KEY)
        assert answer.status_code == 200, answer.text
        return {key: value for key, value in answer.json().items() if key not in ("id", "created", "timing")}

    def count(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"attendant_cache_{name}", {"model": "small", **labels})


@contextmanager
def serving(bundle: Path, **settings: Any) -> Iterator[Served]:
    registry = CollectorRegistry()
    app = create_app(Settings(bundle=bundle, admin_keys=("admin",), threads=1, **settings), registry=registry)
    with TestClient(app) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
        yield Served(client, registry)


def test_answers_that_are_kept_are_those_that_are_computed_and_a_reload_empties_them(bundle: Path) -> None:
    with serving(bundle, share_in_flight=False) as plain:
        expected = [plain.post(*request) for request in REQUESTS]
        assert plain.count("misses_total") == 0
    with serving(bundle, cache_megabytes=1) as keeping:
        assert [keeping.post(*request) for request in REQUESTS] == expected
        missed = keeping.count("misses_total")
        assert missed == 6  # one of the seven texts comes twice in a request
        assert keeping.count("hits_total", kind="in_flight") == 1
        assert [keeping.post(*request) for request in REQUESTS] == expected
        assert keeping.count("misses_total") == missed
        assert keeping.count("hits_total", kind="finished") == 7
        assert 0 < (keeping.count("bytes") or 0) <= 10**6
        assert keeping.client.post("/v1/reload", headers=KEY).status_code == 200
        wait_for(lambda: keeping.count("bytes") == 0)
        assert [keeping.post(*request) for request in REQUESTS] == expected
        assert keeping.count("misses_total") == 2 * missed


def test_a_stream_from_the_cache_says_what_the_computed_one_said(bundle: Path) -> None:
    body = {"inputs": "abc", "stream": True, "logprobs": True}
    with serving(bundle, cache_megabytes=1) as served:
        first, second = (events_of(served.client.post("/v1/generate", json=body, headers=KEY).text) for _ in range(2))
        assert served.count("hits_total", kind="finished") == 1
    done = [events[-1][1] for events in (first, second)]
    assert done[0].pop("timing") == done[1].pop("timing")
    assert done[0] == done[1]
    assert {name for name, _ in second} == {"token", "done"}


def test_by_default_nothing_is_kept(bundle: Path) -> None:
    with serving(bundle) as served:
        assert served.post(*REQUESTS[3]) == served.post(*REQUESTS[3])
        assert served.count("misses_total") == 2
        assert served.count("bytes") == 0
