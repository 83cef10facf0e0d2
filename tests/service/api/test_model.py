"""The Python API: the same answers and the same sentences as over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import pytest

import attendant
from attendant import BundleError, InvalidFieldError, Model, NotReadyError, Output, SettingsError
from attendant.service import api
from attendant.service.api.calls import GenerateOptions, NextTokenOptions, TextOptions
from attendant.service.requests.schemas import GenerateRequest, NextTokenRequest, ScoreRequest
from tests.support.serving import Service

ROOT = Path(__file__).parents[3]
WHERE_THEY_APPLY = {"terms_met", "segments"}  # empty here, and absent over HTTP
OVER_HTTP_ONLY = {"stream", "logprobs"}  # log-probabilities are always there


def as_json(output: Output) -> dict[str, Any]:
    """As HTTP has it where tokens are texts already, and are not repeated."""
    rows = [asdict(hypothesis) for hypothesis in output.hypotheses]
    assert all(row.pop("token_texts") == row["tokens"] for row in rows)
    rows = [{name: found for name, found in row.items() if name not in WHERE_THEY_APPLY or found} for row in rows]
    return {"hypotheses": [{**row, "tokens": list(row["tokens"]), "logprobs": list(row["logprobs"])} for row in rows]}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.5},
    {"temperature": 0.8, "seed": 3, "num_hypotheses": 2},
    {"target_prefix": "HH AA", "max_length": 9, "min_length": 3},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_are_those_of_http(model: Model, http: Service, options: dict[str, Any]) -> None:
    texts = ["cat", "horse", "a"]
    over_http = http.post("/v1/generate", inputs=texts, logprobs=True, **options).json()["outputs"]
    assert [as_json(output) for output in model.generate(texts, **options)] == over_http
    assert as_json(model.generate("cat", **options)) == over_http[0]


def test_scores_are_those_of_http(model: Model, http: Service) -> None:
    over_http = http.post("/v1/score", source="cat", target="K AE T").json()
    score = model.score("cat", "K AE T")
    assert score.logprob == over_http["logprob"]
    assert [asdict(token) for token in score.tokens] == over_http["tokens"]


def test_next_tokens_are_those_of_http(model: Model, http: Service) -> None:
    over_http = http.post("/v1/next-token", source="cat", prefix="K AE", top_k=0, temperature=0.5).json()
    found = model.next_token("cat", "K AE", top_k=0, temperature=0.5)
    assert (found.entropy, found.prefix_logprob) == (over_http["entropy"], over_http["prefix_logprob"])
    for ours, theirs in zip(found.tokens, over_http["tokens"], strict=True):
        assert asdict(ours) == theirs
    assert model.next_token("cat", prefix_tokens=("K", "AE"), top_k=0, temperature=0.5) == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": "CAT"},
        {"inputs": ""},
        {"inputs": ["cat", "", "x" * 17], "all_or_nothing": True},
        {"inputs": ["", "x" * 17]},
        {"inputs": 3},
        {"inputs": "cat", "beam_size": 0},
        {"inputs": "cat", "beam_size": 1.5, "top_p": 2.0},
        {"inputs": "cat", "max_length": 21},
        {"inputs": "cat", "num_hypotheses": 2},
        {"inputs": "cat", "target_language": "de"},
    ],
)
def test_what_is_wrong_is_said_as_over_http(model: Model, http: Service, wrong: dict[str, Any]) -> None:
    over_http = http.refused(**wrong)
    with pytest.raises(InvalidFieldError) as caught:
        model.generate(**wrong)
    assert (str(caught.value), caught.value.field) == (over_http["message"], over_http["field"])
    assert isinstance(caught.value, ValueError)


def test_a_text_that_cannot_be_answered_has_an_error_and_the_others_their_answers(model: Model, http: Service) -> None:
    texts = ["cat", "CAT", "dog", "x" * 17]
    over_http = http.post("/v1/generate", inputs=texts, logprobs=True).json()["outputs"]
    outputs = model.generate(texts)
    assert [as_json(outputs[place]) for place in (0, 2)] == [over_http[0], over_http[2]]
    for place in (1, 3):
        error = outputs[place].error
        assert isinstance(error, InvalidFieldError)
        assert (outputs[place].hypotheses, str(error)) == ((), over_http[place]["error"]["message"])
        with pytest.raises(InvalidFieldError, match=rf"inputs\[{place}\]"):
            outputs[place].text  # noqa: B018


@pytest.mark.parametrize("all_or_nothing", [False, True])
def test_a_text_that_fails_while_it_is_decoded_is_like_one_that_is_refused(
    all_or_nothing: bool, model: Model, http: Service
) -> None:
    failure = RuntimeError("out of memory")
    http.engine.failures[http.engine.source_tokenizer.encode("dog")] = failure
    if all_or_nothing:
        with pytest.raises(RuntimeError, match="out of memory"):
            model.generate(["cat", "dog"], all_or_nothing=True)
    else:
        outputs = model.generate(["cat", "dog"])
        assert (outputs[0].error, outputs[1].error) == (None, failure)


@pytest.mark.parametrize("name", ["bem_size", "stream", "logprobs"])
def test_an_option_that_does_not_exist_is_refused_by_name(model: Model, name: str) -> None:
    options: Any = {name: True}
    with pytest.raises(InvalidFieldError, match=rf"{name} is no option; there are inputs, .*beam_size"):
        model.generate("cat", **options)


def test_every_option_of_http_is_there() -> None:
    options = {kind.__name__: set(kind.__annotations__) for kind in (GenerateOptions, NextTokenOptions)}
    assert options["GenerateOptions"] == set(GenerateRequest.model_fields) - {"inputs", "model"} - OVER_HTTP_ONLY
    assert options["NextTokenOptions"] == set(NextTokenRequest.model_fields) - {"source", "prefix", "model"}
    assert set(TextOptions.__annotations__) == set(ScoreRequest.model_fields) - {"source", "target", "model"}


def test_no_texts_have_no_outputs(model: Model) -> None:
    assert model.generate([]) == []


def test_more_texts_than_the_queue_holds_are_answered_in_order(model: Model, http: Service) -> None:
    http.engine.max_queue_requests = 3
    texts = ["cat", "horse", "a", "dog"] * 20
    alone = {text: model.generate(text) for text in set(texts)}
    assert model.generate(texts) == [alone[text] for text in texts]


def test_several_threads_may_call_it(model: Model) -> None:
    texts = ["cat", "horse", "a", "dog"] * 10
    alone = [model.generate(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(model.generate, texts)) == alone


def test_an_error_of_the_engine_is_raised(model: Model, http: Service) -> None:
    http.engine.failure = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        model.generate(["cat", "dog"])


def test_a_closed_model_says_so(model: Model) -> None:
    with model:
        model.generate("cat")
    model.close()
    with pytest.raises(NotReadyError, match="closed"):
        model.generate("cat")


def test_results_cannot_be_changed(model: Model) -> None:
    output = model.generate("cat")
    assert output.text == output.hypotheses[0].text
    with pytest.raises(FrozenInstanceError):
        output.hypotheses = ()  # type: ignore[misc]


def test_the_embedded_model_is_the_default() -> None:
    with Model(threads=1) as model:
        assert model.name == "g2p"
        assert model.generate("attendant").text == "AH0 T EH1 N D AH0 N T"
        assert model.max_source_length == 63
        assert model.source_languages == model.target_languages == []


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nowhere"):
        Model(tmp_path / "nowhere")


def test_a_setting_out_of_its_range_is_named() -> None:
    with pytest.raises(SettingsError, match="provider takes one of auto, cpu, cuda, not 'tpu'"):
        Model(provider="tpu")


def code_blocks(page: str) -> list[str]:
    """The indented blocks of a page, without their indentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"(?<=\n\n)((?:    .*\n|\n(?=    ))+)", text)
    return [textwrap.dedent(block) for block in blocks]


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_program_in_the_documentation_prints_what_is_said(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [block for block in code_blocks(page) if block.startswith("from attendant import Model")]
    (printed,) = [block for block in code_blocks(page) if block.startswith("AH0 T EH1")]
    exec(program, {})
    found = capsys.readouterr().out
    shape = re.sub(r"-?\d+\.\d{3}", "#", printed)
    assert re.sub(r"-?\d+\.\d{3}", "#", found) == shape  # processors round differently
    numbers = [[float(number) for number in re.findall(r"-?\d+\.\d{3}", text)] for text in (found, printed)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.002)


def test_the_documentation_has_every_option_and_every_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    options = {name for kind in (GenerateOptions, NextTokenOptions) for name in kind.__annotations__}
    assert [name for name in (*options, *api.__all__) if f"`{name}`" not in page and f"`{name}(" not in page] == []


def test_importing_it_imports_no_library() -> None:
    heavy = ("numpy", "onnxruntime", "pydantic", "fastapi", "starlette", "tokenizers", "torch")
    code = f"import sys\nfrom attendant import Model\nassert not [name for name in {heavy} if name in sys.modules]"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Modell"):
        attendant.Modell  # noqa: B018


def test_the_package_has_the_names_of_the_api() -> None:
    assert set(attendant.__all__) == {*api.__all__, "main", "__version__"}
    assert all(getattr(attendant, name) is getattr(api, name) for name in api.__all__)
