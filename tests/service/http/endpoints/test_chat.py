"""POST /v1/chat/completions, asked by OpenAI's own client: a chat is a completion of its last message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.serving import Service, in_process


@dataclass
class Chat:
    service: Service
    client: openai.OpenAI

    def ask(self, content: Any = "cat", before: tuple[Any, ...] = (), **options: Any) -> Any:
        messages: Any = [*before, {"role": "user", "content": content}]
        return self.client.chat.completions.create(model="fake", messages=messages, **options)

    def complete(self, prompt: str = "cat", **options: Any) -> Any:
        return self.client.completions.create(model="fake", prompt=prompt, **options)

    def refused(self, **options: Any) -> str:
        with pytest.raises(openai.BadRequestError) as refused:
            self.ask(**options)
        return str(refused.value.body["message"])  # type: ignore[index]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    directory: Path = tmp_path_factory.mktemp("bundle")
    with in_process(directory) as service:
        url = "http://testserver/v1"
        yield Chat(service, openai.OpenAI(base_url=url, api_key="none", http_client=service.client, max_retries=0))


def test_a_chat_answers_what_a_completion_of_its_last_message_does(chat: Chat) -> None:
    before = ({"role": "user", "content": "dog"}, {"role": "assistant", "content": "D AA G"})
    answer, completion = chat.ask(before=before), chat.complete()
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", completion.choices[0].text)
    assert choice.finish_reason == completion.choices[0].finish_reason
    assert answer.usage == completion.usage


def test_parts_of_text_are_one_text(chat: Chat) -> None:
    parts = [{"type": "text", "text": "ca"}, {"type": "text", "text": "t"}]
    assert chat.ask(parts).choices[0].message.content == chat.ask("cat").choices[0].message.content


def test_a_streamed_chat_joins_to_the_whole_answer(chat: Chat) -> None:
    chunks = list(chat.ask(stream=True, stream_options={"include_usage": True}))
    whole = chat.ask()
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == whole.choices[0].message.content
    assert [choice.delta.role for choice in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert len(deltas) > 1
    assert deltas[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_options_reach_the_engine(chat: Chat) -> None:
    chat.ask(n=2, temperature=0.5, top_p=0.9, seed=7, max_completion_tokens=5)
    options = chat.service.engine.submitted[-1].options  # type: ignore[union-attr]
    assert (options.temperature, options.top_p, options.max_length) == (0.5, 0.9, 5)
    assert len(chat.ask(n=3, extra_body={"beam_size": 4, "early_stopping": "never"}).choices) == 3
    assert chat.service.engine.submitted[-1].options.early_stopping == "never"  # type: ignore[union-attr]


def test_log_probabilities_are_those_of_a_completion(chat: Chat) -> None:
    found = chat.ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    wanted = chat.complete(logprobs=2).choices[0].logprobs
    assert [token.token for token in found] == wanted.tokens
    assert [token.logprob for token in found] == wanted.token_logprobs
    for token, top in zip(found, wanted.top_logprobs, strict=True):
        assert {other.token: other.logprob for other in token.top_logprobs} == top
        assert bytes(token.bytes).decode() == token.token


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"before": ({"role": "system", "content": "Be brief."},)},
            "messages[0].role is system: the model follows no instructions, so leave this message out.",
        ),
        (
            {"before": ({"role": "tool", "content": "1", "name": "x"},)},
            "messages[0].role takes user or assistant, not 'tool'.",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools takes null: the model can call nothing"),
        ({"response_format": {"type": "json_object"}}, 'response_format takes null or {"type": "text"}.'),
        ({"stop": ["x"]}, "stop takes null: stopping at a text is not offered here"),
        ({"top_logprobs": 2}, "top_logprobs is for logprobs; set logprobs to true, or leave it out."),
        ({"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, "messages[0].content takes a text, not"),
        ({"content": ""}, "messages[0].content is empty; give a text."),
        ({"content": "C"}, "messages[0].content has what the model's vocabulary lacks: 'C'"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens and max_completion_tokens are both given"),
        (
            {"before": ({"role": "user", "content": "dog", "names": "x"},)},
            "messages[0].names is no field of this request; did you mean name? It takes role, content, name.",
        ),
        ({"before": ({"role": "user"},)}, "messages[0].content is missing; it takes a text."),
        ({"before": ("dog",)}, 'messages[0] takes an object with role, content, name, not "dog".'),
        (
            {"extra_body": {"logit_bias": {"x": {}}}},
            'logit_bias takes null or nothing inside: biases are not offered here, not {"x": {}}.',
        ),
        ({"extra_body": {"functions": []}}, "functions is no field of this request"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(chat: Chat, options: dict[str, Any], sentence: str) -> None:
    assert sentence in chat.refused(**options)


def test_the_last_message_must_be_the_users(chat: Chat) -> None:
    answer = chat.service.post(
        "/v1/chat/completions", model="fake", messages=[{"role": "assistant", "content": "K AE T"}]
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].role"


def test_an_unknown_model_is_not_found(chat: Chat) -> None:
    with pytest.raises(openai.NotFoundError, match="There is no model 'other' here"):
        chat.client.chat.completions.create(model="other", messages=[{"role": "user", "content": "cat"}])


def test_fields_that_ask_for_nothing_are_taken(chat: Chat) -> None:
    plain = chat.ask().choices[0].message.content
    harmless: dict[str, Any] = {
        "store": False,
        "metadata": {"team": "a"},
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "safety_identifier": "someone",
    }
    assert chat.ask(**harmless).choices[0].message.content == plain
    assert chat.complete(extra_body=harmless).choices[0].text == plain
    assert "store takes false or null: nothing is stored here" in chat.refused(store=True)


def test_an_unknown_path_is_refused_in_openai_s_form_to_its_own_clients(chat: Chat) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        chat.client.embeddings.create(model="fake", input="cat")
    assert (refused.value.code, refused.value.type) == ("not_found", "invalid_request_error")
    assert "There is nothing at /v1/embeddings" in refused.value.message
    plain = chat.service.client.post("/v1/embeddings", json={}).json()["error"]
    assert set(plain) == {"type", "message", "field"}
