"""Every case of the conformance suite, directly and behind nginx; and that the suite sees what is wrong."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from bench.reliability.conformance import run
from bench.reliability.conformance.answers import AnswerError, read_answers
from bench.reliability.conformance.case import MUST
from deploy.nginx import nginx, program
from tests.support.serving import Running, running

CASES = list(run.all_cases())
DATE = b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
OK = b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    first, second = (tmp_path_factory.mktemp(name) for name in "ab")
    late = float(run.LATE)
    with (
        running(first, header_seconds=late, body_seconds=late) as (one, _),
        running(second, header_seconds=late, body_seconds=late) as (other, _),
    ):
        yield [one, other]


def faults(results: list[run.Result]) -> list[str]:
    return [f"{each.case.name} (RFC {each.case.section}): {each.fault}" for each in results if each.fault]


def test_there_are_at_least_300_cases_each_with_a_name_of_its_own_and_a_paragraph() -> None:
    assert len(CASES) >= 300
    assert [name for name, count in Counter((group, case.name) for group, case in CASES).items() if count > 1] == []
    assert {case.section.split()[0] for _, case in CASES} <= {"9110", "9112", "9113"}


def test_every_case_is_answered_as_the_rfc_has_it(servers: list[Running]) -> None:
    results = run.run(servers[0].port)
    assert faults(results) == []
    known = [each for each in results if each.case.known]
    assert [each.case.name for each in known if not each.known] == []  # mended: it is known no more


@pytest.mark.skipif(program() is None, reason="nginx is not installed")
def test_every_case_is_answered_as_the_rfc_has_it_behind_nginx(servers: list[Running]) -> None:
    with nginx([server.port for server in servers]) as port:
        assert faults(run.run(port, behind=True)) == []


def test_a_server_that_takes_everything_is_found_out() -> None:
    chosen = [(group, case) for group, case in CASES if case.level == MUST and group in ("smuggling", "Content-Length")]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_take_everything, args=(listening, len(chosen)), daemon=True).start()
        results = run.run(listening.getsockname()[1], cases=chosen)
    assert sum(bool(each.fault) for each in results) > 0.9 * len(chosen)


def _take_everything(listening: socket.socket, count: int) -> None:
    for _ in range(count):
        raw, _ = listening.accept()
        with raw:
            raw.recv(2**16)
            raw.sendall(OK)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "without Date"),
        (b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 3\r\n\r\nok", "2 of 3 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + DATE + b"X : y\r\n\r\n", "no header line"),
        (b"HTTP/1.1 405 Not\r\n" + DATE + b"Content-Length: 0\r\n\r\n", "405 without allow"),
        (OK.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), "beside Transfer-Encoding"),
        (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + OK, "bytes follow"),
        (OK + b"garbage", "without end"),
    ],
)
def test_an_answer_that_breaks_the_rfc_is_found_out(answer: bytes, fault: str) -> None:
    assert [found.status for found in read_answers(OK + OK)] == [200, 200]
    with pytest.raises(AnswerError, match=fault):
        read_answers(answer)
