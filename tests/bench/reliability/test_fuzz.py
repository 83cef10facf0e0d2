"""A short form of the fuzzers, and inputs that were once read wrongly; and that the fuzzers see what is wrong."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.reliability.fuzz import files, json_bodies, raw_http, readers
from bench.reliability.fuzz.mutate import mutated
from bench.reliability.fuzz.reader import call, written
from bench.reliability.watch import gauges_at_rest
from tests.support.serving import Running, running, wait_for

INPUTS = 40  # of each reader, of slow ones fewer
KEPT = sorted((Path(__file__).parent / "inputs").glob("*"))
REQUESTS = sorted((Path(__file__).parent / "requests").glob("*"))
READER_OF = {files.kept_name(name): reader for name, reader in readers.READERS.items()}
IN_A_TEST = [name for name in readers.READERS if not name.startswith("import ")]  # tests/model/importers has its own


def test_the_same_seed_gives_the_same_inputs_and_they_differ() -> None:
    first, second = ([mutated(random.Random(seed), b"GET / HTTP/1.1", [b"x"]) for seed in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_A_TEST)
def test_a_reader_takes_its_seeds_and_refuses_mutations_in_its_own_words(name: str, tmp_path: Path) -> None:
    reader, rng = readers.READERS[name], random.Random(name)
    seeds = reader.seeds()
    reader.prepare(tmp_path)
    for data in [
        mutated(rng, rng.choice(seeds), reader.words, seeds) for _ in range(max(1, int(INPUTS * reader.share)))
    ]:
        assert call(reader, written(reader, tmp_path, data)) is None, data[:300]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_was_once_read_wrongly_is_not_any_more(path: Path, tmp_path: Path) -> None:
    reader = READER_OF[path.name.rpartition("-")[0]]
    reader.prepare(tmp_path)
    assert call(reader, written(reader, tmp_path, path.read_bytes())) is None


def test_a_reader_that_raises_what_nobody_expects_is_found_out(tmp_path: Path) -> None:
    def read(_: Path) -> None:
        raise KeyError("unexpected")

    reader = dataclasses.replace(readers.READERS["corpus"], read=read)
    assert isinstance(call(reader, written(reader, tmp_path, b"x")), KeyError)


def test_mutated_requests_leave_a_server_as_it_was(tmp_path: Path) -> None:
    with running(tmp_path, header_seconds=1.0, body_seconds=1.0) as (server, engine):
        tried = asyncio.run(raw_http.fuzz(server.port, 300, seed=7))
        assert tried.inputs == 300
        assert tried.faults == []
        wait_for(lambda: server.server.app.state.traffic.active == 0 and engine.count_running() == 0)
        assert server.request("POST", "/v1/generate", {"inputs": "facade"})[0] == 200


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.name)
@pytest.mark.parametrize("half_close", [False, True])
def test_what_was_once_answered_wrongly_is_not_any_more(path: Path, half_close: bool, kept: Running) -> None:
    tried = raw_http.Tried()
    asyncio.run(raw_http.attempt(kept.port, path.read_bytes(), tried, half_close))
    assert tried.faults == []


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("bundle")
    with running(directory, header_seconds=1.0, body_seconds=1.0, keep_alive_seconds=1) as (server, _):
        yield server


def test_an_input_at_fault_stands_in_the_record_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_http, "KEPT", tmp_path / "requests")
    fault = raw_http.Fault("[500]", b"GET / HTTP/1.1\r\n\xff")
    raw_http.keep([fault, raw_http.Fault("gauges are not at zero afterwards")])
    assert [path.read_bytes() for path in (tmp_path / "requests").iterdir()] == [fault.sent]
    assert base64.b64decode(fault.record()["input"]) == fault.sent


def test_an_answer_that_is_cut_short_is_no_fault_and_one_of_500_is() -> None:
    tried = raw_http.Tried()
    head = b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nTransfer-Encoding: chunked\r\n\r\n"
    for answer in (b"HTTP/1.1 200 OK\r\n" + head, b"HTTP/1.1 200 OK\r\n" + head + b"5\r\nab", b"HTTP/1.1 200 O"):
        raw_http.judge(b"GET / HTTP/1.1", answer, tried)
    assert tried.faults == []
    raw_http.judge(b"GET / HTTP/1.1", b"HTTP/1.1 500 No\r\n" + head + b"0\r\n\r\n", tried)
    raw_http.judge(b"GET / HTTP/1.1", b"garbage\r\n\r\n", tried)
    assert len(tried.faults) == 2


def test_every_kept_input_has_a_reader() -> None:
    assert {path.name.rpartition("-")[0] for path in KEPT} <= READER_OF.keys()
    assert len(READER_OF) == len(readers.READERS)
    assert Path(__file__).parent / "inputs" == files.KEPT
    assert Path(__file__).parent / "requests" == raw_http.KEPT


def test_the_grammar_of_bodies_is_as_seeded_and_reaches_every_kind_of_value() -> None:
    sent = list(json_bodies.inputs(3, 400))
    assert sent == list(json_bodies.inputs(3, 400)) != list(json_bodies.inputs(4, 400))
    whole = b"".join(body for _, body in sent)
    assert all(each.encode("utf-8", "surrogatepass") in whole for each in json_bodies.NUMBERS)
    assert len({path for path, _ in sent}) >= 9


@pytest.mark.skipif(sys.platform != "linux", reason="it serves in a process of its own")
def test_bodies_by_the_grammar_leave_a_server_as_it_was(tmp_path: Path) -> None:
    with json_bodies.served(tmp_path / "models") as server:
        tried = asyncio.run(json_bodies.fuzz(server.port, 200, seed=5))
        assert tried.faults == []
        assert tried.statuses[200] > 0 < tried.statuses[400] + tried.statuses[422]
        assert gauges_at_rest(server.port)


def test_a_server_error_and_an_answer_that_is_no_json_are_faults() -> None:
    assert json_bodies.judged(200, b"{}") == json_bodies.judged(504, b'{"error": {"type": "timeout"}}') == ""
    assert json_bodies.judged(500, b'{"error": {}}').startswith("500")
    assert "no JSON" in json_bodies.judged(400, b"<html>")
    assert "without an error" in json_bodies.judged(422, b"{}")
