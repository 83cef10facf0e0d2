"""Checks the manifests and the proxies' configuration, with two servers behind nginx, and prints what it saw."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from attendant.service.http.server import LAST_BYTES_SECONDS
from attendant.service.settings import Settings
from deploy import kustomize, manifests
from deploy.nginx import nginx, program

ROOT = Path(__file__).resolve().parent.parent
REQUESTS = 40
Rows = list[tuple[str, bool, str]]  # what, whether it is as it should be, what was seen


def main() -> int:
    rows = [*check_manifests(), *check_stop(), *check_nginx()]
    width = max(len(what) for what, _, _ in rows)
    for what, good, seen in rows:
        print(f"| {'ok' if good else 'FAILED':6} | {what:{width}} | {seen} |")
    return 0 if all(good for _, good, _ in rows) else 1


def check_manifests() -> Rows:
    rows: Rows = []
    for overlay in manifests.overlays():
        resources = kustomize.render(overlay)
        try:
            schemas = Counter(manifests.check(resource) for resource in resources)
            seen = ", ".join(f"{count} by {schema}" for schema, count in schemas.items())
            rows.append((f"{overlay.name}: {len(resources)} resources are valid", True, seen))
        except Exception as error:
            rows.append((f"{overlay.name}: resources are valid", False, str(error).splitlines()[0]))
        rows.append(_compare(overlay, resources))
    return rows


def _compare(overlay: Path, resources: list[kustomize.Resource]) -> tuple[str, bool, str]:
    what = f"{overlay.name}: rendered as kubectl does"
    if shutil.which("kubectl") is None:
        return what, True, "kubectl is not installed: not compared"
    command = ["kubectl", "kustomize", str(overlay)]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    theirs = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(output)}
    ours = {(each["kind"], each["metadata"]["name"]): each for each in resources}
    return what, ours == theirs, f"{len(theirs)} resources, field by field"


def check_stop() -> Rows:
    (pod,) = [
        each["spec"]["template"]["spec"]
        for each in kustomize.render(manifests.DIRECTORY / "base")
        if each["kind"] == "Deployment"
    ]
    wait, total = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"], pod["terminationGracePeriodSeconds"]
    grace = Settings().grace_seconds
    seen = f"{wait} s preStop + {grace:g} s grace + 2 x {LAST_BYTES_SECONDS} s last bytes, of {total} s"
    return [("a pod has the time that its stop takes", wait + grace + 2 * LAST_BYTES_SECONDS < total, seen)]


def check_nginx() -> Rows:
    if program() is None:
        return [("nginx", False, "it is not installed")]
    rows: Rows = []
    with ExitStack() as stack:
        servers = [stack.enter_context(_server()) for _ in range(2)]
        port = stack.enter_context(nginx([own for _, own in servers]))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        statuses = Counter(_ask(connection) for _ in range(REQUESTS))
        counts = [_answered(own) for _, own in servers]
        seen = f"{REQUESTS} requests on one connection: {counts[0]} and {counts[1]}"
        rows.append(("nginx spreads requests over both servers", min(counts) > REQUESTS // 4, seen))
        rows.append(("every request is answered", statuses == {200: REQUESTS}, f"{dict(statuses)}"))
        events = _events(connection)
        rows.append(("a streamed answer passes", events[-1] == "done", f"{len(events)} events"))
        servers[0][0].send_signal(signal.SIGTERM)
        statuses = Counter(_ask(connection) for _ in range(REQUESTS))
        rows.append(("while one server stops the other answers", statuses == {200: REQUESTS}, f"{dict(statuses)}"))
        code = servers[0][0].wait(timeout=90)
        rows.append(("the server that was stopped ends well", code == 0, f"exit code {code}"))
        connection.close()
    return rows


@contextmanager
def _server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "attendant", "serve", "--port", "0", "--threads", "1", "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found is not None
        yield process, int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=90)


def _ask(connection: http.client.HTTPConnection) -> int:
    connection.request("POST", "/v1/generate", json.dumps({"inputs": "attendant", "beam_size": 4}))
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _events(connection: http.client.HTTPConnection) -> list[str]:
    connection.request("POST", "/v1/generate", json.dumps({"inputs": "encyclopedia", "stream": True}))
    text = connection.getresponse().read().decode()
    return re.findall(r"^event: (\w+)$", text, re.MULTILINE)


def _answered(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    series = re.findall(r"^attendant_requests_total\{([^}]*)\} (\S+)$", text, re.MULTILINE)
    wanted = {'endpoint="/v1/generate"', 'outcome="ok"'}
    return sum(int(float(value)) for labels, value in series if wanted <= set(labels.split(",")))


if __name__ == "__main__":
    sys.exit(main())
