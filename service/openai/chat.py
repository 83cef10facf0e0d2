"""A chat as a completion of its last user message: the request, and the answer's format."""

from __future__ import annotations

from attendant.service.openai.answers import Shape
from attendant.service.openai.chat_schemas import ChatRequest
from attendant.service.openai.schemas import CompletionRequest
from attendant.service.requests.content import Json
from attendant.service.requests.validation import combined_error

SAME_FIELDS = (  # that mean the same in a completion and in a chat
    "model",
    "n",
    "beam_size",
    "length_penalty",
    "early_stopping",
    "temperature",
    "top_p",
    "seed",
    "source_language",
    "target_language",
    "allow_unknown",
    "terms",
    "glossary",
    "forbid",
    "choices",
    "stream",
    "stream_options",
)


def as_completion(request: ChatRequest) -> CompletionRequest:
    """The equivalent completion; InvalidFieldError lists everything in the chat that is not supported."""
    problems = [
        *_message_problems(request),
        *_feature_problems(request),
    ]
    if problems:
        raise combined_error(problems)
    same = {name: getattr(request, name) for name in SAME_FIELDS if name in request.model_fields_set}
    return CompletionRequest(
        **same,
        prompt=[request.messages[-1].content],
        max_tokens=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _message_problems(request: ChatRequest) -> list[tuple[str, str]]:
    problems = []
    for place, message in enumerate(request.messages):
        field = f"messages[{place}].role"
        if message.role in ("system", "developer"):
            sentence = f"{field} is {message.role}: the model follows no instructions, so leave this message out."
            problems.append((field, sentence))
        elif message.role not in ("user", "assistant"):
            problems.append((field, f"{field} takes user or assistant, not {message.role[:40]!r}."))
    if request.messages[-1].role == "assistant":
        field = f"messages[{len(request.messages) - 1}].role"
        problems.append((field, f"{field} is assistant; the last message is the source, so it must be the user's."))
    return problems


def _feature_problems(request: ChatRequest) -> list[tuple[str, str]]:
    problems = []
    if request.response_format not in (None, {"type": "text"}):
        problems.append(("response_format", 'response_format takes null or {"type": "text"}.'))
    if request.tool_choice not in (None, "none", "auto"):
        problems.append(("tool_choice", "tool_choice takes null, none or auto: the model can call nothing."))
    if request.top_logprobs is not None and not request.logprobs:
        problems.append(("top_logprobs", "top_logprobs is for logprobs; set logprobs to true, or leave it out."))
    if request.max_tokens and request.max_completion_tokens:
        sentence = "max_tokens and max_completion_tokens are both given; leave one out."
        problems.append(("max_tokens", sentence))
    return problems


def chat_choice(choice: Json, streamed: bool, first: bool) -> Json:
    """A completion's choice in the chat format; only the first chunk has the role, since clients join the texts."""
    logprobs, role = choice["logprobs"], {"role": "assistant"} if first else {}
    return {
        "index": choice["index"],
        "delta" if streamed else "message": {**role, "content": choice["text"]},
        "logprobs": None if logprobs is None else {"content": _logprobs(logprobs)},
        "finish_reason": choice["finish_reason"],
        **({"terms_met": choice["terms_met"]} if "terms_met" in choice else {}),
    }


def _logprobs(logprobs: Json) -> list[Json]:
    tops = logprobs["top_logprobs"] or [{}] * len(logprobs["tokens"])
    return [
        {**_token(token, logprob), "top_logprobs": [_token(*pair) for pair in top.items()]}
        for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    ]


def _token(text: str, logprob: float) -> Json:
    return {"token": text, "logprob": logprob, "bytes": None if "<0x" in text else list(text.encode())}


CHAT_SHAPE = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", chat_choice)
