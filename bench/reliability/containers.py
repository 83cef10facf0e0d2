"""The image in a real Docker engine, with its limits held by the kernel: Compose, restarts, memory, stops, a full /tmp.

    python -m bench.reliability.containers [--image attendant:check] [--parts NAME...]

Needs docker, and root for SIGKILL from outside; `make image-check` makes the image. Each check starts containers of its
own on this machine's loopback and removes them. After each fault known requests are answered as before.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.http.servers import HOST, ROOT, free_port
from bench.reliability import rolling
from bench.reliability.watch import ask, known_answer, metrics, total
from bench.report.record import RESULTS_HERE, merged, write_record

MODULE = "bench.reliability.containers"
IMAGE, TAG = "attendant:check", "attendant:0.2.0"  # what is checked, and what Compose calls it
WITHIN = 90.0  # seconds for a container to be ready
LIMITS = ("--cpus", "2", "--memory", "1g", "--memory-swap", "1g", "--pids-limit", "1024")
SHIPPED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", *LIMITS)
FILL = "import os\nwith open('/tmp/full', 'wb') as f:\n while f.write(bytes(65536)): f.flush()"
TAKE_ALL = "x = [bytearray(2**24) for _ in range(200)]"  # 3.4 GB


@dataclass
class Findings:
    """What was found, a row each."""

    name: str
    found: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, good: bool) -> None:
        self.found[what] = found
        if not good:
            self.wrong.append(f"{what}: {found}")


@dataclass
class Container:
    """A container that listens on a port of the loopback."""

    name: str
    port: int

    def terminate(self) -> None:
        self.stopping = subprocess.Popen(["docker", "stop", "--time", "80", self.name], stdout=subprocess.DEVNULL)

    def wait(self, timeout: float) -> int:
        """Its exit code, once it was stopped; then it is gone."""
        self.stopping.wait(timeout)
        code = int(self.state("ExitCode"))
        docker("rm", "--force", self.name)
        return code

    def state(self, key: str) -> str:
        return docker("inspect", "--format", f"{{{{.State.{key}}}}}", self.name)

    def run(self, program: str) -> str:
        """What a Python program in it prints; that it ends badly is no error."""
        command = ["docker", "exec", self.name, "python", "-c", program]
        return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def start(image: str, *more: str, port: int = 0, tmp: str = "/tmp") -> Container:
    """A container as docker-compose.yml has it, before it is ready."""
    port = port or free_port()
    name = f"attendant-{os.getpid()}-{port}"
    published = ["--publish", f"{HOST}:{port}:8000", "--env", "ATTENDANT_LOG_LEVEL=warning"]
    docker("run", "--detach", "--name", name, *published, "--tmpfs", tmp, *SHIPPED, *more, image)
    return Container(name, port)


@contextlib.contextmanager
def ready(image: str, *more: str, tmp: str = "/tmp") -> Iterator[Container]:
    container = start(image, *more, tmp=tmp)
    try:
        rolling.wait_until_ready(container.port)
        yield container
    finally:
        docker("rm", "--force", container.name)


def as_shipped(image: str, row: Findings) -> None:
    """What Compose promises, as the kernel sees it."""
    with ready(image) as container:
        status = container.run("print(open('/proc/1/status').read())")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        row.expect("user", fields["Uid"].split()[0], fields["Uid"].split()[0] == "10001")
        row.expect("capabilities", fields["CapEff"], int(fields["CapEff"], 16) == 0)
        row.expect("no new privileges", fields["NoNewPrivs"], fields["NoNewPrivs"] == "1")
        written = container.run("open('/opt/attendant/x', 'w')").splitlines()[-1:]
        row.expect("a file outside of /tmp", *_said(written, "Read-only file system"))
        limits = [metrics(container.port)["attendant_memory_limit_bytes"], _info(container.port)["threads"]]
        row.expect("bytes of memory, and threads, as the service sees them", limits, limits == [2.0**30, 2])
        row.expect("answers", "", known_answer(container.port)[0][0] == 200)


def _info(port: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(port, "/v1/info")[1])
    return found


def _said(lines: list[str], wanted: str) -> tuple[str, bool]:
    text = " ".join(lines)
    return text[:80], wanted in text


def without_network(image: str, row: Findings) -> None:
    """The service needs no network but its own loopback."""
    name = f"attendant-{os.getpid()}-alone"
    docker("run", "--detach", "--name", name, "--network", "none", "--tmpfs", "/tmp", *SHIPPED, image)
    container = Container(name, 0)
    probe = (
        "import urllib.request as r\n"
        "print(r.urlopen('http://127.0.0.1:8000/v1/generate', b'{\"inputs\": \"cat\"}').read())"
    )
    try:
        found = ""
        until = time.monotonic() + WITHIN
        while "hypotheses" not in found and time.monotonic() < until:
            found = container.run(probe)
            time.sleep(0.2)
        row.expect("answers", found.strip()[:60], "hypotheses" in found)
    finally:
        docker("rm", "--force", name)


def rolling_restart(image: str, row: Findings) -> None:
    """Two containers behind HAProxy on the host's loopback, restarted by turns under load."""
    found = rolling.restart("HAProxy", 4, starting=lambda port: start(image, port=port))
    row.found = {key: found[key] for key in ("restarts", "requests", "outcomes")}
    row.wrong = found["wrong"]


def stop_under_load(image: str, row: Findings) -> None:
    """`docker stop`: it ends with 0, and what was accepted is answered; the rest is refused or not connected."""
    with ready(image) as container:
        expected = [rolling.Client(container.port).ask(body) for body in rolling.BODIES]
        load = rolling.Load(expected)
        with rolling.asking(container.port, load, rolling.CLIENTS):
            time.sleep(2.0)
            container.terminate()
            container.stopping.wait(WITHIN)
        broken = [each for each in load.wrong if "another answer" in each or "without its end" in each]
        row.expect("exit code", container.state("ExitCode"), container.state("ExitCode") == "0")
        row.expect("answered", load.outcomes["whole"] + load.outcomes["streamed"], load.outcomes["whole"] > 0)
        row.expect("refused or not connected", load.outcomes["error"], not broken)
        row.wrong += broken[:3]


def out_of_memory(image: str, row: Findings) -> None:
    """A process in the container takes more than the limit: the kernel kills it, and the service goes on."""
    with ready(image, "--restart", "unless-stopped") as container:
        before = known_answer(container.port)
        said = container.run(TAKE_ALL)
        row.expect("the process that takes 3 GB", "killed" if not said else said[-60:], not said)
        row.expect("answers as before", "", _answers_again(container) == before)
        row.expect("restarts of the service", docker("inspect", "--format", "{{.RestartCount}}", container.name), True)


def service_killed(image: str, row: Findings) -> None:
    """SIGKILL of the service's process by the kernel of the host: the restart policy starts it anew."""
    with ready(image, "--restart", "unless-stopped") as container:
        before = known_answer(container.port)
        process = int(container.state("Pid"))
        os.kill(process, signal.SIGKILL)
        _wait_until(lambda: container.state("Pid") not in ("0", str(process)))
        row.expect("answers as before", "", _answers_again(container) == before)
        restarts = docker("inspect", "--format", "{{.RestartCount}}", container.name)
        row.expect("restarts", int(restarts), restarts == "1")


def service_out_of_memory(image: str, row: Findings) -> None:
    """A service that was told of more memory than it has: the kernel kills it, the restart policy starts it anew."""
    told = ("--env", "ATTENDANT_MEMORY_MEGABYTES=20000", "--env", "ATTENDANT_MAX_ROWS=4096")
    with ready(image, "--restart", "unless-stopped", *told, "--memory", "130m", "--memory-swap", "130m") as container:
        before, process = known_answer(container.port), container.state("Pid")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(_press, [container.port] * 16))
        killed = _wait_until(lambda: container.state("Pid") not in ("0", process), 20.0)
        row.expect("the kernel kills it at 130 MiB", killed, killed)
        row.expect("answers as before", "", _answers_again(container) == before)
        restarts = int(docker("inspect", "--format", "{{.RestartCount}}", container.name))
        row.expect("restarts", restarts, restarts > 0)


def _press(port: int) -> None:
    body = {"inputs": ["abcdefghij" * 3] * 256, "beam_size": 32, "num_hypotheses": 32, "logprobs": True}
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(port, "/v1/generate", body)


def full_tmpfs(image: str, row: Findings) -> None:
    """No byte is left in /tmp, the only place that can be written: answers, a reload and a stop are as ever."""
    with ready(image, tmp="/tmp:size=1m") as container:
        before = known_answer(container.port)
        filled = container.run(FILL).splitlines()[-1:]
        row.expect("/tmp", *_said(filled, "No space left on device"))
        row.expect("answers as before", "", known_answer(container.port) == before)
        docker("exec", container.name, "sh", "-c", "kill -HUP 1")
        reloaded = _wait_until(lambda: total(metrics(container.port), "attendant_reloads_total", outcome="ok") > 0)
        row.expect("a reload", reloaded, reloaded)
        row.expect("answers after it", "", known_answer(container.port) == before)
        container.terminate()
        container.stopping.wait(WITHIN)
        row.expect("exit code", container.state("ExitCode"), container.state("ExitCode") == "0")


def compose(image: str, row: Findings) -> None:
    """docker-compose.yml, with as many of its services as there are images for; the rest is said."""
    docker("tag", image, TAG)
    images = {"attendant": TAG, "prometheus": _image("prometheus"), "grafana": _image("grafana")}
    there = [name for name, tag in images.items() if _exists(tag)]
    row.expect("services", ", ".join(there), "attendant" in there)
    row.expect("left out, since there is no image", ", ".join(sorted(images.keys() - set(there))) or "none", True)
    with tempfile.TemporaryDirectory() as directory:
        composed = _Compose(Path(directory))
        row.expect("Compose", composed.version, True)
        try:
            composed("up", "--detach", "--no-build", *there)
            rolling.wait_until_ready(8000)
            _look_at_compose(composed, there, row)
            composed("stop")
            code = docker("inspect", "--format", "{{.State.ExitCode}}", composed("ps", "--all", "--quiet", "attendant"))
            row.expect("exit code after compose stop", code, code == "0")
        finally:
            composed("down", "--volumes")


def _look_at_compose(composed: _Compose, there: list[str], row: Findings) -> None:
    row.expect("answers", "", known_answer(8000)[0][0] == 200)
    form = "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}} {{.HostConfig.ReadonlyRootfs}}"
    held = docker("inspect", "--format", form, composed("ps", "--quiet", "attendant"))
    row.expect("memory, processors, processes, read-only", held, held == "1073741824 2000000000 1024 true")
    if "prometheus" in there:
        up = _wait_until(lambda: _query('up{job="attendant"}') == [1.0], 60.0)
        row.expect("Prometheus scrapes the service by its name", up, up)
        rules = json.loads(ask(9090, "/api/v1/rules")[1])["data"]["groups"]
        health = {rule["health"] for group in rules for rule in group["rules"]}
        row.expect("alerts' rules", ", ".join(sorted(health)), health == {"ok"})


class _Compose:
    """Compose with our file. Version 1 takes a limit of processes from a variable for a text: it gets the number."""

    def __init__(self, directory: Path) -> None:
        self._program = ["docker", "compose"] if self._has_plugin() else ["docker-compose"]
        self._files: list[str] = []
        self.version = self("version", "--short")
        if self.version.startswith("1."):
            read = yaml.safe_load(self("config"))
            for service in read["services"].values():
                if "pids_limit" in service:
                    service["pids_limit"] = int(service["pids_limit"])
            resolved = directory / "docker-compose.yml"
            resolved.write_text(yaml.safe_dump(read), encoding="utf-8")
            self._files = ["--file", str(resolved), "--project-directory", str(ROOT)]

    @staticmethod
    def _has_plugin() -> bool:
        return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0

    def __call__(self, *arguments: str) -> str:
        command = [*self._program, *self._files, "--project-name", "attendant-check", *arguments]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-500:]}")
        return done.stdout.strip()


def _image(service: str) -> str:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    return text.split(f"  {service}:\n    image: ")[1].split("\n")[0]


def _exists(tag: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", tag], capture_output=True).returncode == 0


def _query(expression: str) -> list[float]:
    status, answer = ask(9090, f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    return [float(each["value"][1]) for each in json.loads(answer)["data"]["result"]] if status == 200 else []


def _answers_again(container: Container) -> Any:
    rolling.wait_until_ready(container.port)
    return known_answer(container.port)


def _wait_until(condition: Callable[[], bool], seconds: float = WITHIN) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if condition():
                return True
        time.sleep(0.1)
    return False


CHECKS: dict[str, Callable[[str, Findings], None]] = {
    "as shipped: read-only, no capabilities, 1 GiB, 2 processors": as_shipped,
    "no network": without_network,
    "Compose": compose,
    "rolling restart of two containers behind HAProxy": rolling_restart,
    "docker stop under load": stop_under_load,
    "a process beside it takes all memory": out_of_memory,
    "the service over its memory limit": service_out_of_memory,
    "SIGKILL with a restart policy": service_killed,
    "/tmp full": full_tmpfs,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--image", default=IMAGE)
    parser.add_argument("--parts", nargs="+", choices=CHECKS, default=list(CHECKS), help="others stay in the record")
    given = parser.parse_args()
    rows = []
    for name in given.parts:
        row = Findings(name)
        try:
            CHECKS[name](given.image, row)
        except Exception as error:  # the other checks are done all the same
            row.wrong.append(f"{type(error).__name__}: {error}")
        rows.append({"name": name, "found": row.found, "wrong": row.wrong})
        print(json.dumps(rows[-1]), flush=True)
    path = RESULTS_HERE / "containers.json"
    write_record(path, MODULE, merged(path, rows, CHECKS))
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
