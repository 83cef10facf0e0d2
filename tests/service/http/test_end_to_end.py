"""`attendant serve` as a process, with a real model: crowds, reloads and stops lose nothing and change nothing."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK
from tests.support.engines import make_bundle
from tests.support.processes import ROOT, Process, requests, without_timing
from tests.support.serving import events_of, wait_for
from tests.support.small_models import make_model
from tests.support.threads import in_threads, threads_beside


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("served") / "small")


@pytest.fixture(scope="module")
def server(bundle: Bundle) -> Iterator[Process]:
    process = Process(bundle, "--threads", "2", "--max-queue-requests", "4096", "--max-queue-tokens", "1000000")
    yield process
    assert process.stop()[0] == 0


def metrics(server: Process) -> str:
    return server.ask("GET", "/metrics")[1]


def test_sixty_four_clients_at_once_each_get_the_answer_given_alone(server: Process) -> None:
    asked = list(itertools.islice(requests(), 320))
    alone: dict[str, Any] = {}
    for path, body in asked:
        key = json.dumps([path, body])
        if key not in alone:
            alone[key] = without_timing(server.post(path, body))
            assert alone[key][0] == 200
    found: list[Any] = [None] * len(asked)

    def client(first: int) -> None:
        for i in range(first, len(asked), 64):
            found[i] = without_timing(server.post(*asked[i]))

    in_threads(64, client)
    assert found == [alone[json.dumps([path, body])] for path, body in asked]


def test_what_was_counted_is_what_was_asked(server: Process) -> None:
    def count(outcome: str) -> int:
        text = metrics(server)
        labels = f'endpoint="/v1/score",model="small",outcome="{outcome}"'
        lines = re.findall(rf"^attendant_requests_total{{{labels}}} (\d+)", text, re.M)
        return int(lines[0])

    before = count("ok"), count("invalid_field")
    for target in ("A", "B C", "no such word"):
        server.post("/v1/score", {"source": "abc", "target": target})
    assert (count("ok"), count("invalid_field")) == (before[0] + 2, before[1] + 1)


def test_streamed_tokens_are_the_whole_answers(server: Process) -> None:
    for beam in (1, 4):
        body = {"inputs": "ihgfedcb", "beam_size": beam, "max_length": 24}
        whole = json.loads(server.post("/v1/generate", body)[1])["outputs"][0]["hypotheses"][0]
        events = events_of(server.post("/v1/generate", {**body, "stream": True})[1])
        assert [data["token"] for name, data in events if name == "token"] == whole["tokens"]
        assert "".join(data["text"] for name, data in events if name == "token") == whole["text"]
        assert events[-1][1]["outputs"][0]["hypotheses"][0] == whole


def test_what_is_scored_again_is_what_was_reported(server: Process) -> None:
    body = {"inputs": "gh", "beam_size": 8, "num_hypotheses": 8, "length_penalty": 0.0, "max_length": 24}
    hypotheses = json.loads(server.post("/v1/generate", body)[1])["outputs"][0]["hypotheses"]
    whole = [found for found in hypotheses if found["finish_reason"] == "stop"]
    known = [found for found in whole if SPECIAL_TOKENS[UNK] not in found["tokens"]]  # no text has the unknown token
    assert sum(bool(found["tokens"]) for found in known) >= 2
    for found in known:
        scored = json.loads(server.post("/v1/score", {"source": "gh", "target": found["text"]})[1])
        assert scored["logprob"] == pytest.approx(found["score"], abs=1e-4)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
def test_the_alternatives_of_a_completion_are_the_next_tokens_of_its_prefixes(
    server: Process, sampling: dict[str, Any]
) -> None:
    body = {"model": "small", "prompt": "ihgfedcb", "max_tokens": 8, "logprobs": 3, **sampling}
    found = json.loads(server.post("/v1/completions", body)[1])["choices"][0]["logprobs"]
    assert found["tokens"]
    for place, top in enumerate(found["top_logprobs"]):
        asked = {"source": body["prompt"], "prefix_tokens": found["tokens"][:place], "top_k": 3}
        tokens = json.loads(server.post("/v1/next-token", asked)[1])["tokens"]
        assert list(top)[:3] == [token["token"] for token in tokens]
        assert list(top.values())[:3] == pytest.approx([token["logprob"] for token in tokens], abs=1e-5)
        assert top[found["tokens"][place]] == pytest.approx(found["token_logprobs"][place], abs=1e-5)


def test_clients_that_vanish_leave_nothing_running(server: Process) -> None:
    body = json.dumps({"inputs": ["ihgfedcb"] * 8, "beam_size": 4, "max_length": 60}).encode()
    head = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for number in range(60):
        with socket.create_connection(("127.0.0.1", server.port), 60) as raw:
            raw.sendall((head + body)[: None if number % 4 else -5])
    levels = r'^attendant_requests_(?:running|waiting){model="small"} (\S+)'
    wait_for(lambda: re.findall(levels, metrics(server), re.M) == ["0.0", "0.0"])


def test_a_reload_under_load_drops_nothing(server: Process) -> None:
    statuses: list[int] = []
    over = threading.Event()

    def client(_: int) -> None:
        while not over.is_set():
            statuses.append(server.post("/v1/generate", {"inputs": "abc", "max_length": 30})[0])

    def reloads() -> int:
        lines = re.findall(r'^attendant_reloads_total{model="small",outcome="ok"} (\d+)', metrics(server), re.M)
        return int(lines[0])

    with threads_beside(4, client):
        try:
            for _ in range(2):
                before = reloads()
                server.signal(signal.SIGHUP)
                wait_for(lambda before=before: reloads() == before + 1)
        finally:
            over.set()
    assert set(statuses) == {200}


def test_a_stop_under_load_answers_everything_that_was_accepted(bundle: Bundle) -> None:
    process = Process(bundle, "--threads", "2")
    answers: list[tuple[int, str]] = []
    dropped: list[Exception] = []

    def client(_: int) -> None:
        for path, body in itertools.islice(requests(), 200):
            try:
                answer = answer_if_accepted(process.port, path, body)
            except Exception as error:
                dropped.append(error)
                return
            if answer is None:
                return
            answers.append(answer)
            if answer[0] != 200:  # it told that it stops
                return

    with threads_beside(8, client) as clients:
        try:
            wait_for(lambda: len(answers) >= 40 or not any(each.is_alive() for each in clients))
        finally:
            code, errors = process.stop()
    assert code == 0, errors
    assert dropped == []
    assert 40 <= len(answers) < 8 * 200  # it stopped while they asked
    assert {status for status, _ in answers} <= {200, 503}
    for status, text in answers:
        if status == 200 and text.startswith("event:"):
            assert events_of(text)[-1][0] == "done"


def answer_if_accepted(port: int, path: str, body: dict[str, Any]) -> tuple[int, str] | None:
    """None where nothing listens any more, or where the socket was closed before anything was read of the request.

    A request that was read and dropped ends in RemoteDisconnected, which is a ConnectionResetError too, and raised.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError) as error:
            if isinstance(error, http.client.RemoteDisconnected):
                raise
            return None
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["--bundle", "/nowhere"], 1, "/nowhere is not a directory"),
        (["--precision", "fp16"], 1, "--precision fp16 is not in the bundle"),
        (["--provider", "cuda"], 1, "no CUDA provider"),
        (["--port", "banana"], 2, "banana"),
        (["--no-such-flag"], 2, "--no-such-flag"),
    ],
)
def test_a_bad_start_is_one_sentence(bundle: Bundle, flags: list[str], code: int, sentence: str) -> None:
    command = [sys.executable, "-m", "attendant", "serve", "--port", "0", "--bundle", str(bundle.directory), *flags]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == code, found.stderr
    assert sentence in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


def test_serving_needs_no_torch(bundle: Bundle, tmp_path: Path) -> None:
    """With torch, onnx and their like impossible to import, it starts and answers."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'onnx', 'onnxscript', 'safetensors', 'matplotlib', 'model'):\n"
        "    sys.modules[name] = None\n"
    )
    command = [sys.executable, "-m", "attendant", "generate", "--bundle", str(bundle.directory), "abc"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()
