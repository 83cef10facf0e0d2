"""What the README promises, each promise by a test of its name, against `attendant serve` as a process.

Promises are the list under "What it promises" in README.md; the first test holds both to each other.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle
from attendant.model.search import reference
from attendant.model.text.tokenizer import SPECIAL_TOKENS
from attendant.model.transformer import Transformer
from tests.support.engines import SYMBOLS, make_bundle
from tests.support.processes import Process, requests, without_timing
from tests.support.serving import events_of, wait_for
from tests.support.small_models import make_model
from tests.support.threads import in_threads

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
FINAL_STATUSES = {200, 429, 503, 504}  # answered; refused at the door; stopping; too late


def promises() -> list[str]:
    section = README.split("What it promises", 1)[1].split("\n\n", 2)[1]
    return re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)


def test_every_promise_of_the_readme_has_a_test_of_its_name() -> None:
    found = promises()
    assert len(found) >= 4
    for promise in found:
        name = "test_" + re.sub(r"\W+", "_", promise.lower()).strip("_")
        assert name in globals(), f"{promise!r} has no {name}"


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(model, tmp_path_factory.mktemp("promised") / "small")


@pytest.fixture(scope="module")
def server(bundle: Bundle) -> Iterator[Process]:
    process = Process(bundle, "--threads", "2", "--precision", "fp32")
    yield process
    assert process.stop()[0] == 0


def test_the_same_answer_whatever_else_is_in_flight(server: Process) -> None:
    asked = list(itertools.islice(requests(), 100))
    alone = [without_timing(server.post(path, body)) for path, body in asked]
    together: dict[int, Any] = {}

    def client(number: int) -> None:
        for place in range(number, len(asked), 16):
            together[place] = without_timing(server.post(*asked[place]))

    in_threads(16, client)
    assert [together[place] for place in range(len(asked))] == alone


def test_exactly_one_outcome(bundle: Bundle) -> None:
    """Overload, deadlines, clients that leave and a reload at once: whoever waits gets one answer, counted once."""
    server = Process(bundle, "--max-queue-requests", "8", "--max-rows", "4", "--threads", "1")
    try:
        statuses, late, left = ask_at_once(server)
        assert set(statuses) <= FINAL_STATUSES
        assert statuses[200] > 0
        assert statuses[429] > 0
        assert late > 0
        wait_for(lambda: counted(server, "reloads_total")["ok"] == 1)
        asked = 'endpoint="/v1/generate"'
        wait_for(lambda: counted(server, "requests_total", asked).total() >= statuses.total())
        wanted = {"ok": statuses[200], "queue_full": statuses[429], "not_ready": statuses[503]}
        assert +counted(server, "requests_total", asked) == +Counter({**wanted, "deadline": statuses[504]})
        assert counted(server, "requests_total", 'endpoint="/v1/completions"').total() <= left
    finally:
        code, errors = server.stop()
    assert code == 0, errors


def ask_at_once(server: Process) -> tuple[Counter[int], int, int]:
    """How many were answered with each status, how many past their deadline, and how many clients left."""
    statuses: Counter[int] = Counter()
    late: list[int] = []
    left: list[int] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        choose = random.Random(number)
        for turn in range(12):
            if number == 0 and turn == 5:
                server.signal(signal.SIGHUP)
            text = "abcdefghi"[: 1 + choose.randrange(9)]
            # Eight at once fill the queue: while any of them waits, no other eight are taken.
            body = {"inputs": [text] * choose.choice((1, 8)), "beam_size": 1 + choose.randrange(4)}
            kind = choose.random()
            if kind < 0.2:
                leave(server.port, "/v1/completions", {"model": "small", "prompt": body["inputs"]})
                left.append(number)
                continue
            if kind < 0.4:
                body["timeout_ms"] = 1
            status, answer = server.post("/v1/generate", body)
            outputs = json.loads(answer).get("outputs", [])
            with lock:
                statuses[status] += 1
                late.extend([number] * (status == 504 or any(is_late(output) for output in outputs)))

    in_threads(12, client)
    return statuses, len(late), len(left)


def is_late(output: dict[str, Any]) -> bool:
    """Whether a deadline ended it, before or after its first token."""
    return "error" in output or output["hypotheses"][0]["finish_reason"] == "deadline"


def leave(port: int, path: str, body: dict[str, Any]) -> None:
    """Send a request and do not wait for its answer."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head.encode() + content)


def counted(server: Process, name: str, labels: str = "") -> Counter[str]:
    """A counter of the metrics by outcome, added up over models, where it has these labels."""
    found = Counter[str]()
    for given, outcome, count in re.findall(
        rf'^attendant_{name}{{(.*)outcome="(\w+)"}} (\S+)', metrics(server), re.MULTILINE
    ):
        if labels in given:
            found[outcome] += int(float(count))
    return found


def metrics(server: Process) -> str:
    return server.ask("GET", "/metrics")[1]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_streamed_is_whole(beam_size: int, server: Process) -> None:
    for text in ("abc", "ihgfedcb", "ca"):
        asked = {"inputs": text, "beam_size": beam_size, "logprobs": True}
        events = events_of(server.post("/v1/generate", {**asked, "stream": True})[1])
        tokens = [data for name, data in events if name == "token"]
        whole = json.loads(server.post("/v1/generate", asked)[1])["outputs"][0]["hypotheses"][0]
        assert [token["token"] for token in tokens] == whole["tokens"]
        assert "".join(token["text"] for token in tokens) == whole["text"]
        assert events[-1][1]["outputs"][0]["hypotheses"][0] == whole


def test_onnx_is_torch(server: Process, model: Transformer) -> None:
    """The served answer is torch's own search on the torch model; letters are ids 4, 5, ..."""
    names = [*SPECIAL_TOKENS, *SYMBOLS.split()]
    for text in ("abc", "f", "ihgfedcb"):
        source = [4 + ord(letter) - ord("a") for letter in text]
        for beam_size in (1, 4):
            (wanted,) = reference.beam(model, source, beam_size, 1.0, 1, max_length=20)
            status, answer = server.post(
                "/v1/generate", {"inputs": text, "beam_size": beam_size, "max_length": 20, "logprobs": True}
            )
            assert status == 200, answer
            found = json.loads(answer)["outputs"][0]["hypotheses"][0]
            assert found["tokens"] == [names[token] for token in wanted.ids]
            assert found["logprobs"] == pytest.approx(list(wanted.logprobs), abs=1e-4)
            assert found["finish_reason"] == wanted.finish_reason


def test_ready_means_certified(model: Transformer, tmp_path: Path) -> None:
    """A bundle that does not give the answers that torch gave at export never becomes ready."""
    bundle = make_bundle(model, tmp_path / "drifting")
    manifest = bundle.directory / "manifest.json"
    value = json.loads(manifest.read_text(encoding="utf-8"))
    value["certificate"]["samples"][0]["greedy"]["logprobs"][0] -= 0.01
    manifest.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(AssertionError, match="fails its certificate on this machine"):
        Process(bundle, "--precision", "fp32")


def test_no_torch(server: Process) -> None:
    """Serving imports no torch: the running process has mapped none of its files."""
    maps = Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
    assert "onnxruntime" in maps
    assert "libtorch" not in maps
