"""Requests and responses of the API: each field with its meaning, unit and range. OpenAPI is made from these.

Requests are strict: a number is no text, 1.0 is no whole number, an unknown field is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

LARGEST_SEED = 2**63 - 1
LARGEST_LENGTH = 10**6  # in the schema; the model's own limit is checked by service/requests/planning.py
LONGEST_TIMEOUT_MS = 86_400_000  # a day
MOST_FIELDS = 100  # of a request; listing a million unknown ones in an error would take long
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 100.0


def option(default: Any, about: str, takes: str, *, unit: str = "", items: str = "", **limits: Any) -> Any:
    """A field of a request; `takes` completes the sentence "FIELD takes ...", and `items` the same for an item."""
    extra: dict[str, Any] = {"x-takes": takes, "x-unit": unit} | ({"x-items": items} if items else {})
    return Field(default, description=about, json_schema_extra=extra, **limits)


def value(about: str, unit: str = "", default: Any = ...) -> Any:
    """A field of a response."""
    return Field(default, description=about, json_schema_extra={"x-unit": unit})


class RequestModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MOST_FIELDS:
            raise PydanticCustomError("too_many_fields", "{count}", {"count": len(data)})
        return data


class ResponseModel(BaseModel):
    model_config = ConfigDict(protected_namespaces=())


def _as_list(inputs: Any) -> Any:
    return [inputs] if isinstance(inputs, str) else inputs


def _known_early_stopping(found: Any) -> Any:
    """One error for the field, where pydantic would give one for each type of the union."""
    if isinstance(found, bool) or found == "never":
        return found
    raise PydanticCustomError("early_stopping", "unknown")


def _as_kinds(kinds: Any) -> Any:
    return [kinds] if isinstance(kinds, str) else kinds


EarlyStopping = Annotated[bool | Literal["never"], BeforeValidator(_known_early_stopping)]
# That it is not empty is checked after tokenization, since a text of spaces may have no tokens either.
Text = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
# One text or a list of texts in JSON, always a list in Python. Validation stops at the first wrong item.
Texts = Annotated[
    list[Text],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(_as_list, json_schema_input_type=Text | Annotated[list[Text], Field(min_length=1)]),
]
ANY_TEXT = "a text"


def _as_term(term: Any) -> Any:
    return {"target": term} if isinstance(term, str) else term


LANGUAGE_TAKES = "a code that /v1/info lists, or null for the model's own"
ALLOW_UNKNOWN_ABOUT = (
    "read what the vocabulary lacks as the unknown token; false: refuse it; null: sources as the model or the service "
    "has it, targets refused"
)
ALLOW_UNKNOWN_TAKES = "true, false or null"
TEMPERATURE: dict[str, Any] = {"ge": LOWEST_TEMPERATURE, "le": HIGHEST_TEMPERATURE}
EARLY_STOPPING_ABOUT = (
    "once beam_size hypotheses have finished, a beam search is done: true, at once; false, when no live one has a "
    "better score so far; never, when none can get one"
)
TIMEOUT_TAKES = f"a whole number from 1 to {LONGEST_TIMEOUT_MS}, or null"
TIMEOUT: dict[str, Any] = {"unit": "ms", "ge": 1, "le": LONGEST_TIMEOUT_MS}


MODEL_TAKES = "the name of a model, or null"


def model_option() -> Any:
    return option(
        None, "the model's name, as GET /v1/models tells it; null: the default one", MODEL_TAKES, min_length=1
    )


class TermRequest(RequestModel):
    target: Texts = option(
        ..., "what must come in the target, or several forms of it, one of which must", "a text or a list of texts"
    )
    source: str | None = option(
        None, "the term is only for inputs with this phrase, as whole words; null: for all", "a text, or null"
    )


Term = Annotated[TermRequest, BeforeValidator(_as_term, json_schema_input_type=Text | TermRequest)]
Phrases = Annotated[
    list[Text],
    Field(fail_fast=True),
    BeforeValidator(_as_list, json_schema_input_type=Text | list[Text]),
]
TERMS_ABOUT = (
    "phrases that must come in the target, in any order: of every input, or where their source does; beam search alone"
)
TERMS_TAKES = "a list of texts, and of objects with target and source, or null"
TERMS_ITEMS = "a text, or an object with target and source"
GLOSSARY_ABOUT = "terms of the model's, by the name of the glossary, as GET /v1/info tells it"
GLOSSARY_TAKES = "the name of a glossary, or null"
FORBID_ABOUT = "phrases that must not come in the target"
CHOICES_ABOUT = "the whole answers of which one must come"
PHRASES_TAKES = "a text or a list of texts, or null"


class GenerateRequest(RequestModel):
    """A model may have defaults of its own for what a request leaves out: GET /v1/info tells them."""

    inputs: Texts = option(..., "one source text, or several", "a text or a list of texts, at least one")
    beam_size: int = option(
        1, "live hypotheses kept at each step; 1 is greedy", "a whole number from 1", unit="hypotheses", ge=1
    )
    num_hypotheses: int = option(
        1,
        "hypotheses answered for each input, best first: at most beam_size, or as many samples",
        "a whole number from 1",
        unit="hypotheses",
        ge=1,
    )
    length_penalty: float = option(
        1.0,
        "score = sum of log-probabilities / length ** length_penalty; 0 leaves the sum",
        "a number from 0 to 10",
        ge=0,
        le=10,
    )
    early_stopping: EarlyStopping = option(False, EARLY_STOPPING_ABOUT, 'true, false or "never"')
    max_length: int | None = option(
        None,
        "of a hypothesis, prefix and end token included; null: the model's limit",
        "a whole number from 1 to the model's limit, or null",
        unit="tokens",
        ge=1,
        le=LARGEST_LENGTH,
    )
    min_length: int = option(
        0,
        "of a hypothesis before its end token may come",
        "a whole number from 0, below max_length",
        unit="tokens",
        ge=0,
        le=LARGEST_LENGTH,
    )
    repetition_penalty: float = option(
        1.0,
        "the log-probability of a token that came before is multiplied by this before the choice",
        "a number from 0.1 to 10",
        ge=0.1,
        le=10,
    )
    no_repeat_ngram_size: int = option(
        0,
        "n-grams of this many tokens come only once; 0: no such rule",
        "a whole number from 0 to 1000",
        unit="tokens",
        ge=0,
        le=1000,
    )
    target_prefix: str | None = option(None, "the target of every input starts with this text", "a text, or null")
    terms: list[Term] | None = option(None, TERMS_ABOUT, TERMS_TAKES, items=TERMS_ITEMS, fail_fast=True)
    glossary: str | None = option(None, GLOSSARY_ABOUT, GLOSSARY_TAKES, min_length=1, max_length=100)
    forbid: Phrases | None = option(None, FORBID_ABOUT, PHRASES_TAKES)
    choices: Phrases | None = option(None, CHOICES_ABOUT, PHRASES_TAKES)
    source_language: str | None = option(
        None, "the code of the source's language, of those that the model has", LANGUAGE_TAKES, max_length=100
    )
    target_language: str | None = option(
        None, "the code of the target's language, of those that the model has", LANGUAGE_TAKES, max_length=100
    )
    allow_unknown: bool | None = option(None, ALLOW_UNKNOWN_ABOUT, ALLOW_UNKNOWN_TAKES)
    temperature: float | None = option(
        None,
        "sample from softmax(logits / temperature); null: no sampling",
        "a number from 0.01 to 100, and is left out where nothing is to be sampled",
        **TEMPERATURE,
    )
    top_k: int | None = option(
        None, "sample among the k most probable tokens", "a whole number from 1, or null", unit="tokens", ge=1
    )
    top_p: float | None = option(
        None,
        "sample among the most probable tokens that together have this probability",
        "a number above 0, up to 1, or null",
        gt=0,
        le=1,
    )
    seed: int | None = option(
        None,
        "of the sampling: the same seed gives the same text, at any load; null: a random one",
        "a whole number from 0 to 2**63 - 1, or null",
        ge=0,
        le=LARGEST_SEED,
    )
    logprobs: bool = option(False, "answer the log-probability of each token", "true or false")
    split: Literal["none", "lines", "sentences"] = option(
        "none",
        "decode a text's lines or sentences beside each other, and join the answers as the text was; none: all as one",
        '"none", "lines" or "sentences"',
    )
    format: Literal["text", "html"] = option(
        "text",
        "html: tags are not read, and stand in the answer where the alignment puts them",
        '"text" or "html"',
    )
    protect: Annotated[
        list[Literal["placeholders", "urls", "emails"]],
        Field(max_length=10),
        BeforeValidator(_as_kinds, json_schema_input_type=list[Literal["placeholders", "urls", "emails"]]),
    ] = option(
        [],
        "what comes through as it is: {name} and %s, URLs, e-mail addresses",
        'a list of "placeholders", "urls" and "emails"',
        items='"placeholders", "urls" or "emails"',
    )
    protect_pattern: str | None = option(
        None,
        "what else comes through as it is: a regular expression of RE2",
        "a regular expression of at most 1000 characters, or null",
        min_length=1,
        max_length=1000,
    )
    all_or_nothing: bool = option(
        False,
        "refuse the whole request where one input cannot be answered; false: that input has an error, and the others "
        "are answered",
        "true or false",
    )
    timeout_ms: int | None = option(
        None,
        "from arrival; past it the best hypothesis so far is answered; null: the service's setting",
        TIMEOUT_TAKES,
        **TIMEOUT,
    )
    stream: bool = option(False, "answer server-sent events, for one input", "true or false")
    model: str | None = model_option()


class NextTokenRequest(RequestModel):
    source: Text = option(..., "the source text", ANY_TEXT)
    prefix: str = option("", "the beginning of the target", ANY_TEXT)
    prefix_tokens: list[str] | None = option(
        None, "the same as tokens, instead of prefix", "a list of tokens, or null", fail_fast=True
    )
    forbid: Phrases | None = option(None, f"{FORBID_ABOUT}: their tokens have probability 0", PHRASES_TAKES)
    choices: Phrases | None = option(
        None, f"{CHOICES_ABOUT}: all tokens that continue none have probability 0", PHRASES_TAKES
    )
    source_language: str | None = option(
        None, "the code of the source's language, of those that the model has", LANGUAGE_TAKES, max_length=100
    )
    target_language: str | None = option(
        None, "the code of the target's language, of those that the model has", LANGUAGE_TAKES, max_length=100
    )
    allow_unknown: bool | None = option(None, ALLOW_UNKNOWN_ABOUT, ALLOW_UNKNOWN_TAKES)
    top_k: int = option(
        10,
        "how many tokens are answered, most probable first; 0: the whole vocabulary",
        "a whole number from 0",
        unit="tokens",
        ge=0,
    )
    temperature: float = option(
        1.0, "the distribution is softmax(logits / temperature)", "a number from 0.01 to 100", **TEMPERATURE
    )
    timeout_ms: int | None = option(
        None, "from arrival; past it 504; null: the service's setting", TIMEOUT_TAKES, **TIMEOUT
    )
    model: str | None = model_option()


class ScoreRequest(RequestModel):
    source: Text = option(..., "the source text", ANY_TEXT)
    target: str = option(..., "the target text, which may be empty", ANY_TEXT)
    source_language: str | None = option(
        None, "the code of the source's language, of those that the model has", LANGUAGE_TAKES, max_length=100
    )
    target_language: str | None = option(
        None, "the code of the target's language, of those that the model has", LANGUAGE_TAKES, max_length=100
    )
    allow_unknown: bool | None = option(None, ALLOW_UNKNOWN_ABOUT, ALLOW_UNKNOWN_TAKES)
    timeout_ms: int | None = option(
        None, "from arrival; past it 504; null: the service's setting", TIMEOUT_TAKES, **TIMEOUT
    )
    model: str | None = model_option()


class ReloadRequest(RequestModel):
    bundle: str | None = option(
        None, "the directory to load; null: the configured one again", "a directory, or null", min_length=1
    )
    model: str | None = option(None, "the only model to reload; null: all that have changed", MODEL_TAKES, min_length=1)


UNKNOWN_ABOUT = "pieces of the source that the vocabulary lacks, read as the unknown token; absent where none is"


class ErrorDetail(ResponseModel):
    type: str = value("the kind of error, from a closed set")
    message: str = value("what to change, as a sentence")
    field: str | None = value("the first field that is wrong; null where none is to blame")


class ErrorResponse(ResponseModel):
    error: ErrorDetail = value("what went wrong")


class MetTermResponse(ResponseModel):
    source: str | None = value("the phrase of the source that it is for; null where it is for every input")
    target: str = value("the form that came; the first one where none did")
    met: bool = value("whether it came")


class SegmentResponse(ResponseModel):
    source: list[int] = value("where it is in the source: start, and stop exclusive", "code points")
    target: list[int] = value("where its answer is in the text", "code points")
    cut: bool = value("its sentence was too long for the model, and is cut at its end")
    aligned: int = value("tags and protected pieces that stand where the alignment puts them")
    score: float = value("as that of a hypothesis", "nats")
    finish_reason: str = value("as that of a hypothesis")


class DetectedLanguageResponse(ResponseModel):
    language: str = value("the most probable of the model's source languages")
    confidence: float = value("its probability among them, as far as the detector can tell: 0 to 1")


class HypothesisResponse(ResponseModel):
    text: str = value("the target text")
    tokens: list[str] = value("its tokens, without the end token")
    token_texts: list[str] | None = value(
        "what each token stands for; absent where that is the token itself, as with characters and words", default=None
    )
    score: float = value(
        "summed log-probability / length ** length_penalty, the end token counted in both, "
        "a language token in the length",
        "nats",
    )
    logprobs: list[float] | None = value(
        "of each token, and of the end token where it came; null unless asked for", "nats"
    )
    finish_reason: str = value("stop: the end token came; length: max_length did; deadline: time was up")
    terms_met: list[MetTermResponse] | None = value("of terms and glossary; absent where none applied", default=None)
    segments: list[SegmentResponse] | None = value(
        "the parts that the text was decoded in; the score is the sum of theirs; absent where it was not split",
        default=None,
    )


class OutputResponse(ResponseModel):
    hypotheses: list[HypothesisResponse] = value("best first; samples in their own order; none where there is an error")
    error: ErrorDetail | None = value(
        "why this input has no hypotheses, where another one has; absent otherwise", default=None
    )
    unknown: list[str] | None = value(UNKNOWN_ABOUT, default=None)
    detected_language: DetectedLanguageResponse | None = value(
        "of the source, where the request left it to be detected; absent otherwise", default=None
    )


class UsageResponse(ResponseModel):
    source_tokens: int = value("of all inputs, without end tokens", "tokens")
    target_tokens: int = value("of all hypotheses answered, with end tokens", "tokens")


class TimingResponse(ResponseModel):
    queue_ms: float = value("waiting, of the input that waited longest", "ms")
    encode_ms: float = value("encoding, of the slowest input; little where that was done while it waited", "ms")
    decode_ms: float = value("decoding, of the slowest input", "ms")


class GenerateResponse(ResponseModel):
    model: str = value("the model's name")
    outputs: list[OutputResponse] = value("one for each input, in their order")
    usage: UsageResponse = value("what was read and written")
    timing: TimingResponse = value("where the time went")


class TokenEvent(ResponseModel):
    token: str = value("the token")
    text: str = value("what it adds to the text; empty until the bytes of a character are complete")
    logprob: float = value("of the token", "nats")
    index: int = value("its place in the hypothesis, from 0")


class TextEvent(ResponseModel):
    text: str = value(
        "what comes next of the text that is of no token: white space and markup between segments, or a "
        "segment with tags or protected pieces, whole"
    )


class TokenProbability(ResponseModel):
    id: int = value("its number in the target vocabulary")
    token: str = value("the token")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    probability: float = value("at the temperature asked for; all of the vocabulary sum to 1")
    logprob: float | None = value("its logarithm; null where the probability is 0", "nats")


class NextTokenResponse(ResponseModel):
    tokens: list[TokenProbability] = value("most probable first")
    entropy: float = value("of the distribution over the whole vocabulary", "nats")
    prefix_logprob: float = value("of the prefix, by the model itself", "nats")
    unknown: list[str] | None = value(UNKNOWN_ABOUT, default=None)


class ScoredToken(ResponseModel):
    token: str = value("the token")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    logprob: float = value("given the source and the tokens before it", "nats")


class ScoreResponse(ResponseModel):
    logprob: float = value("of the whole target, end token included", "nats")
    tokens: list[ScoredToken] = value("each token, the end token last")
    unknown: list[str] | None = value(UNKNOWN_ABOUT, default=None)


class LanguagesResponse(ResponseModel):
    source: list[str] = value("codes of source languages that can be chosen")
    target: list[str] = value("codes of target languages that can be chosen")
    default_source: str | None = value("where a request names none; null: it must, if there are any")
    default_target: str | None = value("likewise")


class InfoResponse(ResponseModel):
    version: str = value("of attendant")
    model: str = value("the model's name")
    bundle: dict[str, Any] = value("its own name, sizes, variants, special ids and what it was produced by")
    defaults: dict[str, Any] = value("of POST /v1/generate where the model has its own")
    languages: LanguagesResponse = value("that source_language and target_language take; none: a model of one pair")
    glossaries: dict[str, int] = value("that glossary takes, and how many terms each has")
    precision: str = value("the variant in use")
    provider: str = value("what computes")
    provider_fallback: str | None = value("reason for falling back from CUDA to CPU, or null")
    kernels: str | None = value("instruction set of the compiled kernels in use; null: onnxruntime's own operators")
    kernels_reason: str | None = value("why the compiled kernels are not used, or null")
    threads: int = value("threads that compute")
    lanes: int = value("batches decoded side by side, when there is enough to do")
    lanes_reason: str | None = value("why memory allows fewer lanes than the threads would have, or null")
    limits: dict[str, int] = value("of texts, requests, batches and the queue, in the unit of their name")
    certificate: dict[str, Any] = value("drift from torch at the last start or reload, its tolerance, samples replayed")
    description: str | None = value("what the model does, in a sentence of its bundle; null where that has none")
    examples: list[str] = value(
        "sources to try: the first of the certificate's samples; none where these are random tokens"
    )


class StatusResponse(ResponseModel):
    status: str = value("ok, or ready")
