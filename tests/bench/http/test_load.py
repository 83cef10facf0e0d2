"""The load generator: a seed fixes what it asks, it reports what happened, and it knows its own limits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from bench.http.client import Connection, ProtocolError, get
from bench.http.ct2_server import Batcher, Item, create_app, group
from bench.http.load import Load, Mix, Outcomes, arrivals, complaint, percentiles, report, run_load, target_tokens

MIX = Mix(vocabulary=50, longest=9)
ANSWER = json.dumps({"outputs": [], "usage": {"source_tokens": 2, "target_tokens": 3}}).encode()
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def whole(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


def chunked(*parts: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        + b"0\r\n\r\n"
    )


async def read_request(reader: asyncio.StreamReader) -> bytes | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return await reader.readexactly(length)


def answering(*answers: bytes, pieces: int = 10_000) -> tuple[Handler, list[bytes]]:
    """A handler that gives these answers in turn, cut into pieces, and the bodies that it was sent."""
    turn, seen = itertools.cycle(answers), []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (body := await read_request(reader)) is not None:
            seen.append(body)
            answer = next(turn)
            for first in range(0, len(answer), pieces):
                writer.write(answer[first : first + pieces])
                await writer.drain()
                await asyncio.sleep(0)
            if not answer:
                break
        writer.close()

    return handle, seen


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """The port of a server that ends when all its connections have."""
    handling: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.append(task)
        await handler(reader, writer)
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.gather(*handling, return_exceptions=True)


def under_load(handler: Handler, load: Load, mix: Mix = MIX) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with listening(handler) as port:
            return await run_load(port, mix, load)

    return asyncio.run(run())


def test_a_seed_fixes_the_requests() -> None:
    one, same, other = ([*itertools.islice(Mix(seed=seed).bodies(), 20)] for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_requests_stay_within_the_mix() -> None:
    for body in itertools.islice(Mix(shortest=2, longest=5, beams=(1, 4), vocabulary=60).bodies(), 200):
        asked = json.loads(body)
        ids = [int(token[1:]) for token in asked["inputs"].split()]
        assert 2 <= len(ids) <= 5
        assert all(4 <= index < 60 for index in ids)
        assert asked["beam_size"] in (1, 4)


def test_arrivals_are_as_many_as_the_rate_says() -> None:
    times = arrivals(Load(rate=50.0, requests=10_000, seconds=40.0))
    assert len(times) == pytest.approx(2_000, rel=0.1)
    assert times == sorted(times)
    assert times[-1] < 40.0


def test_arrivals_end_with_the_number_of_requests() -> None:
    assert len(arrivals(Load(rate=1e6, requests=7))) == 7


@pytest.mark.parametrize("load", [Load(clients=3, requests=20), Load(rate=2_000.0, requests=20)])
def test_every_request_is_sent_and_counted_once(load: Load) -> None:
    handler, seen = answering(whole(ANSWER))
    found = under_load(handler, load)
    assert len(seen) == found["answered"] == 20
    assert found["errors"] == {}
    assert found["mean_target_tokens"] == 3


def test_answers_in_pieces_are_put_together() -> None:
    handler, _ = answering(whole(ANSWER), pieces=3)
    assert under_load(handler, Load(clients=2, requests=6))["answered"] == 6


def test_a_streamed_answer_has_a_first_token_before_its_end() -> None:
    stream = chunked(b'event: token\ndata: {"t": 1}\n\n', b"event: done\ndata: " + ANSWER + b"\n\n")
    handler, _ = answering(stream, pieces=60)
    found = under_load(handler, Load(clients=1, requests=3), Mix(vocabulary=50, stream=True))
    assert found["answered"] == 3
    assert found["first_token_ms"]["p50"] <= found["latency_ms"]["p50"]
    assert found["mean_target_tokens"] == 3


def test_refusals_are_errors_by_status_and_no_latencies() -> None:
    handler, _ = answering(whole(ANSWER), whole(b"{}", 429))
    found = under_load(handler, Load(clients=1, requests=10))
    assert found["answered"] == 5
    assert found["errors"] == {"HTTP 429": 5}


def test_a_connection_that_breaks_is_one_error_and_the_load_goes_on() -> None:
    handler, _ = answering(whole(ANSWER), b"")
    found = under_load(handler, Load(clients=1, requests=10))
    assert (found["answered"], found["errors"]) == (5, {"ProtocolError": 5})


def test_an_answer_that_is_none_is_an_error() -> None:
    handler, _ = answering(whole(b"hello"))
    assert under_load(handler, Load(clients=1, requests=2))["errors"] == {"not an answer": 2}


def test_an_answer_that_does_not_come_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await reader.read()
        writer.close()

    assert under_load(silent, Load(clients=1, requests=1, patience=0.05))["errors"] == {"no answer in time": 1}


def test_what_does_not_speak_http_is_refused() -> None:
    async def run() -> None:
        handler, _ = answering(b"SSH-2.0 hello\r\n\r\n")
        async with listening(handler) as port:
            connection = await Connection.open("127.0.0.1", port)
            with pytest.raises(ProtocolError):
                await connection.request(get("/", "127.0.0.1", port))

    asyncio.run(run())


def test_no_server_is_an_error_for_each_request() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nothing listens
        found = asyncio.run(run_load(unused.getsockname()[1], MIX, Load(clients=1, requests=2)))
    assert (found["answered"], sum(found["errors"].values())) == (0, 2)


def test_percentiles_are_of_the_latencies_in_milliseconds() -> None:
    assert percentiles([i / 1000 for i in range(1, 101)]) == {"p50": 50.5, "p95": 95.05, "p99": 99.01}


def quiet(**generator: float) -> dict[str, Any]:
    base = {"processor_share": 0.1, "loop_lag_ms": 1.0, "lateness_ms": 0.0}
    return {"generator": {**base, **generator}, "latency_ms": {"p50": 200.0}}


def test_a_generator_with_time_to_spare_says_nothing() -> None:
    assert complaint(quiet()) is None


@pytest.mark.parametrize("busy", [{"processor_share": 0.95}, {"loop_lag_ms": 50.0}, {"lateness_ms": 50.0}])
def test_a_generator_that_held_the_load_up_says_so(busy: dict[str, float]) -> None:
    assert "the generator" in (complaint(quiet(**busy)) or "")


def test_rates_count_only_what_was_answered_while_requests_were_sent() -> None:
    outcomes = Outcomes(latencies=[0.1] * 10, first_tokens=[0.1] * 10)
    outcomes.answers = [(0.1 * i, 4) for i in range(1, 10)] + [(5.0, 4)]
    outcomes.errors["HTTP 503"] = 5
    found = report(outcomes, Load(clients=1, seconds=2.0), 0.1)
    assert (found["answered"], found["requests_per_second"], found["tokens_per_second"]) == (10, 4.5, 18.0)


def test_the_rate_of_a_load_that_ends_by_its_number_is_over_all_of_it() -> None:
    outcomes = Outcomes(latencies=[0.1] * 10, first_tokens=[0.1] * 10, answers=[(0.5 * i, 4) for i in range(1, 11)])
    assert report(outcomes, Load(clients=1, seconds=60.0), 0.1)["requests_per_second"] == 2.0


def test_what_comes_before_the_run_in_is_over_is_not_measured() -> None:
    outcomes = Outcomes(latencies=[0.9] * 2 + [0.1] * 8, first_tokens=[0.1] * 10)
    outcomes.answers = [(1.0, 99)] * 2 + [(2.0 + i, 4) for i in range(8)]
    found = report(outcomes, Load(clients=1, seconds=9.0, run_in=1.0), 0.1)
    assert (found["seconds"], found["requests_per_second"], found["tokens_per_second"]) == (8.0, 1.0, 4.0)
    assert found["latency_ms"]["p99"] == 100.0


def test_the_tokens_of_a_stream_are_those_of_its_last_event() -> None:
    assert target_tokens(b'event: token\ndata: {"x": 1}\n\nevent: done\ndata: ' + ANSWER + b"\n\n") == 3


def test_concurrent_requests_are_translated_together_and_answered_apart() -> None:
    batches: list[int] = []

    def translate(sources: list[list[str]], beam_size: int, max_length: int) -> list[list[str]]:
        batches.append(len(sources))
        return [[f"{source[0]}/{beam_size}"] * max_length for source in sources]

    async def run() -> list[list[str]]:
        batcher = Batcher(translate, workers=1, wait=0.01)
        batcher.start()
        asked = [batcher.ask([f"t{i}"], beam_size=1 + 3 * (i % 2), max_length=i + 1) for i in range(6)]
        answers = await asyncio.gather(*asked)
        await batcher.stop()
        return [*answers]

    assert asyncio.run(run()) == [[f"t{i}/{1 + 3 * (i % 2)}"] * (i + 1) for i in range(6)]
    assert sorted(batches) == [3, 3]


def test_a_batch_that_fails_fails_its_requests_and_no_others() -> None:
    def translate(sources: list[list[str]], beam_size: int, _: int) -> list[list[str]]:
        if beam_size == 4:
            raise RuntimeError("no")
        return sources

    async def run() -> list[Any]:
        batcher = Batcher(translate, workers=1)
        batcher.start()
        asked = [batcher.ask(["a"], 1, 5), batcher.ask(["b"], 4, 5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.stop()
        return [*answers]

    good, bad = asyncio.run(run())
    assert good == ["a"]
    assert isinstance(bad, RuntimeError)


def test_a_batch_has_one_beam_size() -> None:
    async def run() -> None:
        items = [Item([], beam, 1, asyncio.get_running_loop().create_future()) for beam in (1, 4, 1)]
        assert [[item.beam_size for item in batch] for batch in group(items)] == [[1, 1], [4]]

    asyncio.run(run())


def test_the_peer_serves_the_requests_of_the_mix() -> None:
    app = create_app(lambda sources, *_: sources, workers=1)
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": next(MIX.bodies()), "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/generate", "headers": [], "query_string": b""}
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 200
    assert target_tokens(sent[1]["body"]) == len(json.loads(next(MIX.bodies()))["inputs"].split()) + 2  # </s>, end
