"""What takes long is done in a thread, not on the event loop, where every other request would wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.service.http.endpoints import v2
from attendant.service.openai.chat_schemas import MOST_MESSAGES
from attendant.service.requests import planning
from attendant.service.text.tokenizer import LONG_TEXT
from tests.support.serving import Service, in_process

LONG = "AA " * LONG_TEXT


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path) as service:
        yield service


def infer(**parameters: Any) -> tuple[str, dict[str, Any]]:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["cat"]}
    return "/v2/models/fake/infer", {"inputs": [tensor], "parameters": parameters}


REQUESTS = {
    "generate": lambda prefix: ("/v1/generate", {"inputs": "cat", "target_prefix": prefix}),
    "next-token": lambda prefix: ("/v1/next-token", {"source": "cat", "prefix": prefix}),
    "next-token by tokens": lambda prefix: ("/v1/next-token", {"source": "cat", "prefix_tokens": prefix.split()}),
    "explain": lambda prefix: ("/v1/explain", {"source": "cat", "target_prefix": prefix}),
    "v2": lambda prefix: infer(target_prefix=prefix),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_long_prefix_is_tokenized_in_a_thread(service: Service, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, encode = [], planning.encode_target

    def noted(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.get_ident())
        return encode(*arguments, **named)

    monkeypatch.setattr(planning, "encode_target", noted)
    for prefix, status in (("AA", 200), (LONG, 422)):
        path, body = REQUESTS[kind](prefix)
        assert service.post(path, **body).status_code == status
    assert len(set(threads)) == 2


def test_a_long_answer_of_v2_is_built_in_a_thread(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, columns = [], v2._columns

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return columns(*arguments)

    monkeypatch.setattr(v2, "_columns", noted)
    for limit in (v2.LONG_RESPONSE, 1):
        monkeypatch.setattr(v2, "LONG_RESPONSE", limit)
        path, body = infer()
        assert service.post(path, **body).json()["outputs"][0]["data"][0]
    assert len(set(threads)) == 2


def test_a_chat_has_a_largest_number_of_messages(service: Service) -> None:
    messages = [{"role": "user", "content": "cat"}] * MOST_MESSAGES
    answer = service.post("/v1/chat/completions", model="fake", messages=messages)
    assert answer.status_code == 200
    refused = service.post("/v1/chat/completions", model="fake", messages=[*messages, messages[0]])
    assert refused.status_code == 400
    assert f"1 to {MOST_MESSAGES} messages" in refused.json()["error"]["message"]
