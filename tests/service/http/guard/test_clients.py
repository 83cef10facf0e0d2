"""A client goes by the name of its key: in the log, in the metrics, and under limits of its own."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from attendant.service.client_keys import ClientLimit
from attendant.service.http.guard.clients import Clients, Window
from attendant.service.http.guard.keys import Client, Keys
from attendant.service.http.guard.policy import Access
from attendant.service.settings import Settings
from attendant.service.watch.metrics import OUTCOMES
from tests.support.serving import Service, in_process

KEYS = ("alice:one", "alice:two", "bob:three", "four", "five")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def generate(service: Service, key: str) -> Any:
    return service.client.post("/v1/generate", json={"inputs": "cat"}, headers=bearer(key))


def value(service: Service, name: str, **labels: str) -> float | None:
    return service.registry.get_sample_value(f"attendant_client_{name}_total", labels)


def test_a_key_tells_whose_it_is_and_keys_without_a_name_are_told_apart() -> None:
    keys = Keys(Settings(api_keys=KEYS, admin_keys=("root:admin",)))
    found = [keys.check(Access.API_KEY, f"Bearer {key}".encode()) for key in ("one", "two", "three", "four", "five")]
    assert [client.name for client in found] == ["alice", "alice", "bob", "", ""]
    assert len({client.id for client in found}) == 4
    assert keys.check(Access.ADMIN_KEY, b"Bearer admin").name == "root"


def test_the_name_is_no_part_of_the_key(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=KEYS) as service:
        assert generate(service, "one").status_code == 200
        assert generate(service, "alice:one").status_code == 401


def test_the_log_has_the_name_and_never_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with in_process(tmp_path, api_keys=KEYS) as service, caplog.at_level(logging.INFO, "attendant"):
        generate(service, "one")
        generate(service, "four")
    named, plain = [each.fields for each in caplog.records if each.getMessage() == "request"]  # type: ignore[attr-defined]
    assert named["client"] == "alice"
    assert "client" not in plain
    assert "one" not in named.values()


def test_requests_and_tokens_are_counted_by_name(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=KEYS) as service:
        usage = generate(service, "one").json()["usage"]
        generate(service, "two")
        generate(service, "wrong")
        assert value(service, "requests", client="alice", outcome="ok") == 2
        assert value(service, "requests", client="bob", outcome="ok") == 0
        assert value(service, "requests", client="", outcome="unauthorized") == 1
        assert value(service, "tokens", client="alice", side="source") == 2 * usage["source_tokens"]
        assert value(service, "tokens", client="alice", side="target") == 2 * usage["target_tokens"]


def test_the_names_are_those_of_the_settings_and_no_others(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=KEYS) as service:
        generate(service, "wrong")
        samples = [sample for family in service.registry.collect() for sample in family.samples]
        found = [sample.labels for sample in samples if sample.name == "attendant_client_requests_total"]
        assert {labels["client"] for labels in found} == {"", "alice", "bob"}
        assert {labels["outcome"] for labels in found} == set(OUTCOMES)


def test_over_its_requests_a_client_gets_429_and_the_others_do_not(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=KEYS, client_limits=(ClientLimit("alice", 2, 0),)) as service:
        assert [generate(service, key).status_code for key in ("one", "two", "one")] == [200, 200, 429]
        refused = generate(service, "two")
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert refused.json()["error"]["type"] == "rate_limited"
        assert f"try again in {refused.headers['retry-after']} s" in refused.json()["error"]["message"]
        assert generate(service, "three").status_code == generate(service, "four").status_code == 200
        assert value(service, "limited", client="alice", limit="requests") == 2
        assert value(service, "requests", client="alice", outcome="rate_limited") == 2
        assert service.client.get("/v1/info", headers=bearer("one")).status_code == 200  # decodes nothing


def test_over_its_tokens_a_client_gets_429(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=KEYS, client_limits=(ClientLimit("alice", 0, 1),)) as service:
        assert [generate(service, "one").status_code for _ in range(2)] == [200, 429]
        assert value(service, "limited", client="alice", limit="tokens") == 1


def test_the_limit_of_all_others_is_each_name_s_own_and_one_for_keys_without_a_name(tmp_path: Path) -> None:
    limits = (ClientLimit("alice", 0, 0), ClientLimit("*", 1, 0))
    with in_process(tmp_path, api_keys=KEYS, client_limits=limits) as service:
        assert [generate(service, "one").status_code for _ in range(3)] == [200] * 3
        assert [generate(service, key).status_code for key in ("three", "four", "three", "five")] == [
            200,
            200,
            429,
            429,
        ]


def test_openai_s_clients_are_told_as_openai_does(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=KEYS, client_limits=(ClientLimit("bob", 1, 0),)) as service:
        body = {"model": "fake", "prompt": "cat"}
        answers = [service.client.post("/v1/completions", json=body, headers=bearer("three")) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[1].json()["error"]["type"] == "rate_limit_error"


class CountedNothing:
    def request(self, *_: Any) -> None: ...
    def limited(self, *_: Any) -> None: ...


@pytest.mark.parametrize("seed", range(20))
def test_no_minute_has_more_than_the_limit_and_retry_after_is_when_there_is_room(seed: int) -> None:
    pick, now, limit = random.Random(seed), [1000.0], 7
    settings = Settings(api_keys=("alice:key",), client_limits=(ClientLimit("alice", limit, 0),))
    clients = Clients(settings, CountedNothing(), lambda: now[0])  # type: ignore[arg-type]
    admitted: list[float] = []
    for _ in range(200):
        now[0] += pick.random() * pick.choice([0.1, 1, 10])
        try:
            clients.admit(Client("alice", "alice"))
        except Exception as error:
            now[0] += error.retry_after  # type: ignore[attr-defined]
            clients.admit(Client("alice", "alice"))
        admitted.append(now[0])
    for first in admitted:
        assert sum(first <= each < first + 60 for each in admitted) <= limit


def test_what_went_over_is_waited_for() -> None:
    window = Window(10)
    window.add(100.0, 4)
    window.add(130.5, 500)
    assert window.wait(131.0) == 60  # until the 500 are a minute old
    assert window.wait(191.0) == 0


def test_a_window_holds_no_more_than_a_minute() -> None:
    window = Window(10**9)
    for step in range(10_000):
        window.add(step / 10, 1)
        window.wait(step / 10)
    assert len(window._seconds) <= 62
