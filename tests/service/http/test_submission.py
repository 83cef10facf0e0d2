"""Requests and the engine: what is long leaves the event loop, and a request never meets a model that was replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attendant.service.http import responses
from attendant.service.requests import content
from attendant.service.requests.served import ServedModel
from attendant.service.text.tokenizer import LONG_TEXT
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import PATIENCE, Service, in_process, wait_for

SHORT, LONG = "cat", "a" * (LONG_TEXT + 1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path, source=4 * LONG_TEXT) as service:
        yield service


def threads_of(call: Any, threads: list[threading.Thread]) -> Any:
    """`call`, which notes the thread that it runs in."""

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return call(*arguments)

    return noted


def loop_thread(service: Service) -> threading.Thread:
    portal = service.client.portal
    assert portal is not None
    return portal.call(threading.current_thread)  # type: ignore[no-any-return, arg-type]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/generate", {"inputs": "TEXT"}),
        ("/v1/generate", {"inputs": ["cat", "TEXT"], "stream": False}),
        ("/v1/next-token", {"source": "TEXT"}),
        ("/v1/score", {"source": "TEXT", "target": "K"}),
        ("/v1/completions", {"model": "fake", "prompt": "TEXT", "max_tokens": 1}),
    ],
)
@pytest.mark.parametrize("text", [SHORT, LONG])
def test_long_texts_are_tokenized_beside_the_event_loop(
    path: str, body: dict[str, Any], text: str, service: Service
) -> None:
    threads: list[threading.Thread] = []
    tokenizer = service.engine.source_tokenizer
    tokenizer.encode = threads_of(tokenizer.encode, threads)  # type: ignore[method-assign]
    filled = {name: text if value == "TEXT" else value for name, value in body.items()}
    if isinstance(body.get("inputs"), list):
        filled["inputs"] = ["cat", text]
    assert service.post(path, **filled).status_code == 200
    in_loop = {thread is loop_thread(service) for thread in threads}
    assert in_loop == {text == SHORT}


@pytest.mark.parametrize("top_k", [5, 0])
def test_a_whole_vocabulary_is_answered_beside_the_event_loop(
    top_k: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "LONG_RESPONSE", 10)
    threads: list[threading.Thread] = []
    monkeypatch.setattr(content, "top_tokens", threads_of(content.top_tokens, threads))
    assert service.post("/v1/next-token", source="cat", top_k=top_k).status_code == 200
    assert [thread is loop_thread(service) for thread in threads] == [top_k == 5]


def test_a_model_that_is_replaced_while_a_long_text_is_tokenized_is_not_asked(service: Service, tmp_path: Path) -> None:
    newer = FakeEngine(make_bundle(tmp_path / "newer", "newer", source=4 * LONG_TEXT))
    newer.start()
    models = service.client.app.state.parts.models  # type: ignore[attr-defined]
    tokenizer, encode = service.engine.source_tokenizer, service.engine.source_tokenizer.encode

    def encode_and_replace(text: str, bare: bool = False) -> tuple[int, ...]:
        models.find(None).serve(ServedModel(newer))
        return encode(text, bare)

    tokenizer.encode = encode_and_replace  # type: ignore[method-assign]
    answer = service.generate(inputs=LONG)
    assert (answer.status_code, answer.json()["model"]) == (200, "newer")
    assert service.engine.submissions == 0
    service.engine.close()


@pytest.mark.parametrize(("grace", "status"), [(PATIENCE, 200), (0.0, 503)])
def test_at_a_stop_a_request_whose_long_text_is_being_tokenized_is_answered_if_there_is_time(
    grace: float, status: int, service: Service
) -> None:
    tokenizer, encode = service.engine.source_tokenizer, service.engine.source_tokenizer.encode
    begun, may_go_on = threading.Event(), threading.Event()

    def encode_slowly(text: str, bare: bool = False) -> tuple[int, ...]:
        begun.set()
        assert may_go_on.wait(PATIENCE)
        return encode(text, bare)

    tokenizer.encode = encode_slowly  # type: ignore[method-assign]
    models, portal = service.client.app.state.parts.models, service.client.portal  # type: ignore[attr-defined]
    assert portal is not None
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(service.generate, inputs=LONG, max_length=1, timeout_ms=5000)
        assert begun.wait(PATIENCE)
        try:
            closing = pool.submit(portal.call, models.close, grace)
            if grace:
                wait_for(lambda: models.draining)
                assert not closing.done()  # it waits for the text
            else:
                closing.result(PATIENCE)
        finally:
            may_go_on.set()
        assert asked.result().status_code == status
        closing.result()


def test_long_texts_are_encoded_as_short_ones(tmp_path: Path) -> None:
    tokenizer = FakeEngine(make_bundle(tmp_path)).source_tokenizer
    assert tokenizer.encode(LONG) == tokenizer.encode("a") * len(LONG)
    assert tokenizer.unknown_pieces("Z" + LONG) == ["Z"]
