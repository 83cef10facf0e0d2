"""What the clients of the soak ask: every route and nearly every option, from a fixed seed, with what must be answered.

A request is a name, a method, a path, its headers and body, and the status that it must have.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MODELS = ("alpha", "beta")
GLOSSARY = "cat\tK AE1 T\ndog\tD AO1 G\n"
FORM = {"content-type": "application/x-www-form-urlencoded"}
PAGES = (
    "/",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/readyz",
    "/v1/info",
    "/v1/info?model=beta",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/languages",
    "/frontend/settings",
    *(f"/v2/models/{name}{rest}" for name in MODELS for rest in ("", "/ready", "/config")),
)
REFUSED: tuple[tuple[str, bytes, int], ...] = (
    ("/v1/generate", b"{", 400),
    ("/v1/generate", b'{"inputs": []}', 422),
    ("/v1/generate", b'{"inputs": "tea", "beam_size": 100000}', 422),
    ("/v1/generate", b'{"inputs": "tea", "model": "gamma"}', 404),
    ("/v1/score", b'{"source": "tea", "target": "none of these"}', 422),
    ("/v1/nothing", b"{}", 404),
    ("/v1/generate", b'{"inputs": "%s"}' % (b"a" * 5000), 422),
)


@dataclass(frozen=True)
class Request:
    name: str
    method: str
    path: str
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def requests(seed: int, count: int) -> list[Request]:
    """`count` rounds, each with one request of every kind."""
    rng = random.Random(seed)
    found: list[Request] = []
    for _ in range(count):
        found += [_post(name, path, body) for name, path, body in _decoded(rng)]
        found += [_post(name, path, body) for name, path, body in _looked_into(rng)]
        found += [_post(name, path, body) for name, path, body in _dialects(rng)]
        found += _translated(rng)
        found += [Request("page", "GET", rng.choice(PAGES)) for _ in range(2)]
        path, body, status = rng.choice(REFUSED)
        found.append(Request("refused", "POST", path, body, status))
    return found


def _post(name: str, path: str, body: dict[str, Any]) -> Request:
    return Request(name, "POST", path, json.dumps(body).encode())


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(2, 12)))


def _decoded(rng: random.Random) -> list[tuple[str, str, dict[str, Any]]]:
    """The options of /v1/generate: searches, samples, streams, terms and whole texts."""
    path, words, model = "/v1/generate", [_word(rng) for _ in range(rng.choice([2, 8]))], rng.choice(MODELS)
    text = " ".join(words[:2])
    page = f"<p>{words[0]} <b>{words[1]}</b></p><pre>{words[0]}</pre>"
    bodies: dict[str, dict[str, Any]] = {
        "greedy": {"inputs": words, "logprobs": True},
        "beam": {"inputs": words, "beam_size": rng.choice([2, 4, 8]), "num_hypotheses": 2},
        "sampled": {"inputs": words[0], "temperature": 1.0, "top_p": 0.9, "num_hypotheses": 3, "seed": 7},
        "stream": {"inputs": words[0], "stream": True, "beam_size": rng.choice([1, 4])},
        "terms": {"inputs": words[0], "terms": ["K AE1 T"], "beam_size": 4},
        "glossary": {"inputs": "cat", "glossary": "animals", "beam_size": 4, "model": "alpha"},
        "forbid": {"inputs": words[0], "forbid": ["T", "S"], "beam_size": 2},
        "choices": {"inputs": words[0], "choices": ["K AE1 T", "D AO1 G"]},
        "lines": {"inputs": "\n\n".join(words), "split": "lines"},
        "sentences": {"inputs": text, "split": "sentences", "allow_unknown": True},
        "html": {"inputs": page, "format": "html", "split": "lines", "allow_unknown": True},
        "protected": {"inputs": f"{words[0]} {{name}}", "protect": ["placeholders"], "allow_unknown": True},
        "constrained": {"inputs": words[0], "min_length": 4, "max_length": 9, "no_repeat_ngram_size": 2},
    }
    return [(name, path, {"model": model, **body}) for name, body in bodies.items()]


def _looked_into(rng: random.Random) -> list[tuple[str, str, dict[str, Any]]]:
    word, model = _word(rng), rng.choice(MODELS)
    kinds = ["encoder", "decoder", "cross"]
    include = ["structure", "qkv", "scores", "residual"]
    return [
        ("next token", "/v1/next-token", {"source": word, "top_k": rng.choice([0, 5]), "model": model}),
        ("score", "/v1/score", {"source": word, "target": "K AE1 T", "model": model}),
        ("explain", "/v1/explain", {"source": word, "attention": kinds, "beam_size": 2, "model": model}),
        ("inside", "/v1/explain", {"source": word, "layers": [0], "include": include, "encoding": "float16"}),
    ]


def _dialects(rng: random.Random) -> list[tuple[str, str, dict[str, Any]]]:
    word, model = _word(rng), rng.choice(MODELS)
    tensors = [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [word]}]
    talk = [{"role": "user", "content": word}]
    return [
        ("completion", "/v1/completions", {"model": model, "prompt": word, "max_tokens": 20}),
        ("chat", "/v1/chat/completions", {"model": model, "messages": talk, "stream": rng.random() < 0.5}),
        ("infer", f"/v2/models/{model}/infer", {"id": "1", "inputs": tensors}),
    ]


def _translated(rng: random.Random) -> list[Request]:
    """LibreTranslate's routes, with JSON and as a form."""
    word = _word(rng)
    asked = json.dumps({"q": word, "source": "en", "target": "fr"}).encode()
    return [
        Request("translate", "POST", "/translate", asked, headers={"content-type": "application/json"}),
        Request("translate", "POST", "/translate", f"q={word}&source=en&target=fr".encode(), headers=FORM),
        Request("detect", "POST", "/detect", b"q=The+house+is+small+and+red.", headers=FORM),
    ]
