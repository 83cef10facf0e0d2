"""A short form of the fuzzers, and inputs that were once read wrongly; and that the fuzzers see what is wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path

import pytest

from bench.reliability.fuzz import files, raw_http, readers
from bench.reliability.fuzz.mutate import mutated
from tests.support.serving import running, wait_for

INPUTS = 40  # of each reader
KEPT = sorted((Path(__file__).parent / "inputs").glob("*"))


def test_the_same_seed_gives_the_same_inputs_and_they_differ() -> None:
    first, second = ([mutated(random.Random(seed), b"GET / HTTP/1.1", [b"x"]) for seed in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", readers.READERS)
def test_a_reader_takes_its_seeds_and_refuses_mutations_in_its_own_words(name: str, tmp_path: Path) -> None:
    reader, rng = readers.READERS[name], random.Random(name)
    seeds = reader.seeds()
    for data in [mutated(rng, rng.choice(seeds), reader.words, seeds) for _ in range(INPUTS)]:
        assert readers.call(reader, readers.written(reader, tmp_path, data)) is None, data[:300]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_was_once_read_wrongly_is_not_any_more(path: Path, tmp_path: Path) -> None:
    reader = readers.READERS[path.name.rpartition("-")[0].replace("_", " ")]
    assert readers.call(reader, readers.written(reader, tmp_path, path.read_bytes())) is None


def test_a_reader_that_raises_what_nobody_expects_is_found_out(tmp_path: Path) -> None:
    def read(_: Path) -> None:
        raise KeyError("unexpected")

    reader = dataclasses.replace(readers.READERS["corpus"], read=read)
    assert isinstance(readers.call(reader, readers.written(reader, tmp_path, b"x")), KeyError)


def test_mutated_requests_leave_a_server_as_it_was(tmp_path: Path) -> None:
    with running(tmp_path, header_seconds=1.0, body_seconds=1.0) as (server, engine):
        tried = asyncio.run(raw_http.fuzz(server.port, 300, seed=7))
        assert tried.inputs == 300
        assert tried.faults == []
        wait_for(lambda: server.server.app.state.traffic.active == 0 and engine.count_running() == 0)
        assert server.request("POST", "/v1/generate", {"inputs": "facade"})[0] == 200


def test_every_kept_input_has_a_reader() -> None:
    assert {path.name.rpartition("-")[0].replace("_", " ") for path in KEPT} <= readers.READERS.keys()
    assert Path(__file__).parent / "inputs" == files.KEPT
