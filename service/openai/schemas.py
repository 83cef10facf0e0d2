"""Requests and responses of the OpenAI dialect. What cannot be honoured is refused, never ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from attendant.service.requests.schemas import (
    ALLOW_UNKNOWN_ABOUT,
    ALLOW_UNKNOWN_TAKES,
    CHOICES_ABOUT,
    EARLY_STOPPING_ABOUT,
    FORBID_ABOUT,
    GLOSSARY_ABOUT,
    GLOSSARY_TAKES,
    LANGUAGE_TAKES,
    LARGEST_SEED,
    PHRASES_TAKES,
    TERMS_ABOUT,
    TERMS_ITEMS,
    TERMS_TAKES,
    EarlyStopping,
    LanguagesResponse,
    MetTermResponse,
    Phrases,
    RequestModel,
    ResponseModel,
    Term,
    Texts,
    option,
    value,
)

LARGEST_LOGPROBS = 5
ABSENT = "is not offered here; leave it out"


TERMS_MET_ABOUT = "of terms and glossary, with the last chunk of a choice; absent where none applied (an extension)"


class StreamOptions(RequestModel):
    include_usage: bool = option(False, "end with a chunk that has the usage and no choices", "true or false")


# Fields that a completion and a chat have in common.
LENGTH_PENALTY: Any = option(
    1.0,
    "the best have the highest sum of log-probabilities / length ** length_penalty (an extension)",
    "a number from 0 to 10",
    ge=0,
    le=10,
)
EARLY_STOPPING: Any = option(False, f"{EARLY_STOPPING_ABOUT} (an extension)", 'true, false, "never" or null')
MAX_TOKENS: Any = option(
    None,
    "of a choice, its end token included, and never more than the model's limit; null: that limit",
    "a whole number from 1, or null",
    unit="tokens",
    ge=1,
)
TEMPERATURE: Any = option(
    None,
    "sample from softmax(logits / temperature); 0 or null: no sampling",
    "0, a number from 0.01 to 100, or null",
    ge=0,
    le=100,
)
TOP_P: Any = option(
    None,
    "sample among the most probable tokens that together have this probability; null: 1",
    "a number above 0, up to 1, or null",
    gt=0,
    le=1,
)
SEED: Any = option(
    None,
    "of the sampling: the same seed gives the same text, at any load; null: a random one",
    "a whole number of 64 bits, or null",
    ge=-LARGEST_SEED - 1,
    le=LARGEST_SEED,
)
SOURCE_LANGUAGE: Any = option(
    None,
    "the code of the source's language, of those that the model has (an extension)",
    LANGUAGE_TAKES,
    max_length=100,
)
TARGET_LANGUAGE: Any = option(
    None,
    "the code of the target's language, of those that the model has (an extension)",
    LANGUAGE_TAKES,
    max_length=100,
)
ALLOW_UNKNOWN: Any = option(None, f"{ALLOW_UNKNOWN_ABOUT} (an extension)", ALLOW_UNKNOWN_TAKES)
TERMS: Any = option(None, f"{TERMS_ABOUT} (an extension)", TERMS_TAKES, items=TERMS_ITEMS, fail_fast=True)
GLOSSARY: Any = option(None, f"{GLOSSARY_ABOUT} (an extension)", GLOSSARY_TAKES, min_length=1, max_length=100)
FORBID: Any = option(None, f"{FORBID_ABOUT} (an extension)", PHRASES_TAKES)
CHOICES: Any = option(None, f"{CHOICES_ABOUT} (an extension)", PHRASES_TAKES)
STREAM: Any = option(False, "answer server-sent events", "true or false")
STREAM_OPTIONS: Any = option(
    None, 'for a stream: {"include_usage": true} ends it with the usage', "include_usage, true or false"
)
USER: Any = option(None, "whoever asks; not used, and not logged", "a text")
STORE: Any = option(False, f"false; true {ABSENT}", "false or null: nothing is stored here")
METADATA: Any = option(None, "of the client's own; not used, and not logged", "an object, or null")
SERVICE_TIER: Any = option(None, "not used: all requests are served alike", "a text, or null")
PARALLEL_TOOL_CALLS: Any = option(None, "not used: the model can call nothing", "true, false or null")
SAFETY_IDENTIFIER: Any = option(None, "whoever asks; not used, and not logged", "a text, or null")
STOP: Any = option(None, f"null; a text {ABSENT}", "null: stopping at a text is not offered here", max_length=0)
PRESENCE_PENALTY: Any = option(0, "0", "0: penalties are not offered here", ge=0, le=0)
FREQUENCY_PENALTY: Any = option(0, "0", "0: penalties are not offered here", ge=0, le=0)
LOGIT_BIAS: Any = option(None, "null or empty", "null or nothing inside: biases are not offered here", max_length=0)


class CompletionRequest(RequestModel):
    model: str = option(..., "the model's name, as GET /v1/models tells it", "the name of a model")
    prompt: Texts = option(
        ..., "one source text, or several", "a text or a list of texts, at least one; token ids are not taken"
    )
    n: int | None = option(1, "choices answered for each prompt, best first", "a whole number from 1", ge=1)
    best_of: int | None = option(
        None,
        "the n best of so many samples, or of a beam of this size; null: n",
        "a whole number from n, or null",
        ge=1,
    )
    beam_size: int | None = option(
        None,
        "live hypotheses kept at each step, without a temperature; null: best_of (an extension)",
        "a whole number from 1, or null",
        unit="hypotheses",
        ge=1,
    )
    length_penalty: float | None = LENGTH_PENALTY
    early_stopping: EarlyStopping | None = EARLY_STOPPING
    max_tokens: int | None = MAX_TOKENS
    temperature: float | None = TEMPERATURE
    top_p: float | None = TOP_P
    seed: int | None = SEED
    logprobs: int | None = option(
        None,
        "answer each token's log-probability, and those of so many most probable tokens in its place",
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
    echo: bool | None = option(False, f"false; true {ABSENT}", "false: repeating the prompt is not offered here")
    suffix: None = option(None, f"null; a text {ABSENT}", "null: text after the completion is not offered here")
    stop: list[str] | None = STOP
    presence_penalty: float | None = PRESENCE_PENALTY
    frequency_penalty: float | None = FREQUENCY_PENALTY
    logit_bias: dict[str, Any] | None = LOGIT_BIAS


class CompletionLogprobs(ResponseModel):
    tokens: list[str] = value("of the choice, as texts; bytes that are no whole character as <0xE6>")
    token_logprobs: list[float] = value("of each token", "nats")
    top_logprobs: list[dict[str, float]] | None = value("the most probable tokens in each place, and the one that came")
    text_offset: list[int] = value("where each token begins in the text", "characters")


class CompletionChoice(ResponseModel):
    index: int = value("choices of the first prompt come first")
    text: str = value("the target text")
    logprobs: CompletionLogprobs | None = value("null unless asked for")
    finish_reason: str | None = value("stop, or length where max_tokens or the deadline came first")
    terms_met: list[MetTermResponse] | None = value(TERMS_MET_ABOUT, default=None)


class CompletionUsage(ResponseModel):
    prompt_tokens: int = value("of all prompts", "tokens")
    completion_tokens: int = value("of all that was decoded, with end tokens", "tokens")
    total_tokens: int = value("both", "tokens")


class CompletionResponse(ResponseModel):
    id: str = value("cmpl- and the request's id")
    object: str = value("text_completion")
    created: int = value("Unix time", "s")
    model: str = value("the model's name")
    choices: list[CompletionChoice] = value("n for each prompt, in their order")
    usage: CompletionUsage = value("what was read and written")


class ModelResponse(ResponseModel):
    id: str = value("the model's name")
    object: str = value("model")
    created: int = value("Unix time", "s")
    owned_by: str = value("attendant")
    default: bool = value("whether requests that name no model mean this one (an extension, as all below)")
    state: str = value("loaded; loading; unloaded: a request loads it; failed: its bundle is refused")
    reason: str | None = value("why its bundle is refused, as a sentence, or null")
    sizes: dict[str, int] | None = value("of the vocabularies, layers and vectors; null where the bundle is refused")
    languages: LanguagesResponse = value("that source_language and target_language take; none: a model of one pair")


class ModelListResponse(ResponseModel):
    object: str = value("list")
    data: list[ModelResponse] = value("the models that are served, by name")


class OpenAIErrorDetail(ResponseModel):
    message: str = value("what to change, as a sentence")
    type: str = value("the kind of error, by OpenAI's names")
    param: str | None = value("the first field that is wrong; null where none is to blame")
    code: str | None = value("the kind of error, by this service's names")


class OpenAIErrorResponse(ResponseModel):
    error: OpenAIErrorDetail = Field(description="what went wrong")
