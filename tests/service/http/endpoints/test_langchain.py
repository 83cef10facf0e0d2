"""LangChain's classes for OpenAI against the service: they work, or say why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from tests.support.serving import running


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("bundle")) as (server, _):
        yield f"http://127.0.0.1:{server.port}/v1"


@pytest.fixture(autouse=True)
def _no_tracing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


def chat(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="fake", base_url=url, api_key="none", max_retries=0, **options)


def completion(url: str, **options: Any) -> OpenAI:
    return OpenAI(model="fake", base_url=url, api_key="none", max_retries=0, temperature=0, **options)


def test_a_chat_and_a_completion_answer_the_same(url: str) -> None:
    answer = chat(url).invoke("cat")
    assert answer.content == completion(url).invoke("cat")
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == 3


def test_what_is_streamed_is_the_whole_answer(url: str) -> None:
    whole = chat(url).invoke("cat").content
    assert "".join(str(part.content) for part in chat(url).stream("cat")) == whole
    assert "".join(completion(url).stream("cat")) == whole


def test_a_batch_is_answered_in_order(url: str) -> None:
    words = ["cat", "dog", "fab"]
    found = [answer.content for answer in chat(url).batch(words)]
    assert found == [chat(url).invoke(word).content for word in words]


def test_harmless_fields_are_taken(url: str) -> None:
    fields = {"parallel_tool_calls": False, "safety_identifier": "someone"}
    asked = chat(url, store=False, metadata={"a": "b"}, service_tier="auto", model_kwargs=fields)
    assert asked.invoke("cat").content == chat(url).invoke("cat").content


@pytest.mark.parametrize("make", [chat, completion])
def test_stop_says_why_it_is_refused(make: Any, url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="stop takes null: stopping at a text is not offered here"):
        make(url).invoke("cat", stop=["x"])


def test_a_system_message_says_why_it_is_refused(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="is system: the model follows no instructions, so leave this"):
        chat(url).invoke([SystemMessage("Translate."), HumanMessage("cat")])
