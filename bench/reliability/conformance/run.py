"""Every case of this folder against a service, directly and behind nginx with deploy/proxies/nginx.conf.

    python -m bench.reliability.conformance.run [--url http://HOST:PORT] [--no-nginx] [--failed]

Prints a table, then each case whose outcome is none of those that the RFC allows; exits with 1 if there is one. Without
--url it starts two services with the embedded model, for itself.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.http.servers import HOST, serving
from bench.reliability.conformance import chunks, connections, fields, lengths, lines, methods, smuggling
from bench.reliability.conformance.answers import Answer, AnswerError, read_answers
from bench.reliability.conformance.case import END, END_PATH, MUST, Case
from bench.report.record import RESULTS_HERE, write_record
from deploy.nginx import nginx, program

GROUPS = {
    "request line": lines,
    "headers and Host": fields,
    "Content-Length": lengths,
    "chunked bodies": chunks,
    "connections": connections,
    "methods, conditions": methods,
    "smuggling": smuggling,
}
MODULE = "bench.reliability.conformance.run"
PATIENCE = 20.0  # seconds for an outcome
QUIET = 2.5  # seconds without a byte after which a connection counts as open, where it may stay so
LATE = "1"  # seconds that the services give headers and bodies
PAUSE = 0.03  # between the parts of a request
PARALLEL = 16  # connections at a time


@dataclass(frozen=True)
class Result:
    group: str
    case: Case
    outcome: str
    fault: str = ""  # empty: as the RFC has it, or known
    known: str = ""  # the deviation, and why it is left


def all_cases() -> Iterator[tuple[str, Case]]:
    for group, module in GROUPS.items():
        for case in module.cases():
            yield group, case


def run(port: int, behind: bool = False, cases: Iterable[tuple[str, Case]] | None = None) -> list[Result]:
    """The result of each case, in order."""
    chosen = [(group, case) for group, case in cases or all_cases() if not (behind and case.behind == "-")]
    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(lambda each: _result(port, behind, *each), chosen))


def _result(port: int, behind: bool, group: str, case: Case) -> Result:
    outcome, fault = _outcome(port, case, behind)
    if not fault and outcome not in allowed(case, behind):
        fault = f"{outcome or 'nothing'}, not {' or '.join(sorted(allowed(case, behind)))}"
    if fault and case.known and not behind:
        return Result(group, case, outcome, known=f"{case.known}: {fault}")
    return Result(group, case, outcome, fault)


def allowed(case: Case, behind: bool) -> set[str]:
    """nginx may keep a connection that the service closes, and refuse what the service would take."""
    direct = set(case.allowed.split("|"))
    if not behind:
        return direct
    given = set() if case.behind in ("", "*") else set(case.behind.split("|"))
    if case.behind == "*":
        given = {"404 end", "404", "405 end", "405", "404 404 end"}
    kept = {f"{each} end" for each in direct if each[-3:] >= "400" and not each.endswith("end")}
    return direct | given | kept


def _outcome(port: int, case: Case, behind: bool) -> tuple[str, str]:
    """How it went, and what is wrong in the answers themselves; nginx keeps reading for a while after it has closed."""
    waits = any(each.endswith("open") for each in allowed(case, behind))
    data, closed = _exchange(port, case, QUIET if waits else PATIENCE)
    try:
        answers = read_answers(data, case.methods)
        if not (closed or behind) and answers and answers[-1].closes:
            raise AnswerError("9112 9.6: it said Connection: close, and stayed open")
        outcome = outcome_of(answers, closed)
    except AnswerError as error:
        return "", str(error)
    if case.check is None or (case.behind == "*" and behind) or outcome not in allowed(case, behind=False):
        return outcome, ""
    return outcome, case.check(answers)


def outcome_of(answers: list[Answer], closed: bool) -> str:
    words = [str(answer.status) for answer in answers]
    if answers and answers[-1].status == 404 and END_PATH in answers[-1].body:
        words[-1] = "end"
    elif not closed:
        words.append("open")
    return " ".join(words) or "closed"


def _exchange(port: int, case: Case, quiet: float) -> tuple[bytes, bool]:
    """All bytes that came, and whether the other side closed."""
    with socket.create_connection((HOST, port), PATIENCE) as raw:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for place, part in enumerate(case.sent):
                if place:
                    time.sleep(PAUSE if len(part) > 1 else PAUSE / 30)
                raw.sendall(part)
            if case.end:
                raw.sendall(END)
        return _all_bytes(raw, quiet)


def _all_bytes(raw: socket.socket, quiet: float) -> tuple[bytes, bool]:
    data = b""
    raw.settimeout(quiet)
    try:
        while part := raw.recv(2**16):
            data += part
    except TimeoutError:
        return data, False
    except ConnectionResetError:
        pass
    return data, True


def table(results: list[Result], behind: list[Result]) -> list[dict[str, object]]:
    """A row for each group: cases, those of a MUST, known deviations and faults, directly and behind nginx."""
    return [
        {
            "name": group,
            "cases": sum(each.group == group for each in results),
            "must": sum(each.group == group and each.case.level == MUST for each in results),
            "known": sum(each.group == group and bool(each.known) for each in results),
            "faults": sum(each.group == group and bool(each.fault) for each in results),
            "behind_nginx": sum(each.group == group for each in behind),
            "faults_behind_nginx": sum(each.group == group and bool(each.fault) for each in behind),
        }
        for group in GROUPS
    ]


def show(results: list[Result], behind: list[Result]) -> None:
    print(f"{'':24}{'cases':>8}{'a MUST':>8}{'known':>8}{'faults':>8}{'nginx':>8}{'faults':>8}")
    for row in table(results, behind):
        print(f"{row['name']!s:24}" + "".join(f"{value:>8}" for name, value in row.items() if name != "name"))
    for where, found in (("directly", results), ("behind nginx", behind)):
        for each in found:
            what = f"{where}: {each.group}: {each.case.name} (RFC {each.case.section}, {each.case.level})"
            if each.fault or each.known:
                print(f"{what}: {each.fault or f'known: {each.known}'}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.reliability.conformance.run", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--url", help="a service that runs, with header_seconds and body_seconds of 1, without keys")
    parser.add_argument("--no-nginx", action="store_true")
    given = parser.parse_args()
    if given.url:
        results, behind = run(urllib.parse.urlsplit(given.url).port or 80), []
    else:
        results, behind = _with_own_services(nginx_too=not given.no_nginx)
    show(results, behind)
    failed = [each for each in (*results, *behind) if each.fault]
    if not given.url:
        known = [
            {"case": each.case.name, "section": each.case.section, "level": each.case.level, "why": each.known}
            for each in results
            if each.known
        ]
        write_record(RESULTS_HERE / "conformance.json", MODULE, table(results, behind), known=known)
    sys.exit(bool(failed))


def _with_own_services(nginx_too: bool) -> tuple[list[Result], list[Result]]:
    command = ["-m", "attendant", "serve", "--header-seconds", LATE, "--body-seconds", LATE, "--log-level", "error"]
    with serving(command) as first:
        results = run(first.port)
        if not nginx_too or program() is None:
            print("nginx is not installed: behind it nothing was tried.")
            return results, []
        with serving(command) as second, nginx([first.port, second.port]) as port:
            return results, run(port, behind=True)


if __name__ == "__main__":
    main()
