"""Phrases of a request as constraints, and what is refused, on a small random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import read_bundle
from attendant.service.engine.engine import Engine
from attendant.service.engine.tasks import Generate
from attendant.service.errors import InvalidFieldError, StartError
from attendant.service.openai.chat import as_completion
from attendant.service.openai.chat_schemas import ChatRequest
from attendant.service.openai.completion_plan import plan_completion
from attendant.service.openai.schemas import CompletionRequest
from attendant.service.requests.constraints import TERMS_BEAM
from attendant.service.requests.content import output_content
from attendant.service.requests.planning import plan_next_token, plan_texts
from attendant.service.requests.schemas import GenerateRequest, NextTokenRequest
from attendant.service.requests.served import ServedModel
from attendant.service.requests.validation import validate
from attendant.service.settings import Settings
from attendant.service.text.glossary import directory_of
from tests.support.engines import make_bundle, make_engine
from tests.support.small_models import make_model

SETTINGS = Settings(max_phrases=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("constraints") / "small"
    make_bundle(make_model(), out, ("fp32",))
    directory_of(out).mkdir()
    (directory_of(out) / "office.tsv").write_text("abc\tA B\tC\nd\tD\n", encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[ServedModel]:
    engine = make_engine(read_bundle(directory))
    yield ServedModel(engine)
    engine.close()


def plan(served: ServedModel, *inputs: str, **fields: Any) -> list[Generate]:
    request = validate(GenerateRequest, {"inputs": list(inputs) or ["abc"], "all_or_nothing": True, **fields})
    return plan_texts(request, served, SETTINGS).tasks


def decode(served: ServedModel, tasks: list[Generate]) -> list[list[dict[str, Any]]]:
    assert isinstance(served.engine, Engine)
    results = served.engine.run(tasks)
    return [output_content(served, result, False)["hypotheses"] for result in results]


def test_terms_come_and_the_answer_says_so(served: ServedModel) -> None:
    tasks = plan(served, "abc", "fed", terms=["G", {"source": "d", "target": ["F", "E"]}], max_length=20)
    for found, count in zip(decode(served, tasks), (1, 1), strict=True):
        words = found[0]["text"].split()
        assert "G" in words
        assert [term["met"] for term in found[0]["terms_met"]] == [True] * count
    (alone,) = decode(served, plan(served, "a d", terms=[{"source": "d", "target": ["F", "E"]}], allow_unknown=True))
    assert {"F", "E"} & set(alone[0]["text"].split())
    assert alone[0]["terms_met"][0]["source"] == "d"


def test_a_glossary_applies_where_its_sources_are(served: ServedModel) -> None:
    first, second = plan(served, "abc", "abcabc", glossary="office")
    assert first.constraints is not None
    assert [term.source for term in first.constraints.terms] == ["abc"]
    assert second.constraints is None
    assert first.options.beam_size == TERMS_BEAM
    (found,) = decode(served, [first])
    assert found[0]["terms_met"][0]["met"]


def test_a_requests_own_term_comes_before_the_glossarys(served: ServedModel) -> None:
    (task,) = plan(
        served, "abc", glossary="office", terms=[{"source": "ABC", "target": "G"}, {"source": "abc", "target": "E"}]
    )
    assert task.constraints is not None
    assert [form.text for term in task.constraints.terms for form in term.forms] == ["E"]


def test_a_request_without_phrases_has_no_constraints(served: ServedModel) -> None:
    (task,) = plan(served, terms=[], forbid=[], choices=[])
    assert task.constraints is None
    assert task.options.beam_size == 1


def test_choices_and_forbidden_phrases_hold(served: ServedModel) -> None:
    for options in ({}, {"beam_size": 3}, {"temperature": 1.0, "seed": 3}):
        (chosen,) = decode(served, plan(served, choices=["A B", "C"], **options))
        assert chosen[0]["text"] in ("A B", "C")
        (free,) = decode(served, plan(served, forbid="A", max_length=12, **options))
        assert "A" not in free[0]["text"].split()


def test_equal_phrases_are_read_once(served: ServedModel) -> None:
    first, second = (plan(served, choices=["A B", "C"])[0].constraints for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.choices is second.choices
    assert plan(served, choices=["A B"])[0].constraints != first


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"terms": [" "]}, "terms[0].target", "terms[0].target is empty; give a text."),
        ({"terms": ["A", "Z"]}, "terms[1].target", "has what the model's vocabulary lacks: 'Z'; leave it out."),
        ({"terms": [{"target": ["A", "Z"]}]}, "terms[0].target[1]", "terms[0].target[1] has what"),
        ({"terms": [{"target": []}]}, "terms[0].target", "terms[0].target takes a text or a list of texts"),
        ({"terms": [{"source": " ", "target": "A"}]}, "terms[0].source", "terms[0].source is empty"),
        ({"terms": [{"tagret": "A"}]}, "terms[0].target", "did you mean target?"),
        ({"terms": [3]}, "terms[0]", "terms[0] takes a text, or an object with target and source, not 3."),
        ({"terms": ["A"] * 5}, "terms", "terms has 5 phrases; it takes at most 4."),
        ({"terms": [{"target": ["A"] * 5}]}, "terms[0].target", "it takes at most 4."),
        ({"terms": ["\ud800"]}, "terms[0].target", "lone surrogate"),
        ({"terms": ["A B"], "max_length": 1}, "terms", "take 2 tokens, and 1 fit into max_length ('A B')"),
        ({"terms": ["A B", "C"], "max_length": 3, "target_prefix": "D"}, "terms", "take 3 tokens, and 2 fit"),
        ({"terms": ["A B"], "forbid": "B"}, "terms", "the term 'A B' has a phrase that is forbidden"),
        ({"terms": ["A A"], "no_repeat_ngram_size": 1}, "terms", "the term 'A A' has an n-gram twice"),
        ({"terms": ["A"], "temperature": 1.0}, "terms", "terms is for beam search"),
        ({"glossary": "office", "beam_size": 1}, "glossary", "takes a beam_size of at least 2, not 1"),
        ({"glossary": "home"}, "glossary", "glossary is 'home'; this model has: office."),
        ({"forbid": "A", "target_prefix": "A B"}, "target_prefix", "has a phrase that is forbidden"),
        ({"forbid": ["A", ""]}, "forbid[1]", "forbid[1] is empty"),
        ({"choices": ["A", "Z"]}, "choices[1]", "choices[1] has what the model's vocabulary lacks"),
        ({"choices": ["A B C"], "max_length": 3}, "choices", "has an answer of 3 tokens, 4 with the end token; 3 fit"),
        ({"choices": ["A"], "target_prefix": "B"}, "target_prefix", "no choice starts with target_prefix"),
        ({"choices": ["A"], "forbid": "B"}, "choices", "choices are whole answers; leave out forbid, or choices."),
        ({"choices": ["A"], "min_length": 2}, "choices", "leave out min_length, or choices."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_sentence(
    served: ServedModel, fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        plan(served, **fields)
    assert sentence in caught.value.message
    assert caught.value.field == field


def test_terms_that_do_not_fit_refuse_their_own_text_alone(served: ServedModel) -> None:
    request = validate(
        GenerateRequest, {"inputs": ["abc", "d"], "max_length": 1, "terms": [{"source": "abc", "target": "A B"}]}
    )
    planned = plan_texts(request, served, SETTINGS)
    assert [*planned.refused] == [0]
    assert len(planned.tasks) == 1


def test_the_next_token_obeys_what_forbids_and_chooses(served: ServedModel) -> None:
    def of(**fields: Any) -> Any:
        return plan_next_token(validate(NextTokenRequest, {"source": "abc", **fields}), served, SETTINGS).constraints

    assert of() is None
    assert of(forbid="A").forbidden.next_tokens(()) == set(served.engine.target_tokenizer.encode("A"))
    assert of(choices=["A"]).choices.answers == (served.engine.target_tokenizer.encode("A"),)
    with pytest.raises(InvalidFieldError, match="no choice starts with prefix"):
        of(choices=["A"], prefix="B")


def test_openai_requests_take_the_same_phrases(served: ServedModel) -> None:
    fields = {"terms": ["G"], "glossary": "office", "forbid": ["F"]}
    completion = validate(CompletionRequest, {"model": "small", "prompt": "abc", **fields})
    chat = validate(ChatRequest, {"model": "small", "messages": [{"role": "user", "content": "abc"}], **fields})
    (native,) = plan(served, **fields)
    for request in (completion, as_completion(chat)):
        (task,) = plan_completion(request, served, SETTINGS).tasks
        assert task.constraints == native.constraints
        assert task.options == native.options
    with pytest.raises(InvalidFieldError, match="terms is for beam search"):
        plan_completion(completion.model_copy(update={"temperature": 1.0}), served, SETTINGS)


def test_a_wrong_glossary_refuses_its_bundle(directory: Path) -> None:
    path = directory_of(directory) / "bad.tsv"
    path.write_text("a\tZ\n", encoding="utf-8")
    try:
        with pytest.raises(StartError, match=r"bad\.tsv: 'Z', for 'a', has what the model's vocabulary lacks"):
            make_engine(read_bundle(directory))
    finally:
        path.unlink()
