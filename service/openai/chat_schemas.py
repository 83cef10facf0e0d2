"""Requests and responses of OpenAI's chat endpoint. Fields that are not supported are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from attendant.service.openai.schemas import (
    ABSENT,
    ALLOW_UNKNOWN,
    CHOICES,
    EARLY_STOPPING,
    FORBID,
    FREQUENCY_PENALTY,
    GLOSSARY,
    LARGEST_LOGPROBS,
    LENGTH_PENALTY,
    LOGIT_BIAS,
    MAX_TOKENS,
    METADATA,
    PARALLEL_TOOL_CALLS,
    PRESENCE_PENALTY,
    SAFETY_IDENTIFIER,
    SEED,
    SERVICE_TIER,
    SOURCE_LANGUAGE,
    STOP,
    STORE,
    STREAM,
    STREAM_OPTIONS,
    TARGET_LANGUAGE,
    TEMPERATURE,
    TERMS,
    TERMS_MET_ABOUT,
    TOP_P,
    USER,
    CompletionUsage,
    StreamOptions,
)
from attendant.service.requests.schemas import (
    EarlyStopping,
    MetTermResponse,
    Phrases,
    RequestModel,
    ResponseModel,
    Term,
    option,
    value,
)

MOST_MESSAGES = 1000  # all are checked, though only the last is read


def _joined(content: Any) -> Any:
    """Join a list of text parts; anything else is left for pydantic to accept or refuse."""
    parts = content if isinstance(content, list) else []
    texts: list[Any] = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    whole = parts and len(texts) == len(parts) and all(isinstance(text, str) for text in texts)
    return "".join(texts) if whole else content


class TextPart(RequestModel):
    type: str = option(..., "text", "text")
    text: str = option(..., "a part of the message", "a text")


Content = Annotated[
    str, BeforeValidator(_joined, json_schema_input_type=str | Annotated[list[TextPart], Field(min_length=1)])
]


class ChatMessage(RequestModel):
    role: str = option(..., "user or assistant", "user or assistant")
    content: Content = option(..., "what was said", "a text")
    name: str | None = option(None, "whoever said it; not used", "a text")


class ChatRequest(RequestModel):
    model: str = option(..., "the model's name, as GET /v1/models tells it", "the name of a model")
    messages: list[ChatMessage] = option(
        ...,
        "the last one, the user's, is the source; what was said before it is not read",
        f"a list of 1 to {MOST_MESSAGES} messages with role and content, the last one the user's",
        min_length=1,
        max_length=MOST_MESSAGES,
        fail_fast=True,
    )
    n: int | None = option(1, "choices answered, best first", "a whole number from 1", ge=1)
    beam_size: int | None = option(
        None,
        "live hypotheses kept at each step, without a temperature; null: n (an extension)",
        "a whole number from 1, or null",
        unit="hypotheses",
        ge=1,
    )
    length_penalty: float | None = LENGTH_PENALTY
    early_stopping: EarlyStopping | None = EARLY_STOPPING
    max_tokens: int | None = MAX_TOKENS
    max_completion_tokens: int | None = option(
        None, "the same as max_tokens, which it replaces", "a whole number from 1, or null", unit="tokens", ge=1
    )
    temperature: float | None = TEMPERATURE
    top_p: float | None = TOP_P
    seed: int | None = SEED
    logprobs: bool | None = option(False, "answer each token's log-probability", "true or false")
    top_logprobs: int | None = option(
        None,
        "with logprobs, also those of so many most probable tokens in its place",
        f"a whole number from 0 to {LARGEST_LOGPROBS}, or null",
        unit="tokens",
        ge=0,
        le=LARGEST_LOGPROBS,
    )
    source_language: str | None = SOURCE_LANGUAGE
    target_language: str | None = TARGET_LANGUAGE
    allow_unknown: bool | None = ALLOW_UNKNOWN
    terms: list[Term] | None = TERMS
    glossary: str | None = GLOSSARY
    forbid: Phrases | None = FORBID
    choices: Phrases | None = CHOICES
    stream: bool | None = STREAM
    stream_options: StreamOptions | None = STREAM_OPTIONS
    user: str | None = USER
    store: Literal[False] | None = STORE
    metadata: dict[str, Any] | None = METADATA
    service_tier: str | None = SERVICE_TIER
    parallel_tool_calls: bool | None = PARALLEL_TOOL_CALLS
    safety_identifier: str | None = SAFETY_IDENTIFIER
    response_format: dict[str, Any] | None = option(
        None, 'null or {"type": "text"}', 'null or {"type": "text"}: JSON is not offered here'
    )
    tools: list[Any] | None = option(
        None, f"null or empty; tools {ABSENT}", "null: the model can call nothing", max_length=0
    )
    tool_choice: str | None = option(None, "null, none or auto", "null, none or auto: the model can call nothing")
    stop: list[str] | None = STOP
    presence_penalty: float | None = PRESENCE_PENALTY
    frequency_penalty: float | None = FREQUENCY_PENALTY
    logit_bias: dict[str, Any] | None = LOGIT_BIAS


class ChatAnswer(ResponseModel):
    role: str = value("assistant")
    content: str = value("the target text")


class TopLogprob(ResponseModel):
    token: str = value("the token, as text")
    logprob: float = value("of the token", "nats")
    bytes: list[int] | None = value("of its text; null where they are no whole character")


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob] = value("the most probable tokens in its place")


class ChatLogprobs(ResponseModel):
    content: list[ChatLogprob] = value("of each token")


class ChatChoice(ResponseModel):
    index: int = value("best first")
    message: ChatAnswer = value("the answer; `delta` in a chunk")
    logprobs: ChatLogprobs | None = value("null unless asked for")
    finish_reason: str | None = value("stop, or length where max_tokens or the deadline came first")
    terms_met: list[MetTermResponse] | None = value(TERMS_MET_ABOUT, default=None)


class ChatResponse(ResponseModel):
    id: str = value("chatcmpl- and the request's id")
    object: str = value("chat.completion")
    created: int = value("Unix time", "s")
    model: str = value("the model's name")
    choices: list[ChatChoice] = value("n of them")
    usage: CompletionUsage = value("what was read and written")
