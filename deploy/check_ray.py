"""Two replicas and two actors on a Ray cluster of this machine, one of them killed; prints what it saw: make ray-check.

It takes about two minutes and two processors. Ray listens on every address of its machine, whatever it is told; so
`deploy/loopback.sh` runs this where there is none but 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import ray
import ray.data
from ray import serve

from attendant.service.api import Model
from attendant.service.http.routes import OF_ONE_REPLICA
from attendant.service.ray import bulk as ray_bulk
from attendant.service.ray import serve as ray_serve
from deploy.local_ray import (
    ask,
    cluster,
    connected,
    deploy,
    gauge,
    is_healthy,
    outcomes,
    replica_names,
    wait_for,
)

ROOT = Path(__file__).resolve().parent.parent
ADMIN_KEY = "of-the-check"
CLIENTS = 12
WORDS = [first + rest for first in ("st", "tr", "b", "qu", "") for rest in ("ever", "and", "ick", "oo", "attendant")]
MANY = {"inputs": [word * 3 for word in WORDS], "beam_size": 8}
LONG = {**MANY, "inputs": [word * 3 for word in WORDS] * 5}  # in flight for long enough to be interrupted
STREAM = {"inputs": "encyclopedia" * 4, "stream": True}
Rows = list[tuple[str, bool, str]]  # what, whether it is as it should be, what was seen


def main() -> int:
    with cluster() as port:
        rows = [*check_serve(port), *check_bulk()]
    width = max(len(what) for what, _, _ in rows)
    for what, good, seen in rows:
        print(f"| {'ok' if good else 'FAILED':6} | {what:{width}} | {seen} |")
    return 0 if all(good for _, good, _ in rows) else 1


def check_serve(port: int) -> Rows:
    os.environ["ATTENDANT_ADMIN_KEYS"] = ADMIN_KEY
    try:
        deploy()
        rows = [check_answer(port), check_stream(port), *check_each_replica(port), check_cancelled(port)]
        rows += [*check_killed(port), check_cut(port), check_update(port)]
        deploy(max_rows=1, lanes=1, max_queue_requests=2)
        rows.append(check_overload(port))
        deploy(replicas=1, max_replicas=2, target_requests=1)
        rows.append(check_scaling(port))
    finally:
        del os.environ["ATTENDANT_ADMIN_KEYS"]
        serve.delete("default")
    return rows


def check_answer(port: int) -> tuple[str, bool, str]:
    _, _, body = ask(port, "POST", "/v1/generate", {"inputs": WORDS, "beam_size": 4})
    theirs = [output["hypotheses"][0] for output in json.loads(body)["outputs"]]
    with Model(threads=1) as model:
        ours = [output.hypotheses[0] for output in model.generate(WORDS, beam_size=4)]
    same = [(a["text"], a["score"]) for a in theirs] == [(b.text, b.score) for b in ours]
    return "answers are those of one process, to the bit", same, f"{len(theirs)} texts, beam 4"


def check_stream(port: int) -> tuple[str, bool, str]:
    with connected(port) as connection:
        connection.request("POST", "/v1/generate", json.dumps(STREAM))
        answer, pieces = connection.getresponse(), []
        while piece := answer.read1():
            pieces.append(piece)
    events = re.findall(r"^event: (\w+)$", b"".join(pieces).decode(), re.MULTILINE)
    good = len(pieces) > 1 and events[-1] == "done"
    return "a streamed answer comes in pieces", good, f"{len(events)} events in {len(pieces)} pieces"


def check_each_replica(port: int) -> Rows:
    found = ray_serve.addresses()
    ports = [int(address.rpartition(":")[2]) for address in found]
    for _ in range(20):
        ask(port, "POST", "/v1/generate", {"inputs": "attendant"})
    counts = [outcomes(own).total() for own in ports]
    ready = [ask(own, "GET", "/readyz")[0] for own in ports]
    reloaded = [ask(own, "POST", "/v1/reload", {}, f"Bearer {ADMIN_KEY}")[0] for own in ports]
    proxied = [ask(port, "GET", path)[0] for path in OF_ONE_REPLICA]
    return [
        ("each replica has its own metrics", len(found) == 2 and min(counts) > 0, f"requests: {counts}"),
        ("each replica tells whether it is ready", ready == [200, 200], f"{ready}"),
        ("each replica reloads", reloaded == [200, 200], f"{reloaded}"),
        ("the proxy does not answer for one of them", proxied == [404, 404], f"{proxied}"),
    ]


def check_cancelled(port: int) -> tuple[str, bool, str]:
    """A client leaves while its texts are decoded."""
    ports = [int(address.rpartition(":")[2]) for address in ray_serve.addresses()]
    with connected(port) as connection:
        connection.request("POST", "/v1/generate", json.dumps(LONG))
        wait_for(lambda: any(gauge(own, "attendant_requests_running") for own in ports))
    wait_for(lambda: any(outcomes(own)["cancelled"] for own in ports))
    names = ("attendant_requests_running", "attendant_requests_waiting")
    wait_for(lambda: not any(gauge(own, name) for own in ports for name in names))
    counts = [outcomes(own)["cancelled"] for own in ports]
    return "a client that leaves ends its work", sum(counts) == 1, f"cancelled: {counts}; nothing runs or waits"


def check_killed(port: int) -> Rows:
    """One of two replicas is killed while clients send."""
    names = replica_names()
    with load(port) as seen:
        wait_for(lambda: seen.total() > CLIENTS)
        ray.kill(ray.get_actor(names[0], namespace="serve"))
        begun = seen.total()
        wait_for(lambda: seen.total() > begun + 10 * CLIENTS)
    hung = seen["no answer in time"] + seen["a stream without its end"]
    rows = [
        ("a replica is killed: every request has one outcome", not hung, f"{dict(seen)}"),
        ("most are answered", seen["200"] > 0.8 * seen.total(), f"{seen['200']} of {seen.total()}"),
    ]
    wait_for(lambda: is_settled(without=names[0]))
    after = Counter(outcome_of(port, stream=False) for _ in range(20))
    rows.append(("Ray replaces the one that was killed", after == {"200": 20}, f"then {dict(after)}"))
    return rows


def check_cut(port: int) -> tuple[str, bool, str]:
    """Every replica is killed while one of them streams: the client must not take what came for the whole answer."""
    names, text = replica_names(), b""
    actors = [ray.get_actor(name, namespace="serve") for name in names]
    with ThreadPoolExecutor(4) as pool, connected(port) as connection:
        for _ in range(4):
            pool.submit(outcome_of, port, stream=False)  # so that a step takes its time
        connection.request("POST", "/v1/generate", json.dumps(STREAM))
        answer = connection.getresponse()
        try:
            text += answer.read1()
            for actor in actors:
                ray.kill(actor)
            while piece := answer.read1():
                text += piece
            good, seen = b"event: done" in text, "it was whole before"
        except http.client.IncompleteRead:
            good, seen = True, f"after {text.count(b'event: token')} tokens the transfer breaks off"
    wait_for(lambda: is_settled(without=names[0]) and names[1] not in replica_names())
    return "a stream that is cut looks like it", good, seen


def check_update(port: int) -> tuple[str, bool, str]:
    """A deployment with other settings takes the place of the running one while clients send."""
    names = replica_names()
    with load(port) as seen:
        deploy(timeout_ms=50_000)
        wait_for(lambda: is_settled(without=names[0]) and names[1] not in replica_names())
    return "an update loses no request", seen.keys() == {"200"}, f"{dict(seen)}"


def check_scaling(port: int) -> tuple[str, bool, str]:
    """Ray looks at the last 30 s before it adds a replica."""
    with load(port):
        wait_for(lambda: len(replica_names()) == 2 and is_healthy())
    return "more requests: more replicas", True, "2 instead of 1"


def is_settled(without: str) -> bool:
    names = replica_names()
    return len(names) == 2 and without not in names and is_healthy()


@contextlib.contextmanager
def load(port: int) -> Iterator[Counter[str]]:
    """Clients that send until the end, and what they saw."""
    seen: Counter[str] = Counter()
    lock, done = threading.Lock(), threading.Event()

    def client(number: int) -> None:
        while not done.is_set():
            outcome = outcome_of(port, stream=number % 3 == 0)
            with lock:
                seen[outcome] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, number) for number in range(CLIENTS)]
        try:
            yield seen
        finally:
            done.set()
        for each in running:
            each.result()


def check_overload(port: int) -> tuple[str, bool, str]:
    """Far more at once than two replicas of one row and a queue of two take."""

    def one(_: int) -> tuple[int, str, bool]:
        status, headers, body = ask(port, "POST", "/v1/generate", {"inputs": "encyclopedia" * 4, "beam_size": 1})
        return status, headers.get("retry-after", ""), b"queue_full" in body

    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(one, range(240)))
    statuses = Counter(status for status, _, _ in answers)
    refused = [(retry, ours) for status, retry, ours in answers if status == 429]
    good = set(statuses) == {200, 429} and all(retry.isdecimal() for retry, _ in refused)
    told = f"{dict(statuses)}, Retry-After in all; {sum(ours for _, ours in refused)} by the engine, the rest by Ray"
    return "too much is 429 with Retry-After", good, told


class MarkedEngine(ray_bulk.Engine):
    """Tells which actor computed a row."""

    def __call__(self, table: Any) -> Any:
        actor = ray.get_runtime_context().get_actor_id()
        found = super().__call__(table)
        return found.append_column("actor", pyarrow.array([actor] * found.num_rows))


def check_bulk() -> Rows:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    with tempfile.TemporaryDirectory() as directory:
        source, single = Path(directory, "in.parquet"), Path(directory, "one")
        texts = [*(word + more for word in WORDS for more in ("", "s", "er", "ing")), "x" * 5000, None]
        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "text": texts}), source)
        command = [sys.executable, "-m", "attendant", "generate", "--input", str(source), "--output", str(single)]
        done = subprocess.run([*command, "--beam-size", "4"], cwd=ROOT, capture_output=True, check=False)
        expected = pyarrow.concat_tables(pyarrow.parquet.read_table(each) for each in sorted(single.glob("*.parquet")))
        rows = [bulk_by_api(source, expected), bulk_by_command(source, Path(directory, "many"), expected)]
    return [("attendant generate, two rows set aside", done.returncode == 3, f"exit code {done.returncode}"), *rows]


def bulk_by_api(source: Path, expected: Any) -> tuple[str, bool, str]:
    marked, ray_bulk.Engine = ray_bulk.Engine, MarkedEngine  # type: ignore[misc]
    try:
        options = {"beam_size": 4}
        dataset = ray_bulk.generate(
            ray.data.read_parquet(str(source)), ray_serve.Settings(threads=1), options, actors=2, batch_rows=8
        )
        found = pyarrow.concat_tables(dataset.iter_batches(batch_format="pyarrow")).sort_by("id")
    finally:
        ray_bulk.Engine = marked  # type: ignore[misc]
    shares = sorted(Counter(found.column("actor").to_pylist()).values())
    same = found.drop_columns(["actor"]).equals(expected)
    return "two actors: rows as of one machine, to the bit", same and len(shares) == 2, f"{shares} rows of each actor"


def bulk_by_command(source: Path, out: Path, expected: Any) -> tuple[str, bool, str]:
    code = ray_bulk.main(
        ["--input", str(source), "--output", str(out), "--actors=2", "--batch-rows=16", '--options={"beam_size": 4}']
    )
    found = pyarrow.parquet.read_table(out).sort_by("id")
    files = len(list(out.glob("*.parquet")))
    return (
        "python -m attendant.service.ray.bulk: the same",
        found.equals(expected) and code == 0,
        f"{len(found)} rows, {files} files",
    )


def outcome_of(port: int, stream: bool) -> str:
    """What the caller sees: a status, or how it was left without one."""
    try:
        status, _, content = ask(port, "POST", "/v1/generate", STREAM if stream else MANY)
    except TimeoutError:
        return "no answer in time"
    except (OSError, http.client.HTTPException):
        return "connection ended"
    if stream and status == 200 and b"event: done" not in content:
        return "a stream without its end"
    return str(status)


if __name__ == "__main__":
    sys.exit(main())
