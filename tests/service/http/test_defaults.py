"""A model's own defaults and languages, from its bundle to the tasks of a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.service.engine.tasks import Generate, NextToken, Options, Score
from tests.support.serving import Service, in_process

GENERATION = {
    "beam_size": 4,
    "length_penalty": 0.5,
    "early_stopping": True,
    "max_length": 12,
    "no_repeat_ngram_size": 3,
    "forced_end": True,
}
LANGUAGES = {"source_prefix": {"en": [5], "fr": [6]}, "target_prefix": {"en": [5], "fr": [6]}, "source_language": "en"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path, manifest={"generation": GENERATION}) as service:
        yield service


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path, manifest={"languages": LANGUAGES}) as service:
        yield service


def options_of(service: Service, path: str = "/v1/generate", **body: Any) -> Options:
    """The options of the task that a request becomes."""
    text = {"inputs": "cat"} if path == "/v1/generate" else {"model": "fake", "prompt": "cat"}
    answer = service.post(path, **text, **body)
    assert answer.status_code == 200, answer.text
    task = service.engine.submitted[-1]
    assert isinstance(task, Generate)
    return task.options


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/completions"])
def test_a_request_that_says_nothing_gets_the_models_defaults(service: Service, path: str) -> None:
    found = options_of(service, path)
    assert (found.beam_size, found.length_penalty, found.max_length, found.no_repeat_ngram_size) == (4, 0.5, 12, 3)
    assert found.early_stopping is True


def test_what_a_request_says_wins(service: Service) -> None:
    found = options_of(
        service, beam_size=1, length_penalty=1.0, early_stopping="never", max_length=None, no_repeat_ngram_size=0
    )
    assert found == Options(max_length=20, early_stopping="never", forced_end=True)


def test_what_a_completion_says_wins(service: Service) -> None:
    found = options_of(
        service, "/v1/completions", beam_size=2, early_stopping="never", max_tokens=7, length_penalty=1.0
    )
    assert (found.beam_size, found.length_penalty, found.max_length) == (2, 1.0, 7)
    assert found.early_stopping == "never"


def test_a_default_length_gives_way_to_the_least_length_of_a_request(service: Service) -> None:
    assert options_of(service, min_length=15).max_length == 16
    assert options_of(service, min_length=5).max_length == 12


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/completions"])
def test_sampling_keeps_no_beam(service: Service, path: str) -> None:
    assert options_of(service, path, temperature=1.0).beam_size == 1


def test_a_beam_by_default_is_as_wide_as_the_hypotheses_asked_for(service: Service) -> None:
    assert options_of(service, num_hypotheses=6).beam_size == 6
    assert options_of(service, "/v1/completions", n=6).beam_size == 6


def test_a_default_beam_is_within_the_services_limit(tmp_path: Path) -> None:
    with in_process(tmp_path, manifest={"generation": GENERATION}, max_beam_size=2) as service:
        assert options_of(service).beam_size == 2


def test_a_default_length_leaves_room_for_the_end(tmp_path: Path) -> None:
    with in_process(tmp_path, manifest={"generation": {"min_length": 5, "max_length": 999}}) as service:
        assert (options_of(service).min_length, options_of(service).max_length) == (5, 20)
        assert options_of(service, max_length=3).min_length == 2


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/completions"])
def test_the_bundles_own_start_tokens_count_in_its_default_lengths(tmp_path: Path, path: str) -> None:
    """As BART has it: forced first tokens and no languages."""
    generation = {"min_length": 5, "max_length": 12, "target_prefix": [5, 6]}
    with in_process(tmp_path, manifest={"generation": generation}) as service:
        assert (options_of(service, path).min_length, options_of(service, path).max_length) == (3, 10)


def test_the_start_tokens_of_a_language_count_in_place_of_the_bundles_own(tmp_path: Path) -> None:
    generation = {"max_length": 12, "target_prefix": [5, 6]}
    with in_process(tmp_path, manifest={"generation": generation, "languages": LANGUAGES}) as service:
        assert options_of(service, target_language="fr").max_length == 11


def test_a_default_that_no_request_could_give_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with in_process(tmp_path, manifest={"generation": {"beam_size": 0, "length_penalty": 2.0}}) as service:
        found = options_of(service)
    assert (found.beam_size, found.length_penalty) == (1, 2.0)
    assert "the bundle's default is left out: beam_size takes" in caplog.text


def test_info_tells_defaults_and_languages(tmp_path: Path) -> None:
    with in_process(tmp_path, manifest={"generation": GENERATION, "languages": LANGUAGES}) as service:
        found = service.client.get("/v1/info").json()
    assert found["defaults"] == {name: value for name, value in GENERATION.items() if name != "forced_end"}
    assert found["languages"] == {
        "source": ["en", "fr"],
        "target": ["en", "fr"],
        "default_source": "en",
        "default_target": None,
    }


def test_languages_reach_every_kind_of_task(many: Service) -> None:
    bare = many.engine.source_tokenizer.encode("cat")
    both = {"source_language": "fr", "target_language": "en"}
    for path, body in (
        ("/v1/generate", {"inputs": "cat"}),
        ("/v1/next-token", {"source": "cat"}),
        ("/v1/score", {"source": "cat", "target": "AA"}),
        ("/v1/completions", {"model": "fake", "prompt": "cat"}),
    ):
        answer = many.post(path, **body, **both)
        assert answer.status_code == 200, answer.text
        task = many.engine.submitted[-1]
        assert isinstance(task, Generate | NextToken | Score)
        assert (task.source, task.start) == ((6, *bare), (5,)), path


def test_a_language_that_is_missing_or_unknown_is_refused_by_its_field(many: Service) -> None:
    assert many.refused(inputs="cat")["field"] == "target_language"
    assert many.refused("/v1/score", source="cat", target="AA", target_language="xx")["field"] == "target_language"


def test_a_text_is_empty_whatever_its_language_adds(many: Service) -> None:
    assert many.refused(inputs="", target_language="en")["message"] == "inputs is empty; give a text."


def test_a_model_of_one_pair_takes_no_language(service: Service) -> None:
    assert service.refused(inputs="cat", source_language="en")["field"] == "source_language"
