"""The document of the API as people read it: endpoints in groups, each with a request to copy."""

from __future__ import annotations

import json
from typing import Any

GROUPS = {
    "Generate": "Decode a source: greedy, beam search, sampling; one text or many; streaming.",
    "Look inside": "Probabilities, scores, attention, values on the way, and the model without some of its parts.",
    "OpenAI": "The dialect of OpenAI's clients: a prompt, or the last user message, is the source.",
    "Open Inference Protocol": "The dialect of KServe's and Triton's clients.",
    "Operations": "What is served, whether it is ready, metrics, and loading another model.",
}
PREFIXES = (
    ("/v1/generate", "Generate"),
    ("/v1/next-token", "Look inside"),
    ("/v1/score", "Look inside"),
    ("/v1/explain", "Look inside"),
    ("/v1/completions", "OpenAI"),
    ("/v1/chat", "OpenAI"),
    ("/v1/models", "OpenAI"),
    ("/v2", "Open Inference Protocol"),
)  # all others: Operations
OF_V2 = [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["facade"]}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/generate": {"inputs": "facade", "beam_size": 4},
    "/v1/next-token": {"source": "facade", "prefix": "F", "top_k": 5},
    "/v1/score": {"source": "facade", "target": "F AH0 S AA1 D"},
    "/v1/explain": {"source": "facade", "layers": [0], "alternatives": 2},
    "/v1/completions": {"model": "g2p", "prompt": "facade"},
    "/v1/chat/completions": {"model": "g2p", "messages": [{"role": "user", "content": "facade"}]},
    "/v2/models/{name}/infer": {"inputs": OF_V2},
    "/v2/repository/index": {"ready": True},
    "/v1/reload": {},
}
NAMES = {"name": "g2p"}


def present(document: dict[str, Any]) -> dict[str, Any]:
    """Group the operations of a document, and give each an example."""
    for path, operations in document["paths"].items():
        group = next((name for prefix, name in PREFIXES if path.startswith(prefix)), "Operations")
        for method, operation in operations.items():
            operation["tags"] = [group]
            for parameter in operation.get("parameters", []):
                if parameter["name"] in NAMES:
                    parameter["example"] = NAMES[parameter["name"]]
            content = operation.get("requestBody", {}).get("content", {})
            body = BODIES.get(path)
            if body is not None and "application/json" in content:
                content["application/json"]["example"] = body
            about = operation.get("description", "")
            operation["description"] = f"{about}\n\n    {_command(method, path, body)}".strip()
    return {**document, "tags": [{"name": name, "description": about} for name, about in GROUPS.items()]}


def _command(method: str, path: str, body: dict[str, Any] | None) -> str:
    for name, value in NAMES.items():
        path = path.replace(f"{{{name}}}", value)
    given = f" -d '{json.dumps(body)}'" if body is not None else " -X POST" if method == "post" else ""
    return f"curl http://127.0.0.1:8000{path}{given}"
