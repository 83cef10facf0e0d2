"""Two replicas and two actors on a Ray cluster of this machine, one of them killed; prints what it saw: make ray-check.

It takes about a minute and two processors. Ray listens on every address of its machine, whatever it is told; so
`deploy/loopback.sh` runs this where there is none but 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import pyarrow
import pyarrow.parquet
import ray
import ray.data
from ray import serve

from service import ray_bulk, ray_serve
from service.api import Model

ROOT = Path(__file__).resolve().parent.parent
ADMIN_KEY = "of-the-check"
CLIENTS, REQUESTS = 12, 30  # of each client
PATIENCE = 60.0  # seconds, for what must come
WORDS = [first + rest for first in ("st", "tr", "b", "qu", "") for rest in ("ever", "and", "ick", "oo", "attendant")]
LONG = {"inputs": [word * 3 for word in WORDS] * 5, "beam_size": 8}  # in flight for long enough to be interrupted
Rows = list[tuple[str, bool, str]]  # what, whether it is as it should be, what was seen
Answer = tuple[int, dict[str, str], bytes]


def main() -> int:
    with cluster() as port:
        rows = [*check_serve(port), *check_bulk()]
    width = max(len(what) for what, _, _ in rows)
    for what, good, seen in rows:
        print(f"| {'ok' if good else 'FAILED':6} | {what:{width}} | {seen} |")
    return 0 if all(good for _, good, _ in rows) else 1


@contextlib.contextmanager
def cluster() -> Iterator[int]:
    """A Ray cluster in processes of its own, and the port of its proxy."""
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else Ray writes one into the home directory
        ray.init(
            num_cpus=3,  # numbers for Ray's bookkeeping: two engines, and one that reads and writes
            object_store_memory=200 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
        )
        try:
            port = free_port()
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            yield port
        finally:
            serve.shutdown()
            ray.shutdown()


def deploy(**arguments: Any) -> None:
    serve.run(ray_serve.build({"replicas": 2, "threads": 1, "log_level": "warning", **arguments}))


def check_serve(port: int) -> Rows:
    os.environ["ATTENDANT_ADMIN_KEYS"] = ADMIN_KEY
    try:
        deploy()
        rows = [check_answer(port), check_stream(port), *check_each_replica(port), check_cancelled(port)]
        rows += check_killed(port)
        deploy(max_rows=1, lanes=1, max_queue_requests=2)
        rows.append(check_overload(port))
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
        connection.request("POST", "/v1/generate", json.dumps({"inputs": "encyclopedia" * 4, "stream": True}))
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
    proxied = [ask(port, "GET", path)[0] for path in ray_serve.OF_ONE_REPLICA]
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
    left = [gauge(own, name) for own in ports for name in ("attendant_requests_running", "attendant_requests_waiting")]
    return "a client that leaves ends its work", not any(left), "1 cancelled, nothing left running"


def check_killed(port: int) -> Rows:
    """One of two replicas is killed while clients send."""
    seen: Counter[str] = Counter()
    lock, begun = threading.Lock(), threading.Event()

    def client() -> None:
        for number in range(REQUESTS):
            outcome = outcome_of(port, stream=number % 3 == 0)
            with lock:
                seen[outcome] += 1
                if seen.total() > CLIENTS * 2:
                    begun.set()

    names = replica_names()
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client) for _ in range(CLIENTS)]
        begun.wait(PATIENCE)
        ray.kill(ray.get_actor(names[0], namespace="serve"))
        for each in running:
            each.result()
    hung = seen["no answer in time"] + seen["a stream without its end"]
    rows = [
        ("every request has one outcome", seen.total() == CLIENTS * REQUESTS and not hung, f"{dict(seen)}"),
        ("most are answered", seen["200"] > CLIENTS * REQUESTS * 0.9, f"{seen['200']} of {seen.total()}"),
    ]
    wait_for(lambda: len(replica_names()) == 2 and names[0] not in replica_names() and is_healthy())
    after = Counter(outcome_of(port, stream=False) for _ in range(20))
    rows.append(("Ray replaces the one that was killed", after == {"200": 20}, f"then {dict(after)}"))
    return rows


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
        "python -m service.ray_bulk: the same",
        found.equals(expected) and code == 0,
        f"{len(found)} rows, {files} files",
    )


def outcome_of(port: int, stream: bool) -> str:
    """What the caller sees: a status, or how it was left without one."""
    body = {"inputs": "encyclopedia" * 4, "stream": True} if stream else {**LONG, "inputs": LONG["inputs"][:20]}  # type: ignore[index]
    try:
        status, _, content = ask(port, "POST", "/v1/generate", body)
    except TimeoutError:
        return "no answer in time"
    except (OSError, http.client.HTTPException):
        return "connection ended"
    if stream and status == 200 and b"event: done" not in content:
        return "a stream without its end"
    return str(status)


def replica_names() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(each["name"] for each in named if each["name"].startswith("SERVE_REPLICA::default#attendant"))


def is_healthy() -> bool:
    application = serve.status().applications["default"]
    return str(application.deployments["attendant"].status.value) == "HEALTHY"


def outcomes(port: int) -> Counter[str]:
    """How often each outcome of /v1/generate was counted."""
    lines = re.findall(r'^attendant_requests_total\{endpoint="/v1/generate",.*$', metrics(port), re.MULTILINE)
    found: Counter[str] = Counter()
    for line in lines:
        found[line.partition('outcome="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
    return +found


def gauge(port: int, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics(port), re.MULTILINE))


def metrics(port: int) -> str:
    return ask(port, "GET", "/metrics")[2].decode()


def ask(port: int, method: str, path: str, body: Any = None, key: str = "") -> Answer:
    with connected(port) as connection:
        headers = {"authorization": key} if key else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def connected(port: int) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("what must come did not")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
