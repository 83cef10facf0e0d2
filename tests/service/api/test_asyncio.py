"""The Python API in an event loop: the same answers, no thread per call, and nothing decoded for who left."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from attendant import InvalidFieldError, Model, NotReadyError, StreamedToken
from tests.support.serving import PATIENCE, Service, wait_for

TEXTS = ["cat", "horse", "a", "dog"]


async def tokens_of(model: Model, text: str, **options: Any) -> list[StreamedToken]:
    return [token async for token in model.stream_async(text, **options)]


def test_answers_are_those_of_the_calls_that_block(model: Model) -> None:
    async def ask() -> Any:
        return (
            await model.generate_async("cat", beam_size=2, num_hypotheses=2),
            await model.generate_async(TEXTS),
            await model.generate_async([]),
            await model.score_async("cat", "K AE T"),
            await model.next_token_async("cat", "K", top_k=3),
        )

    assert asyncio.run(ask()) == (
        model.generate("cat", beam_size=2, num_hypotheses=2),
        model.generate(TEXTS),
        [],
        model.score("cat", "K AE T"),
        model.next_token("cat", "K", top_k=3),
    )


def test_a_hundred_calls_wait_without_a_thread_each(model: Model, http: Service) -> None:
    http.engine.pause_after = 1
    before = threading.active_count()

    async def ask() -> list[Any]:
        calls = [asyncio.ensure_future(model.generate_async(text)) for text in TEXTS * 25]
        while http.engine.count_running() < len(calls):
            await asyncio.sleep(0)
        assert threading.active_count() <= before  # one of another test may have ended
        http.engine.resume()
        return await asyncio.gather(*calls)

    assert asyncio.run(asyncio.wait_for(ask(), PATIENCE)) == [model.generate(text) for text in TEXTS * 25]


def test_more_texts_than_the_queue_holds_are_answered_in_order(model: Model, http: Service) -> None:
    http.engine.max_queue_requests = 3
    assert asyncio.run(model.generate_async(TEXTS * 5)) == [model.generate(text) for text in TEXTS * 5]


def test_a_call_that_is_cancelled_cancels_its_tasks(model: Model, http: Service) -> None:
    http.engine.pause_after = 1

    async def leave() -> None:
        call = asyncio.ensure_future(model.generate_async(TEXTS))
        while http.engine.count_running() < len(TEXTS):
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(leave())
    wait_for(lambda: http.engine.cancelled == len(TEXTS))


def test_closing_ends_calls_that_wait(model: Model, http: Service) -> None:
    http.engine.pause_after = 1

    async def close() -> None:
        call = asyncio.ensure_future(model.generate_async("cat"))
        while not http.engine.count_running():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(model.close)
        with pytest.raises(NotReadyError):
            await call
        with pytest.raises(NotReadyError, match="closed"):
            await model.generate_async("cat")

    asyncio.run(close())


def test_what_is_wrong_is_raised(model: Model) -> None:
    for wrong in ("", "x" * 3000):
        with pytest.raises(InvalidFieldError) as alone:
            model.generate(wrong)
        with pytest.raises(InvalidFieldError) as awaited:
            asyncio.run(model.generate_async(wrong))
        assert str(awaited.value) == str(alone.value)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"temperature": 1.0, "seed": 4}])
def test_streamed_tokens_are_the_whole_answer(model: Model, options: dict[str, Any]) -> None:
    async def stream() -> Any:
        stream = model.stream_async("horse", **options)
        assert stream.output is None
        return [token async for token in stream], stream.output

    tokens, output = asyncio.run(stream())
    best = output.hypotheses[0]
    assert output == model.generate("horse", **options)
    assert "".join(token.text for token in tokens) == best.text
    assert tuple(token.token for token in tokens) == best.tokens
    assert tuple(token.logprob for token in tokens) == best.logprobs[: len(tokens)]
    assert [token.index for token in tokens] == list(range(len(tokens)))


def test_a_stream_that_is_left_cancels_its_task(model: Model, http: Service) -> None:
    http.engine.pause_after = 2

    async def leave() -> None:
        async for token in model.stream_async("horse"):
            assert token.index == 0
            break

    asyncio.run(leave())
    wait_for(lambda: http.engine.cancelled == 1)


def test_a_stream_raises_what_is_wrong(model: Model, http: Service) -> None:
    with pytest.raises(InvalidFieldError, match="stream takes one input, not 2"):
        asyncio.run(tokens_of(model, ["cat", "dog"]))  # type: ignore[arg-type]
    http.engine.failure = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(tokens_of(model, "cat"))
