"""What the vocabulary lacks of a source: refused, or read as unknown tokens, by request, setting or bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from attendant.service.requests.inputs import LONGEST_PIECE, PIECES_MARKED, unknown_pieces
from attendant.service.requests.served import ServedModel
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import Service, events_of, in_process

Start = Callable[..., Service]
TEXT = "c🙂tZ🙂"
PIECES = ["🙂", "Z"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A service of a bundle with this default, and with these settings."""
    with ExitStack() as stack:

        def make(default: bool | None = None, **settings: Any) -> Service:
            generation = {} if default is None else {"allow_unknown": default}
            return stack.enter_context(in_process(tmp_path, manifest={"generation": generation}, **settings))

        yield make


@pytest.mark.parametrize(
    ("bundle", "setting", "request_says", "read"),
    [
        (None, "auto", None, False),
        (True, "auto", None, True),
        (False, "auto", None, False),
        (None, "true", None, True),
        (True, "false", None, False),
        (True, "auto", False, False),
        (True, "true", False, False),
        (None, "false", True, True),
    ],
)
def test_the_request_decides_then_the_setting_then_the_bundle(
    bundle: bool | None, setting: str, request_says: bool | None, read: bool, start: Start
) -> None:
    service = start(bundle, allow_unknown=setting)
    said = {} if request_says is None else {"allow_unknown": request_says}
    statuses = {
        service.generate(inputs=TEXT, **said).status_code,
        service.post("/v1/next-token", source=TEXT, **said).status_code,
        service.post("/v1/score", source=TEXT, target="K", **said).status_code,
        service.post("/v1/explain", source=TEXT, **said).status_code,
        service.post("/v1/explain", source=TEXT, target="K", **said).status_code,
    }
    assert statuses == {200 if read else 422}
    assert service.post("/v1/completions", model="fake", prompt=TEXT, **said).status_code == (200 if read else 400)


def test_the_answer_says_what_was_unknown(start: Start) -> None:
    service = start(True)
    first, second = service.generate(inputs=["cat", TEXT]).json()["outputs"]
    assert "unknown" not in first
    assert second["unknown"] == PIECES
    assert service.post("/v1/next-token", source=TEXT).json()["unknown"] == PIECES
    assert service.post("/v1/score", source=TEXT, target="K").json()["unknown"] == PIECES
    streamed = events_of(service.generate(inputs=TEXT, stream=True).text)
    assert streamed[-1][1]["outputs"][0]["unknown"] == PIECES


def test_texts_with_something_unknown_are_counted(start: Start) -> None:
    service = start(True)
    service.generate(inputs=["cat", TEXT, "Z"])
    service.generate(inputs=TEXT, allow_unknown=False)
    service.post("/v1/completions", model="fake", prompt=TEXT)
    assert service.registry.get_sample_value("attendant_unknown_texts_total", {"model": "fake"}) == 3


def test_targets_are_refused_unless_the_request_says_otherwise(start: Start) -> None:
    service = start(True, allow_unknown="true")
    body = {"source": "cat", "target": "K QQ"}
    assert "vocabulary lacks: 'QQ'" in service.refused("/v1/score", **body)["message"]
    assert service.post("/v1/score", **body, allow_unknown=True).status_code == 200


def test_info_tells_the_default(start: Start) -> None:
    assert start(True).client.get("/v1/info").json()["defaults"] == {"allow_unknown": True}


def test_a_default_that_is_no_switch_is_left_out(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    service = start("yes")  # type: ignore[arg-type]
    assert service.client.get("/v1/info").json()["defaults"] == {}
    assert "allow_unknown takes true, false or null" in caplog.text


def test_what_is_marked_is_bounded(tmp_path: Path) -> None:
    served = ServedModel(FakeEngine(make_bundle(tmp_path, source=2000)), allow_unknown="true")
    text = "".join(chr(0x4E00 + place) for place in range(500))
    found = unknown_pieces(served, text, served.engine.source_tokenizer.encode(text))
    assert len(found) == PIECES_MARKED
    assert max(map(len, found)) <= LONGEST_PIECE
