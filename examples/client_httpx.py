"""The service from Python with httpx: many texts at once, a stream, the next token, a refusal."""

from __future__ import annotations

import json
import sys

import httpx


def main(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        answer = client.post("/v1/generate", json={"inputs": ["attendant", "through"], "beam_size": 4})
        for output in answer.raise_for_status().json()["outputs"]:
            best = output["hypotheses"][0]
            print(f"{best['score']:.2f} {best['text']}")

        with client.stream("POST", "/v1/generate", json={"inputs": "attendant", "stream": True}) as stream:
            stream.raise_for_status()
            event = ""
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value  # token, then done, or error
                elif name == "data" and event == "token":
                    print(json.loads(value)["text"], end="", flush=True)
                elif name == "data" and event == "error":
                    sys.exit(json.loads(value)["error"]["message"])
            print()

        for token in client.post("/v1/next-token", json={"source": "cat", "prefix": "K", "top_k": 2}).json()["tokens"]:
            print(f"{token['probability']:.2f} {token['token']}")

        refused = client.post("/v1/generate", json={"inputs": "cat", "beam_size": 0})
        print(refused.status_code, refused.json()["error"]["message"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
