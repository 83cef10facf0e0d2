"""What surrounds every request: ids, keys, limits of body and headers, opaque failures, one log line."""

from __future__ import annotations

import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.serving import Service, in_process

GOOD = b'{"inputs": "cat"}'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with in_process(tmp_path_factory.mktemp("bundle"), max_body_bytes=4096) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    yield shared
    shared.engine.failure = None


def post(service: Service, content: Any, **headers: str) -> Any:
    return service.client.post("/v1/generate", content=content, headers=headers)


def error(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"type", "message", "field"}
    return str(answer.json()["error"]["message"])


def test_a_sane_request_id_is_returned(service: Service) -> None:
    assert service.client.get("/healthz", headers={"X-Request-Id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", "é"])
def test_any_other_request_id_is_replaced(given: str, service: Service) -> None:
    answer = service.client.get("/healthz", headers={"X-Request-Id": given.encode()})
    assert re.fullmatch("[0-9a-f]{24}", answer.headers["x-request-id"])


def test_every_request_gets_an_id_of_its_own(service: Service) -> None:
    assert len({service.client.get("/nothing").headers["x-request-id"] for _ in range(20)}) == 20


def test_keys_and_metrics_go_by_the_path_below_a_root_path(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=("normal",)) as service:
        mounted = TestClient(service.client.app, root_path="/x")
        normal = {"Authorization": "Bearer normal"}
        assert mounted.post("/x/v1/reload", json={}, headers=normal).status_code == 403
        assert mounted.get("/x/healthz").status_code == 200
        assert mounted.post("/x/v1/generate", content=GOOD).status_code == 401
        assert mounted.post("/x/v1/generate", content=GOOD, headers=normal).status_code == 200
        labels = {"model": "fake", "endpoint": "/v1/generate", "outcome": "ok"}
        assert service.registry.get_sample_value("attendant_requests_total", labels) == 1


@pytest.mark.parametrize("path", ["/x/v1/reload", "/x//v1/reload", "/x///v1/reload", "//v1/reload", "/v1/reload"])
@pytest.mark.parametrize("root", ["/x", "/x/", "/", ""])
def test_no_root_path_leads_around_the_admin_key(root: str, path: str, tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=("normal",)) as service:
        mounted = TestClient(service.client.app, root_path=root)
        answer = mounted.post(f"http://testserver{path}", json={}, headers={"Authorization": "Bearer normal"})
        assert answer.status_code in (403, 404)


def test_a_body_over_the_limit_is_refused(service: Service) -> None:
    assert "at most 4096 bytes are taken, and it has 4097 bytes" in error(post(service, b" " * 4097), 413)


def test_a_body_of_exactly_the_limit_is_read(service: Service) -> None:
    assert post(service, GOOD.ljust(4096)).status_code == 200


def test_a_body_without_a_length_is_counted_while_it_is_read(service: Service) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    assert "at most 4096 bytes" in error(post(service, endless()), 413)


@pytest.mark.parametrize(
    ("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)]
)
def test_a_compressed_body_is_read(name: str, pack: Any, service: Service) -> None:
    assert post(service, pack(GOOD), **{"Content-Encoding": name}).status_code == 200


def test_gzip_of_several_members_is_one_body_up_to_a_bound(service: Service) -> None:
    halves = gzip.compress(GOOD[:7]) + gzip.compress(GOOD[7:])
    assert post(service, halves, **{"Content-Encoding": "gzip"}).status_code == 200
    many = gzip.compress(b" ") * 120 + gzip.compress(GOOD)
    assert len(many) < 4096
    assert "is not the gzip" in error(post(service, many, **{"Content-Encoding": "gzip"}), 400)


def test_the_limit_holds_for_what_is_decompressed(service: Service) -> None:
    bomb = gzip.compress(b" " * 1_000_000)
    assert len(bomb) < 4096
    assert "more when decompressed" in error(post(service, bomb, **{"Content-Encoding": "gzip"}), 413)


@pytest.mark.parametrize(
    "body",
    [GOOD, gzip.compress(GOOD)[:-4], gzip.compress(GOOD) + b"x", b""],
    ids=["not compressed", "cut short", "too long", "empty"],
)
def test_a_body_that_is_not_what_its_encoding_says_is_refused(body: bytes, service: Service) -> None:
    message = error(post(service, body, **{"Content-Encoding": "gzip"}), 400)
    assert message in (
        "The body is not the gzip that Content-Encoding says.",
        "The body is empty; it takes a JSON object.",
    )


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "rot13"])
def test_an_unknown_encoding_is_415(name: str, service: Service) -> None:
    assert "is not read here; send gzip, deflate or none" in error(
        post(service, GOOD, **{"Content-Encoding": name}), 415
    )


def test_large_headers_are_431(service: Service) -> None:
    assert "at most 65536 bytes" in error(service.client.get("/healthz", headers={"X-Big": "a" * 100_000}), 431)


def test_an_unknown_path_and_a_wrong_method_have_the_form_of_errors(service: Service) -> None:
    assert "There is nothing at /v1/nothing" in error(service.client.get("/v1/nothing"), 404)
    assert "There is nothing at /v1/generate/" in error(service.client.post("/v1/generate/"), 404)
    assert service.client.get("/v1/models/").status_code == 404
    answer = service.client.delete("/v1/generate")
    assert "/v1/generate takes POST, not DELETE" in error(answer, 405)
    assert answer.headers["allow"] == "POST"


def test_a_failure_is_opaque_to_the_client_and_whole_in_the_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.engine.failure = RuntimeError("a secret of the inside")
    answer = post(service, GOOD, **{"X-Request-Id": "tell-me"})
    message = error(answer, 500)
    assert "tell-me" in message
    assert "secret" not in answer.text
    assert "a secret of the inside" in caplog.text
    assert "Traceback" in caplog.text


def test_one_line_tells_of_a_request_and_never_its_text(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "attendant")
    post(service, b'{"inputs": ["facade", "cab"]}', **{"X-Request-Id": "r-1"})
    lines = [record for record in caplog.records if record.getMessage() == "request"]
    assert len(lines) == 1
    fields = lines[0].fields  # type: ignore[attr-defined]
    assert (fields["id"], fields["path"], fields["status"], fields["outcome"]) == ("r-1", "/v1/generate", 200, "ok")
    assert (fields["inputs"], fields["source_tokens"], fields["request_bytes"]) == (2, 9, 29)
    assert "facade" not in json.dumps(fields)


def test_texts_are_logged_only_if_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "attendant")
    with in_process(tmp_path, log_texts=True) as service:
        answer = service.generate(inputs="facade").json()
    fields = next(record for record in caplog.records if record.getMessage() == "request").fields  # type: ignore[attr-defined]
    assert fields["texts"] == ["facade"]
    assert fields["answers"] == [[answer["outputs"][0]["hypotheses"][0]["text"]]]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with in_process(tmp_path_factory.mktemp("bundle"), api_keys=("first-key", "second-key")) as service:
        yield service


@pytest.mark.parametrize("path", ["/v1/generate%0A", "/v1/gen%00erate", "/v2/models/fake/infer%0A", "/%7F"])
def test_a_path_with_a_control_character_is_no_path(path: str, service: Service) -> None:
    answer = service.client.post(path, json={"inputs": "cat"})
    assert answer.status_code == 404
    assert "There is nothing at" in answer.text


PATHS = ["/v1/generate", "/v1/info", "/metrics", "/docs", "/openapi.json", "/page", "/nothing", "/v1/models"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "first-key", "Basic first-key", "Bearer ", "Bearer first-key2"]
)
def test_without_a_good_key_every_path_is_401(path: str, header: str | None, keyed: Service) -> None:
    answer = keyed.client.get(path, headers={} if header is None else {"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer KEY" in answer.json()["error"]["message"]


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_every_key_opens(key: str, keyed: Service) -> None:
    for header in (f"Bearer {key}", f"bearer {key}"):
        assert keyed.client.get("/v1/info", headers={"Authorization": header}).status_code == 200


def test_probes_need_no_key(keyed: Service) -> None:
    assert keyed.client.get("/healthz").status_code == keyed.client.get("/readyz").status_code == 200
    assert keyed.client.head("/readyz").status_code == 200
