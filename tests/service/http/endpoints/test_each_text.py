"""Each text of a request has its own outcome, unless all or nothing is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import Service, in_process

TEXTS = ["cat", "CAT", "dog", "x" * 17, ""]
SENTENCES = {
    1: "inputs[1] has what the model's vocabulary lacks",
    3: "inputs[3] has 17 tokens",
    4: "inputs[4] is empty",
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path / "bundle") as service:
        yield service


def failed_texts(service: Service) -> float:
    return service.registry.get_sample_value("attendant_failed_texts_total", {"model": "fake"}) or 0.0


def test_texts_that_cannot_be_decoded_have_errors_and_the_others_their_answers(service: Service) -> None:
    alone = {text: service.generate(inputs=text).json()["outputs"][0] for text in ("cat", "dog")}
    answer = service.generate(inputs=TEXTS)
    assert answer.status_code == 200
    for place, output in enumerate(answer.json()["outputs"]):
        if place in SENTENCES:
            assert output["hypotheses"] == []
            assert output["error"]["message"].startswith(SENTENCES[place])
            assert (output["error"]["type"], output["error"]["field"]) == ("invalid_field", f"inputs[{place}]")
        else:
            assert output == alone[TEXTS[place]]


def test_they_are_counted_as_texts_and_the_request_as_answered(service: Service) -> None:
    answer = service.generate(inputs=TEXTS)
    assert answer.json()["usage"]["source_tokens"] == 6  # of those that were read
    assert failed_texts(service) == 3
    assert service.outcomes() == {("/v1/generate", "ok"): 1}


def test_a_sample_does_not_depend_on_whether_a_text_before_it_is_refused(service: Service) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 4}
    together = service.generate(inputs=["cat", "CAT", "dog"], **options).json()["outputs"]
    assert together[2] == service.generate(inputs=["cat", "horse", "dog"], **options).json()["outputs"][2]


@pytest.mark.parametrize("body", [{"inputs": TEXTS, "all_or_nothing": True}, {"inputs": ["CAT", "", "x" * 17]}])
def test_all_or_nothing_and_nothing_at_all_are_refused_whole(body: dict[str, Any], service: Service) -> None:
    error = service.refused(**body)
    assert all(sentence in error["message"] for sentence in ("vocabulary lacks", "17 tokens", "is empty"))
    assert not service.engine.submitted
    assert failed_texts(service) == 0


def test_all_or_nothing_is_also_about_what_fails_while_it_is_decoded(service: Service) -> None:
    service.engine.failures[service.engine.source_tokenizer.encode("dog")] = RuntimeError("out of memory")
    assert service.generate(inputs=["cat", "dog"]).status_code == 200
    assert service.generate(inputs=["cat", "dog"], all_or_nothing=True).status_code == 500


@pytest.mark.parametrize("path", ["/v1/completions", "/v2/models/fake/infer"])
def test_dialects_without_a_place_for_the_error_of_a_text_refuse_all(path: str, service: Service) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": ["cat", "CAT"]}
    body = {"inputs": [tensor]} if path.startswith("/v2") else {"model": "fake", "prompt": ["cat", "CAT"]}
    answer = service.post(path, **body)
    assert answer.status_code in (400, 422)
    assert "vocabulary lacks" in answer.text
    assert not service.engine.submitted
