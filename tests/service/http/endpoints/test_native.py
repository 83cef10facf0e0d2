"""The API over a stand-in engine: answers, relations between them, and everything that is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.service.engine.tasks import Generate
from attendant.service.errors import DeadlineError, InvalidFieldError, NotReadyError, QueueFullError
from attendant.service.http.app import create_app
from attendant.service.requests.planning import input_seed
from attendant.service.settings import Settings
from attendant.service.watch.metrics import OUTCOMES
from tests.support.serving import Service, events_of, in_process

DOCUMENT = Path(__file__).parents[4] / "docs" / "api.md"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with in_process(tmp_path_factory.mktemp("bundle"), max_inputs=50, max_beam_size=8) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    shared.engine.submitted.clear()
    yield shared
    shared.engine.failure = shared.engine.refusal = None
    shared.engine.failures = {}
    shared.engine.resume()


def best(answer: Any, place: int = 0) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["outputs"][place]["hypotheses"][0]
    return found


def test_an_answer_has_the_contracts_fields(service: Service) -> None:
    answer = service.generate(logprobs=True).json()
    assert set(answer) == {"model", "outputs", "usage", "timing"}
    hypothesis = answer["outputs"][0]["hypotheses"][0]
    assert set(hypothesis) == {"text", "tokens", "score", "logprobs", "finish_reason"}
    assert hypothesis["text"].split() == hypothesis["tokens"]
    assert len(hypothesis["logprobs"]) == len(hypothesis["tokens"]) + 1
    assert hypothesis["score"] == pytest.approx(sum(hypothesis["logprobs"]) / len(hypothesis["logprobs"]))
    assert answer["usage"] == {"source_tokens": 3, "target_tokens": 4}
    assert answer["timing"] == {"queue_ms": 1.0, "encode_ms": 2.0, "decode_ms": 3.0}


def test_logprobs_come_only_when_asked_for(service: Service) -> None:
    assert best(service.generate())["logprobs"] is None


def test_many_inputs_are_answered_in_their_order_and_as_if_alone(service: Service) -> None:
    inputs = ["cat", "a", "facade", "dog", "bee"]
    together = service.generate(inputs=inputs).json()["outputs"]
    assert together == [service.generate(inputs=text).json()["outputs"][0] for text in inputs]


def test_options_reach_the_engine(service: Service) -> None:
    service.generate(
        beam_size=4,
        num_hypotheses=3,
        length_penalty=0.5,
        early_stopping="never",
        max_length=9,
        min_length=2,
        repetition_penalty=1.5,
        no_repeat_ngram_size=3,
        target_prefix="K AE",
    )
    (task,) = service.engine.submitted
    assert isinstance(task, Generate)
    options = task.options
    assert (options.beam_size, options.num_hypotheses, options.length_penalty) == (4, 3, 0.5)
    assert (options.max_length, options.min_length, options.repetition_penalty) == (9, 2, 1.5)
    assert (options.no_repeat_ngram_size, options.early_stopping) == (3, "never")
    assert task.prefix == service.engine.target_tokenizer.encode("K AE")


def test_the_answer_starts_with_the_prefix(service: Service) -> None:
    assert best(service.generate(target_prefix="UW P"))["tokens"][:2] == ["UW", "P"]


def test_without_max_length_the_models_limit_holds(service: Service) -> None:
    service.generate()
    assert service.engine.submitted[0].options.max_length == 20  # type: ignore[union-attr]


def test_the_first_input_is_sampled_with_the_seed_and_the_others_with_ones_made_of_it(service: Service) -> None:
    service.generate(inputs=["cat", "cat"], temperature=1.0, seed=7)
    seeds = [task.options.seed for task in service.engine.submitted]  # type: ignore[union-attr]
    assert seeds == [7, input_seed(7, 1)]


def test_without_a_seed_every_request_draws_its_own(service: Service) -> None:
    for _ in range(2):
        service.generate(temperature=1.0)
    assert len({task.options.seed for task in service.engine.submitted}) == 2  # type: ignore[union-attr]


def test_seeds_of_inputs_differ() -> None:
    seeds = {input_seed(seed, place) for seed in range(100) for place in range(100)}
    assert len(seeds) > 9_900
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_more_candidates_than_the_vocabulary_has_are_all_of_them(service: Service) -> None:
    service.generate(temperature=1.0, top_k=10_000)
    assert service.engine.submitted[0].options.top_k == service.engine.target_tokenizer.size  # type: ignore[union-attr]


def test_streamed_is_whole(service: Service) -> None:
    whole = service.generate(inputs="facade", logprobs=True)
    streamed = service.generate(inputs="facade", logprobs=True, stream=True)
    assert streamed.headers["content-type"] == "text/event-stream"
    *tokens, (name, done) = events_of(streamed.text)
    assert name == "done"
    assert done == whole.json()
    hypothesis = best(whole)
    assert [data["token"] for _, data in tokens] == hypothesis["tokens"]
    assert "".join(data["text"] for _, data in tokens) == hypothesis["text"]
    assert [data["logprob"] for _, data in tokens] == hypothesis["logprobs"][:-1]
    assert [data["index"] for _, data in tokens] == list(range(len(tokens)))


def test_a_stream_that_fails_before_it_began_has_its_status(service: Service) -> None:
    service.engine.failure = DeadlineError("the deadline passed.")
    assert service.generate(stream=True).status_code == 504


def test_a_whole_distribution_sums_to_one_and_is_ordered(service: Service) -> None:
    answer = service.post("/v1/next-token", source="cat", prefix="K", top_k=0).json()
    probabilities = [token["probability"] for token in answer["tokens"]]
    assert len(probabilities) == service.engine.target_tokenizer.size
    assert sum(probabilities) == pytest.approx(1, abs=1e-9)
    assert probabilities == sorted(probabilities, reverse=True)
    assert answer["entropy"] == pytest.approx(-sum(p * math.log(p) for p in probabilities))
    assert all(math.exp(t["logprob"]) == pytest.approx(t["probability"]) for t in answer["tokens"])
    assert {token["id"] for token in answer["tokens"]} == set(range(service.engine.target_tokenizer.size))


def test_the_most_probable_are_the_first_of_the_whole_distribution(service: Service) -> None:
    whole = service.post("/v1/next-token", source="cat", top_k=0).json()
    few = service.post("/v1/next-token", source="cat", top_k=5).json()
    assert few["tokens"] == whole["tokens"][:5]
    assert few["entropy"] == whole["entropy"]
    assert len(service.post("/v1/next-token", source="cat").json()["tokens"]) == 10


def test_temperature_divides_the_logits(service: Service) -> None:
    plain = {t["id"]: t for t in service.post("/v1/next-token", source="cat", top_k=0).json()["tokens"]}
    warm = {t["id"]: t for t in service.post("/v1/next-token", source="cat", top_k=0, temperature=2.0).json()["tokens"]}
    first, second = 4, 9
    ratio = warm[first]["logprob"] - warm[second]["logprob"]
    assert ratio == pytest.approx((plain[first]["logprob"] - plain[second]["logprob"]) / 2)


def test_a_prefix_may_be_text_or_tokens(service: Service) -> None:
    by_text = service.post("/v1/next-token", source="cat", prefix="K AE").json()
    assert service.post("/v1/next-token", source="cat", prefix_tokens=["K", "AE"]).json() == by_text
    assert (
        "leave one out" in service.refused("/v1/next-token", source="cat", prefix="K", prefix_tokens=["K"])["message"]
    )


def test_scored_is_generated_and_distributed(service: Service) -> None:
    hypothesis = best(service.generate(logprobs=True, length_penalty=0))
    scored = service.post("/v1/score", source="cat", target=hypothesis["text"]).json()
    assert scored["logprob"] == pytest.approx(hypothesis["score"])
    assert [token["token"] for token in scored["tokens"]] == [*hypothesis["tokens"], "<end of text>"]
    first = service.post("/v1/next-token", source="cat", prefix=hypothesis["text"]).json()
    assert first["prefix_logprob"] == pytest.approx(sum(token["logprob"] for token in scored["tokens"][:-1]))


def test_an_empty_target_can_be_scored(service: Service) -> None:
    assert len(service.post("/v1/score", source="cat", target="").json()["tokens"]) == 1


def test_info_tells_what_serves_and_its_limits(service: Service) -> None:
    info = service.client.get("/v1/info").json()
    assert (info["model"], info["precision"], info["provider"]) == ("fake", "fp32", "cpu")
    assert info["limits"]["max_source_length"] == 16
    assert info["limits"]["max_inputs"] == 50
    assert info["certificate"]["drift"] == service.engine.drift


@pytest.mark.parametrize(
    ("body", "field", "sentence"),
    [
        ({"inputs": ""}, "inputs", "inputs is empty"),
        ({"inputs": ["cat", ""], "all_or_nothing": True}, "inputs[1]", "inputs[1] is empty"),
        ({"inputs": ["", ""]}, "inputs[0]", "inputs[0] is empty; give a text. inputs[1] is empty"),
        ({"inputs": "a" * 17}, "inputs", "inputs has 17 tokens; this model takes at most 16"),
        ({"inputs": "a" * 1_000_000}, "inputs", "inputs has 1000000 characters"),
        ({"inputs": ["a"] * 10_000}, "inputs", "inputs has 10000 texts; send at most 50"),
        ({"inputs": "CAT"}, "inputs", "vocabulary lacks: 'C', 'A', 'T'"),
        ({"inputs": "c\u0000t"}, "inputs", "vocabulary lacks: '\\x00'"),
        ({"inputs": ["cat", "x1", "Y"], "all_or_nothing": True}, "inputs[1]", "lacks: 'Y'"),
        ({"beam_size": 10_000}, "beam_size", "beam_size takes a whole number from 1 to 8 here, not 10000"),
        ({"temperature": 1.0, "num_hypotheses": 9}, "num_hypotheses", "from 1 to 8 here, not 9"),
        ({"num_hypotheses": 2}, "num_hypotheses", "at most beam_size hypotheses can be answered"),
        ({"max_length": 21}, "max_length", "max_length takes a whole number from 1 to 20 with this model, not 21"),
        ({"min_length": 20}, "min_length", "it must be below max_length, 20"),
        ({"max_length": 5, "min_length": 5}, "min_length", "it must be below max_length, 5"),
        ({"top_k": 5}, "top_k", "top_k is for sampling; give a temperature too"),
        ({"top_p": 0.5}, "top_p", "top_p is for sampling"),
        ({"temperature": 1.0, "beam_size": 2}, "beam_size", "sampling takes beam_size 1"),
        ({"inputs": ["cat", "dog"], "stream": True}, "stream", "stream takes one input, not 2"),
        ({"temperature": 1.0, "num_hypotheses": 2, "stream": True}, "stream", "stream takes one sample"),
        ({"target_prefix": "K QQ"}, "target_prefix", "vocabulary lacks: 'QQ'"),
        ({"target_prefix": "K K K", "max_length": 3}, "target_prefix", "3 tokens, 4 with the end token; 3 fit"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    body: dict[str, Any], field: str, sentence: str, service: Service
) -> None:
    error = service.refused(**{"inputs": "cat", **body})
    assert sentence in error["message"]
    assert error["field"] == field
    assert not service.engine.submitted


def test_contradictions_are_told_together(service: Service) -> None:
    message = service.refused(inputs="cat", beam_size=99, top_k=3, max_length=1000)["message"]
    assert all(name in message for name in ("beam_size takes", "top_k is for sampling", "max_length takes"))


@pytest.mark.parametrize("options", [b"", b', "split": "sentences"', b', "format": "html"', b', "split": "lines"'])
def test_a_lone_surrogate_is_refused_by_its_field(options: bytes, service: Service) -> None:
    answer = service.client.post("/v1/generate", content=rb'{"inputs": ["C", "c\ud800t"]%s}' % options)
    assert answer.status_code == 422
    assert "lone surrogate (U+D800" in answer.json()["error"]["message"]
    assert answer.json()["error"]["field"] == "inputs[0]"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/generate", {"inputs": ["cat"]}, "inputs"),
        ("/v1/generate", {"inputs": "cat", "stream": True}, "inputs"),
        ("/v1/next-token", {"source": "cat"}, "source"),
        ("/v1/score", {"source": "cat", "target": "K"}, "source"),
    ],
)
def test_what_the_engine_could_never_queue_is_refused_by_its_own_field(
    path: str, body: dict[str, Any], field: str, service: Service
) -> None:
    service.engine.refusal = InvalidFieldError("more than the queue holds.", "inputs")
    error = service.refused(path, **body)
    assert (error["message"], error["field"]) == ("more than the queue holds.", field)


def test_a_prefix_that_is_none_is_refused(service: Service) -> None:
    refused = service.refused("/v1/next-token", source="cat", prefix_tokens=["K", "<end of text>"])
    assert refused["field"] == "prefix_tokens[1]"
    assert "no token" in service.refused("/v1/next-token", source="cat", prefix_tokens=["K", "nothing"])["message"]


def test_a_full_queue_is_429_with_the_computed_wait(service: Service) -> None:
    service.engine.refusal = QueueFullError("the queue is full; try again in 7 s.", 7)
    answer = service.generate()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["type"] == "queue_full"


def test_what_the_engine_raises_is_answered_by_its_kind(service: Service) -> None:
    for failure, status in ((DeadlineError("late."), 504), (NotReadyError("stopping."), 503)):
        service.engine.failure = failure
        answer = service.generate()
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, failure.message)


def test_an_input_that_reaches_its_deadline_empty_handed_leaves_the_others_their_answers(service: Service) -> None:
    alone = service.generate(inputs=["cat", "bee"]).json()
    service.engine.failures = {service.engine.source_tokenizer.encode("dog"): DeadlineError("the deadline passed.")}
    answer = service.generate(inputs=["cat", "dog", "bee"]).json()
    assert [answer["outputs"][0], answer["outputs"][2]] == alone["outputs"]
    late = answer["outputs"][1]
    assert (late["hypotheses"], late["error"]["type"], late["error"]["field"]) == ([], "deadline", None)
    assert "the deadline passed" in late["error"]["message"]
    assert answer["usage"]["target_tokens"] == alone["usage"]["target_tokens"]


def test_an_input_that_fails_is_opaque_and_leaves_the_others_their_answers(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.engine.failures = {service.engine.source_tokenizer.encode("dog"): RuntimeError("a secret of the inside")}
    answer = service.generate(inputs=["cat", "dog"])
    assert answer.status_code == 200
    assert answer.json()["outputs"][1]["error"]["type"] == "internal_error"
    assert answer.headers["x-request-id"] in answer.json()["outputs"][1]["error"]["message"]
    assert "secret" not in answer.text
    assert "a secret of the inside" in caplog.text


def test_a_request_whose_inputs_all_fail_fails(service: Service) -> None:
    service.engine.pause_after = 0
    answer = service.generate(inputs=["cat", "dog"], timeout_ms=50)
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "deadline")


def test_a_deadline_answers_with_the_best_so_far(service: Service) -> None:
    service.engine.pause_after = 2
    found = best(service.generate(inputs="facade", timeout_ms=3000))
    assert found["finish_reason"] == "deadline"
    assert len(found["tokens"]) == 2


def test_the_setting_is_the_deadline_of_a_request_that_names_none(tmp_path: Path) -> None:
    with in_process(tmp_path, timeout_ms=30) as service:
        service.engine.pause_after = 0
        assert service.generate().status_code == 504


def test_outcomes_add_up_whatever_was_asked(tmp_path: Path) -> None:
    with in_process(tmp_path) as service:
        service.generate()
        service.generate(stream=True)
        service.generate(beam_size=0)
        service.client.post("/v1/generate", content=b"{")
        service.client.get("/v1/generate")
        service.client.get("/nothing")
        service.client.post("/v1/generate", content=b"x" * 2**21)
        service.engine.refusal = QueueFullError("full.", 1)
        service.generate()
        service.engine.refusal, service.engine.failure = None, RuntimeError("boom")
        service.generate()
        assert service.outcomes() == {
            ("/v1/generate", "ok"): 2,
            ("/v1/generate", "invalid_field"): 1,
            ("/v1/generate", "invalid_json"): 1,
            ("/v1/generate", "not_found"): 1,
            ("/v1/generate", "body_too_large"): 1,
            ("/v1/generate", "queue_full"): 1,
            ("/v1/generate", "internal_error"): 1,
            ("other", "not_found"): 1,
        }
        assert set(OUTCOMES) >= {outcome for _, outcome in service.outcomes()}


def test_the_documentation_has_every_field_of_the_schema() -> None:
    schema = create_app(Settings()).openapi()
    text = DOCUMENT.read_text(encoding="utf-8")
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert f"`{method.upper()} {path}`" in text, path
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = _resolved(schema, content.get("schema", {}))
            assert not body or _rows(body) == _table(text, path), path
    for name in (
        "HypothesisResponse",
        "UsageResponse",
        "TimingResponse",
        "TokenProbability",
        "ScoredToken",
        "InfoResponse",
        "ModelResponse",
        "ExplainResponse",
        "ExplainedText",
        "TokenSpan",
        "DecoderInput",
        "ExplainedStep",
        "AttentionResponse",
        "AlignmentResponse",
        "BeamNodeResponse",
        "ExplainTiming",
        "IncludedResponse",
        "StructureResponse",
        "AblatedResponse",
    ):
        for field, about in schema["components"]["schemas"][name]["properties"].items():
            assert [f"`{field}`", about["x-unit"], about["description"]] in _cells(text), field


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema behind its reference, which may be one of two where a body may be left out."""
    for candidate in (schema, *schema.get("anyOf", [])):
        if "$ref" in candidate:
            found: dict[str, Any] = document["components"]["schemas"][candidate["$ref"].rpartition("/")[-1]]
            return found
    return schema


def _rows(body: dict[str, Any]) -> list[list[str]]:
    required = body.get("required", [])
    return [
        [
            f"`{name}`",
            "required" if name in required else f"`{json.dumps(about.get('default'))}`",
            about.get("x-unit", ""),
            about["x-takes"],
            about["description"],
        ]
        for name, about in body.get("properties", {}).items()
    ]


def _table(text: str, path: str) -> list[list[str]]:
    """The rows of the request's fields below an endpoint's heading."""
    section = text.split(f"\n## `POST {path}`\n", 1)[-1].split("\n## ", 1)[0]
    return [cells for cells in _cells(section) if len(cells) == 5]


def _cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
