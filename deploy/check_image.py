"""Builds the image, starts it, asks it, watches it with Prometheus, drains it, overloads it, and prints what it found.

It uses docker. Where images are built and run by something else, these variables hold its commands instead:

IMAGE_BUILD    builds {target} of {dockerfile} in {context} as {tag}
IMAGE_SIZE     prints the size of {tag}
IMAGE_RUN      runs {program} with {arguments} in {tag}
IMAGE_SERVE    serves {tag} in the foreground, named {name}, reachable at 127.0.0.1:{port}
IMAGE_STOP     sends SIGTERM to the server that is named {name} and reachable at {port}
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from overload import survive  # beside this file

DEPLOY = Path(__file__).resolve().parent
ROOT = DEPLOY.parent
TAG, NAME = "attendant:check", "attendant-check"
LIMIT = 350e6  # bytes over the base image
LOAD_SECONDS = 40  # long enough for rates: several scrapes
COMMANDS = {
    "BUILD": "docker build --file {dockerfile} --target {target} --tag {tag} {context}",
    "SIZE": "docker image inspect --format {{{{.Size}}}} {tag}",
    "RUN": "docker run --rm --entrypoint {program} {tag} {arguments}",
    "SERVE": "docker run --rm --name {name} --publish 127.0.0.1:{port}:8000 --read-only --tmpfs /tmp --cap-drop ALL"
    " --security-opt no-new-privileges --cpus 2 --memory 1g {tag}",
    "STOP": "docker stop --time 60 {name}",
}
WORDS = ["attendant", "transformer", "a", "encyclopedia", "through", "queue", "colonel", "rhythm"]


class Table:
    """What was checked, and what was found."""

    def __init__(self) -> None:
        self.rows: list[tuple[bool, str, str]] = []

    def check(self, what: str, good: bool, found: object = "") -> None:
        self.rows.append((good, what, str(found)))
        print(f"{'ok    ' if good else 'FAILED'}  {what}  {found}", file=sys.stderr, flush=True)

    def show(self) -> int:
        width = max(len(what) for _, what, _ in self.rows)
        print()
        for good, what, found in self.rows:
            print(f"| {'ok' if good else 'FAILED':6} | {what:{width}} | {found} |")
        failed = sum(not good for good, _, _ in self.rows)
        print(f"{len(self.rows) - failed} passed, {failed} failed")
        return 1 if failed else 0


def command(kind: str, arguments: Sequence[str] = (), **values: object) -> list[str]:
    template = os.environ.get(f"IMAGE_{kind}", COMMANDS[kind])
    words = [word.format(**values, arguments="{arguments}") for word in shlex.split(template)]
    return [inner for word in words for inner in (arguments if word == "{arguments}" else [word])]


def run(kind: str, arguments: Sequence[str] = (), **values: object) -> subprocess.CompletedProcess[str]:
    words = command(kind, arguments, **values)
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, cwd=ROOT)


def within(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a container of its own."""
    return run("RUN", arguments, tag=TAG, program=program)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The line that the program ended with, without what the container's engine adds."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("attendant ")]
    return lines[-1] if lines else done.stdout.strip()[-200:]


def ask(url: str, body: object = None, timeout: float = 60) -> tuple[int, Any]:
    """Status and answer; 0 where there is no one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError:
        return 0, ""
    with suppress(ValueError):
        return status, json.loads(text)
    return status, text


def wait(until: Callable[[], bool], seconds: float) -> float | None:
    """How long it took to come true, or None where it did not."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if until():
            return time.monotonic() - start
        time.sleep(0.2)
    return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def size_of(tag: str) -> float:
    """Bytes, from a number with or without a unit."""
    text = run("SIZE", tag=tag).stdout.strip()
    found = re.fullmatch(r"([\d.]+)\s*([kMGT]?)B?", text)
    if found is None:
        raise SystemExit(f"check_image: the size of {tag} is {text!r}, which is no size.")
    return float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]


def check_build(table: Table) -> None:
    dockerfile = DEPLOY / "Dockerfile"
    base = re.findall(r"^FROM (\S+:\S+)", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)[0]
    start = time.monotonic()
    built = run("BUILD", dockerfile=dockerfile, target="runtime", tag=TAG, context=ROOT)
    table.check("the image builds", built.returncode == 0, f"{time.monotonic() - start:.0f} s")
    if built.returncode:
        raise SystemExit(built.stdout[-3000:])
    extra = size_of(TAG) - size_of(base)
    table.check(f"it adds under {LIMIT / 1e6:.0f} MB to {base}", extra < LIMIT, f"{extra / 1e6:.0f} MB")


def check_inside(table: Table) -> None:
    code = (
        "import importlib.util as u, os, shutil; print(os.getuid(), u.find_spec('torch') is not None, "
        "any(map(shutil.which, ('cc', 'c++', 'gcc', 'g++', 'clang++', 'make'))), "
        "any(os.access(path, os.W_OK) for path in ('/', '/opt/attendant')))"
    )
    words = within("python", "-c", code).stdout.split()
    found = dict(zip(("user", "torch", "compiler", "writable"), words, strict=False))
    table.check("not root, no torch, no compiler, nothing writable", words == ["10001", *["False"] * 3], found)
    info = within("attendant", "info").stdout
    (kernels,) = re.findall(r"^ *kernels +(.+)$", info, re.MULTILINE) or [info[-200:]]
    table.check("attendant info: the compiled kernels are used", re.fullmatch(r"\w+", kernels) is not None, kernels)


def check_refusals(table: Table) -> None:
    """Deployments that cannot work end at once, with a sentence."""
    occupied = (
        "import socket, subprocess, sys; s = socket.create_server(('0.0.0.0', 0)); "
        "sys.exit(subprocess.call(['/entrypoint.sh', 'serve', '--port', str(s.getsockname()[1])]))"
    )
    cases = {  # what the sentence must name, and what is run
        "a bundle that is not there": ("/nowhere", "env", "ATTENDANT_BUNDLE=/nowhere", "/entrypoint.sh", "serve"),
        "a bundle that is not readable": ("/root", "env", "ATTENDANT_BUNDLE=/root", "/entrypoint.sh", "serve"),
        "an unknown setting": ("ATTENDANT_COLOUR", "env", "ATTENDANT_COLOUR=red", "/entrypoint.sh", "serve"),
        "an unknown flag": ("--colour", "/entrypoint.sh", "serve", "--colour", "red"),
        "a port in use": ("in use", "python", "-c", occupied),
    }
    for what, (named, program, *arguments) in cases.items():
        done = within(program, *arguments)
        sentence = last_line(done)
        good = sentence.startswith("attendant serve: ") and named in sentence and "Traceback" not in done.stdout
        table.check(f"refused: {what}", good and done.returncode != 0, sentence)


@contextmanager
def process(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        child = subprocess.Popen(words, stdout=out, stderr=out, cwd=ROOT)
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=20)


def check_answers(table: Table, url: str) -> None:
    status, generated = ask(f"{url}/v1/generate", {"inputs": WORDS, "beam_size": 5, "num_hypotheses": 5})
    outputs = generated["outputs"] if status == 200 else []
    best = [output["hypotheses"][0]["text"] for output in outputs]
    table.check(
        "/v1/generate, 8 texts, 5 hypotheses each", [len(o["hypotheses"]) for o in outputs] == [5] * 8, best[:1]
    )
    status, answer = ask(f"{url}/v1/next-token", {"source": "attendant", "top_k": 0})
    total = sum(token["probability"] for token in answer["tokens"]) if status == 200 else 0
    table.check("/v1/next-token, the whole softmax sums to 1", abs(total - 1) < 1e-4, f"{total:.6f}")
    status, answer = ask(f"{url}/v1/score", {"source": "attendant", "target": best[0] if best else ""})
    table.check("/v1/score", status == 200, answer.get("logprob"))
    status, models = ask(f"{url}/v1/models")
    name = models["data"][0]["id"] if status == 200 else ""
    status, answer = ask(f"{url}/v1/completions", {"model": name, "prompt": "attendant"})
    table.check("/v1/completions", status == 200, answer["choices"][0]["text"] if status == 200 else answer)
    status, answer = ask(f"{url}/v1/generate", {"inputs": "attendant", "beam_size": 0})
    table.check("a field out of its range gets 422", status == 422, answer["error"]["message"])
    status, info = ask(f"{url}/v1/info")
    table.check("/v1/info", status == 200, {k: info.get(k) for k in ("version", "precision", "provider", "threads")})
    status, text = ask(f"{url}/metrics")
    table.check("/metrics", status == 200 and "attendant_ready 1.0" in text, f"{len(str(text).splitlines())} lines")


def leave_early(url: str) -> None:
    """A client that hangs up in the middle of a stream."""
    body = json.dumps({"inputs": "encyclopedia", "beam_size": 5, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/generate", body, {"Content-Type": "application/json"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=10) as response:
        response.read(1)


def load(table: Table, url: str, seconds: float) -> None:
    """A mixture of requests, from eight clients."""
    end, statuses, lock = time.monotonic() + seconds, dict[int, int](), threading.Lock()

    def client(number: int) -> None:
        for turn in range(2000):
            if time.monotonic() > end:
                return
            body: dict[str, Any] = {"inputs": WORDS[: 1 + turn % 4], "beam_size": (1, 4)[number % 2]}
            if turn % 20 == 7:
                leave_early(url)
            if turn % 20 == 3:
                body["beam_size"] = 10**6
            if turn % 20 == 5:
                body["timeout_ms"] = 1
            status, _ = ask(f"{url}/v1/generate", body)
            with lock:
                statuses[status] = statuses.get(status, 0) + 1
            time.sleep(0.05)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    known = set(statuses) <= {200, 422, 429, 504}
    table.check(f"{LOAD_SECONDS} s of 8 clients, good and bad: no answer but those", known, statuses)


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[str]:
    """Prometheus with the committed configuration, told where the service is; its address."""
    shutil.copytree(DEPLOY / "prometheus", directory / "config")
    targets = json.dumps([{"targets": [target]}])
    (directory / "config" / "targets" / "check.yml").write_text(targets, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    words = ["prometheus", f"--config.file={directory}/config/prometheus.yml", f"--web.listen-address={address}"]
    with process([*words, f"--storage.tsdb.path={directory}/data"], directory / "prometheus.log"):
        yield f"http://{address}"


def query(url: str, expression: str) -> list[float]:
    status, answer = ask(f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    return [float(series["value"][1]) for series in answer["data"]["result"]] if status == 200 else []


def check_watching(table: Table, url: str) -> None:
    up = wait(lambda: query(url, 'up{job="attendant"}') == [1.0], 30)
    table.check("Prometheus scrapes it with the committed configuration", up is not None)
    _, answer = ask(f"{url}/api/v1/rules")
    rules = [rule for group in answer["data"]["groups"] for rule in group["rules"]]
    table.check("every alert's rule is evaluated", {r["health"] for r in rules} == {"ok"}, f"{len(rules)} rules")
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    table.check("no alert fires", not firing, firing or "")
    dashboard = json.loads((DEPLOY / "grafana/dashboards/attendant.json").read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries = [
        text.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*") for text in queries
    ]
    empty = [text for text in queries if not any(value == value for value in query(url, text))]  # NaN is no data
    table.check(
        "every query of the dashboard has data", not empty, empty or f"{len(panels)} panels, {len(queries)} queries"
    )


def check_drain(table: Table, server: subprocess.Popen[bytes], url: str, watcher: str, port: int) -> None:
    """SIGTERM while requests are under way: each is answered, and the server ends by itself."""
    body = {"inputs": WORDS * 4, "beam_size": 8, "num_hypotheses": 8}
    with ThreadPoolExecutor(5) as pool:
        under_way = [pool.submit(ask, f"{url}/v1/generate", body) for _ in range(4)]
        wait(lambda: sum(running(url)) > 0, 5)
        start = time.monotonic()
        stop = pool.submit(run, "STOP", name=NAME, port=port)
        answers = [future.result() for future in under_way]
        statuses = [status for status, _ in answers]
        whole = all(len(answer["outputs"]) == len(WORDS) * 4 for status, answer in answers if status == 200)
        good = whole and 200 in statuses and set(statuses) <= {200, 503}
        table.check("SIGTERM: what was accepted is answered whole, the rest refused", good, statuses)
        stop.result()
    with suppress(subprocess.TimeoutExpired):
        server.wait(timeout=60)
    found = f"exit code {server.returncode} after {time.monotonic() - start:.1f} s"
    table.check("SIGTERM: it ends by itself", server.returncode == 0, found)
    pending = 'ALERTS{alertname="AttendantDown", alertstate="pending"}'
    table.check(
        "Prometheus notices: AttendantDown is pending", wait(lambda: query(watcher, pending) == [1.0], 40) is not None
    )


def running(url: str) -> list[float]:
    _, text = ask(f"{url}/metrics")
    return [
        float(n) for n in re.findall(r"^attendant_requests_(?:running|waiting){.*} (\S+)$", str(text), re.MULTILINE)
    ]


def main() -> int:
    for program in (shlex.split(os.environ.get("IMAGE_BUILD", COMMANDS["BUILD"]))[0], "prometheus"):
        if shutil.which(program) is None:
            raise SystemExit(f"check_image: {program} is not installed.")
    table = Table()
    check_build(table)
    check_inside(table)
    check_refusals(table)
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with serving(table, directory, port) as (server, url):
            check_answers(table, url)
            with prometheus(directory, f"127.0.0.1:{port}") as watcher:
                load(table, url, LOAD_SECONDS)
                check_watching(table, watcher)
                check_drain(table, server, url, watcher, port)
        with serving(table, directory, port) as (server, url):
            lives, found = survive(url, lambda: server.poll() is None)
            table.check("it lives through the largest requests, all at once, under its memory limit", lives, found)
            run("STOP", name=NAME, port=port)
    return table.show()


@contextmanager
def serving(table: Table, directory: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The image as a server that is ready, and its address."""
    url, start, log = f"http://127.0.0.1:{port}", time.monotonic(), directory / "server.log"
    with process(command("SERVE", tag=TAG, name=NAME, port=port), log) as server:
        ready = wait(lambda: ask(f"{url}/readyz")[0] == 200 or server.poll() is not None, 120)
        good = ready is not None and server.poll() is None and ask(f"{url}/healthz")[0] == 200
        table.check("/healthz and /readyz", good, f"{time.monotonic() - start:.1f} s")
        if not good:
            print(log.read_text(encoding="utf-8")[-3000:], file=sys.stderr)
            table.show()
            raise SystemExit(1)
        yield server, url


if __name__ == "__main__":
    sys.exit(main())
