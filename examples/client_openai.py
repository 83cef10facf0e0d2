"""The service with the official openai client: models, a completion, a stream, a chat."""

from __future__ import annotations

import sys

from openai import OpenAI


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")  # a key of the service, where it has some
    model = client.models.list().data[0].id
    print(model)

    answer = client.completions.create(model=model, prompt="attendant", max_tokens=32)
    print(answer.choices[0].text, answer.choices[0].finish_reason)

    for chunk in client.completions.create(model=model, prompt="through", max_tokens=32, stream=True):
        print(chunk.choices[0].text, end="", flush=True)
    print()

    chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "facade"}])
    print(chat.choices[0].message.content)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
