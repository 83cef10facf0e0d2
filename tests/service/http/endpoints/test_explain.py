"""POST /v1/explain over real engines: answers that agree with the other endpoints, and all that is refused."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from attendant.model.text.tokenizer import learn
from attendant.service.http.app import create_app
from attendant.service.requests.explain_response import word_pairs
from attendant.service.requests.explain_schemas import ExplainRequest, ExplainResponse
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.settings import Settings
from tests.support.engines import make_bundle, make_engine
from tests.support.small_models import make_model

KINDS = ["encoder", "decoder", "cross"]
LANGUAGES = {
    "source_prefix": {"de": [5], "fr": [6]},
    "target_prefix": {"de": [7], "en": [8]},
    "source_language": "de",
    "target_language": "en",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    bundle = make_bundle(make_model(seed=3), tmp_path_factory.mktemp("explain") / "small")
    with serving(bundle) as client:
        yield client


def serving(bundle: Any, **settings: Any) -> TestClient:
    engine = make_engine(bundle)
    engine.start()
    return TestClient(create_app(Settings(**settings), engine), raise_server_exceptions=False)


def answered(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/explain", json={"source": "abcde", **body})
    assert answer.status_code == 200, answer.text
    ExplainResponse.model_validate_json(answer.content, strict=True, extra="forbid")
    found: dict[str, Any] = answer.json()
    check(found)
    return found


def check(found: dict[str, Any]) -> None:
    """What holds of every answer."""
    source, target = found["source"], found["target"]
    sizes = {"source": len(source["tokens"]), "target": len(target["tokens"])}
    sizes["decoder_inputs"] = len(found["decoder_inputs"])
    offset = sizes["decoder_inputs"] - sizes["target"]
    for attention in found["attention"]:
        assert attention["shape"][2:] == [sizes[attention["rows"]], sizes[attention["columns"]]]
        if found["encoding"] == "json":
            values = np.array(attention["values"])
            assert list(values.shape) == attention["shape"]
            assert np.abs(values.sum(-1) - 1).max() < 1e-4
            if attention["kind"] == "decoder":
                assert (np.triu(values, offset + 1) == 0).all()
    for side in (source, target):
        for token in side["tokens"]:
            if token["start"] is not None:
                assert side["text"][token["start"] : token["end"]].strip() == token["text"].strip()
    assert [step["id"] for step in found["steps"]] == [token["id"] for token in target["tokens"]]
    inputs = [entry["id"] for entry in found["decoder_inputs"] if entry["index"] is not None]
    assert inputs == [token["id"] for token in target["tokens"][:-1]]
    for pair in found["alignment"]["pairs"].split():
        place, other = map(int, pair.split("-"))
        assert source["tokens"][place]["start"] is not None
        assert target["tokens"][other]["start"] is not None


def refused(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/explain", json={"source": "abcde", **body})
    assert answer.status_code == 422, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_options_are_those_of_generate() -> None:
    """But for those of whole texts: it explains one source of the model."""
    missing = set(GenerateRequest.model_fields) - set(ExplainRequest.model_fields)
    whole_texts = {"split", "format", "protect", "protect_pattern"}
    assert missing == {"inputs", "logprobs", "stream", "all_or_nothing"} | whole_texts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 4, "num_hypotheses": 3},
        {"temperature": 1.0, "seed": 5, "num_hypotheses": 2},
        {"target_prefix": "A B", "max_length": 9},
        {"max_length": 3, "repetition_penalty": 1.5},
    ],
)
def test_hypotheses_are_those_of_generate(client: TestClient, options: dict[str, Any]) -> None:
    found = answered(client, **options)
    plain = client.post("/v1/generate", json={"inputs": "abcde", "logprobs": True, **options}).json()
    assert found["hypotheses"] == plain["outputs"][0]["hypotheses"]
    assert found["target"]["text"] == found["hypotheses"][0]["text"]
    assert [step["logprob"] for step in found["steps"]] == found["hypotheses"][0]["logprobs"]
    assert found["usage"] == plain["usage"]


@pytest.mark.parametrize("options", [{}, {"beam_size": 4, "num_hypotheses": 4}, {"beam_size": 3, "target_prefix": "B"}])
def test_the_trees_answered_hypotheses_are_those_of_generate(client: TestClient, options: dict[str, Any]) -> None:
    found = answered(client, max_length=12, **options)
    nodes = {node["node"]: node for step in found["tree"] for node in step}
    assert list(nodes) == list(range(1, len(nodes) + 1))
    prefix = options.get("target_prefix", "").split()
    told = {}
    for node in nodes.values():
        if node["hypothesis"] is not None:
            told[node["hypothesis"]] = (node["score"], prefix + path_of(nodes, node))
    plain = client.post("/v1/generate", json={"inputs": "abcde", "max_length": 12, **options}).json()
    for place, hypothesis in enumerate(plain["outputs"][0]["hypotheses"]):
        score, tokens = told.pop(place)
        end = ["<end of text>"] if hypothesis["finish_reason"] == "stop" else []
        assert tokens == hypothesis["tokens"] + end
        assert score == pytest.approx(hypothesis["score"])
    assert not told


def path_of(nodes: dict[int, Any], node: dict[str, Any]) -> list[str]:
    before = path_of(nodes, nodes[node["parent"]]) if node["parent"] else []
    return [*before, node["token"]]


def test_samples_and_given_targets_have_no_tree(client: TestClient) -> None:
    assert answered(client, temperature=1.0, seed=1)["tree"] is None
    assert answered(client, target="A")["tree"] is None


def test_steps_of_a_given_target_are_those_of_score_and_next_token(client: TestClient) -> None:
    found = answered(client, target="B A G", alternatives=3)
    scored = client.post("/v1/score", json={"source": "abcde", "target": "B A G"}).json()
    assert [step["logprob"] for step in found["steps"]] == [token["logprob"] for token in scored["tokens"]]
    assert found["hypotheses"] is None
    for count, step in enumerate(found["steps"]):
        prefix = ["B", "A", "G"][:count]
        body = {"source": "abcde", "prefix_tokens": prefix, "top_k": 3}
        softmax = client.post("/v1/next-token", json=body).json()
        assert step["entropy"] == pytest.approx(softmax["entropy"], abs=1e-6)
        assert [other["id"] for other in step["alternatives"]] == [token["id"] for token in softmax["tokens"]]


def test_target_tokens_are_the_target(client: TestClient) -> None:
    by_text, by_tokens = answered(client, target="B A"), answered(client, target_tokens=["B", "A"])
    for answer in (by_text, by_tokens):
        answer.pop("timing")
    assert by_text == by_tokens
    assert answered(client, target="")["target"] == {
        "text": "",
        "tokens": [{**by_text["target"]["tokens"][-1]}],
    }


def test_encodings_tell_the_same_weights(client: TestClient) -> None:
    plain = answered(client, attention=KINDS)["attention"]
    for encoding, dtype, scale, step in (("float16", "<f2", 1, 2**-11), ("uint8", "u1", 255, 0.0021)):
        found = answered(client, attention=KINDS, encoding=encoding)["attention"]
        for one, other in zip(found, plain, strict=True):
            values = np.frombuffer(base64.b64decode(one["values"]), dtype).reshape(one["shape"]) / scale
            assert np.abs(values - np.array(other["values"])).max() <= step


def test_layers_and_heads_are_chosen_and_averaged(client: TestClient) -> None:
    (every,) = answered(client)["attention"]
    (some,) = answered(client, layers=[1], heads=[0])["attention"]
    (mean,) = answered(client, average="heads")["attention"]
    values = np.array(every["values"])
    assert np.array(some["values"]) == pytest.approx(values[1:2, 0:1])
    assert np.array(mean["values"]) == pytest.approx(values.mean(1, keepdims=True), abs=2e-6)
    assert (some["layers"], some["heads"], mean["shape"][1]) == ([1], [0], 1)
    assert answered(client, attention=[])["attention"] == []
    assert [one["kind"] for one in answered(client, attention=["cross", "encoder", "cross"])["attention"]] == [
        "cross",
        "encoder",
    ]


def test_the_alignment_is_the_largest_weight_of_what_it_names(client: TestClient) -> None:
    for body in ({}, {"alignment_layer": 0, "alignment_heads": [1]}, {"alignment_layer": 0}):
        found = answered(client, **body)
        alignment, (cross,) = found["alignment"], found["attention"]
        weights = np.array(cross["values"])[alignment["layer"], alignment["heads"]].mean(0)[:, :5]
        texts = sum(token["start"] is not None for token in found["target"]["tokens"])
        expected = " ".join(f"{place}-{i}" for i, place in enumerate(weights.argmax(1)[:texts]))
        assert alignment["pairs"] == expected
        assert alignment["chosen_by"] == ("request" if body else "default")
    mutual = answered(client, alignment_method="mutual")["alignment"]["pairs"].split()
    assert len({pair.split("-")[0] for pair in mutual}) == len(mutual)
    assert set(mutual) <= set(answered(client)["alignment"]["pairs"].split())


def test_the_bundles_choice_aligns(tmp_path: Path) -> None:
    chosen = {"layer": 0, "heads": [1], "method": "mutual", "agreement": 0.9}
    bundle = dataclasses.replace(make_bundle(make_model(), tmp_path / "b", ("fp32",)), alignment=chosen)
    with serving(bundle) as client:
        alignment = answered(client)["alignment"]
    assert {name: alignment[name] for name in ("layer", "heads", "method", "chosen_by")} == {
        "layer": 0,
        "heads": [1],
        "method": "mutual",
        "chosen_by": "bundle",
    }


def test_words_of_aligned_tokens_are_paired_with_their_places() -> None:
    source_spans = [(0, 2), (2, 5), (6, 7), None]
    target_spans = [(0, 3), (4, 6), (6, 8)]
    found = word_pairs("hello w", "der Welt", source_spans, target_spans, [(0, 0), (1, 0), (2, 1), (2, 2)])
    assert found == [
        {"source": {"start": 0, "end": 5}, "target": {"start": 0, "end": 3}},
        {"source": {"start": 6, "end": 7}, "target": {"start": 4, "end": 8}},
    ]
    assert [one["target"] for one in word_pairs("a", "日本", [(0, 1)], [(0, 1), (1, 2)], [(0, 0), (0, 1)])] == [
        {"start": 0, "end": 1},
        {"start": 1, "end": 2},
    ]


def test_words_that_one_token_touches_are_one_so_pairs_are_no_product_of_the_texts() -> None:
    long = "\N{CJK UNIFIED IDEOGRAPH-5B57}" * 20_000
    assert word_pairs(long, long, [(0, 20_000), None], [(0, 20_000)], [(0, 0)]) == [
        {"source": {"start": 0, "end": 20_000}, "target": {"start": 0, "end": 20_000}}
    ]
    assert word_pairs(
        "of the sea", "am Meer", [(1, 5), (7, 10)], [(0, 2), (3, 7), (2, 3)], [(0, 0), (1, 1), (1, 2)]
    ) == [
        {"source": {"start": 0, "end": 6}, "target": {"start": 0, "end": 2}},
        {"source": {"start": 7, "end": 10}, "target": {"start": 3, "end": 7}},
    ]


def test_languages_are_read_and_not_aligned(tmp_path: Path) -> None:
    bundle = dataclasses.replace(make_bundle(make_model(seed=2), tmp_path / "b", ("fp32",)), languages=LANGUAGES)
    with serving(bundle) as client:
        found = answered(client, attention=KINDS, source_language="fr", target_language="de")
        assert [token["id"] for token in found["source"]["tokens"][:2]] == [6, 4]
        assert found["source"]["tokens"][0]["start"] is None
        assert [entry["id"] for entry in found["decoder_inputs"][:2]] == [2, 7]
        given = answered(client, target="A B", attention=KINDS)
        assert [entry["id"] for entry in given["decoder_inputs"]] == [2, 8, 4, 5]
        assert refused(client, source_language="xx")["field"] == "source_language"


@pytest.mark.parametrize(
    "text", ["שלום עולם", "👩‍👩‍👧 and 🏳️‍🌈", "e\u0301é", "<b>&amp;</b>", "日本語", "a  b\tc\nd", "\u202eabc\u202c"]
)
def test_any_script_is_explained_down_to_its_bytes(byte_client: TestClient, text: str) -> None:
    answer = byte_client.post("/v1/explain", json={"source": text, "target": text, "attention": KINDS})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    for side in (found["source"], found["target"]):
        assert side["text"] == text
        covered = {place for t in side["tokens"] if t["start"] is not None for place in range(t["start"], t["end"])}
        assert {place for place, character in enumerate(text) if not character.isspace()} <= covered
    free = byte_client.post("/v1/explain", json={"source": text, "max_length": 12, "alternatives": 0}).json()
    assert all(0 <= t["start"] <= t["end"] <= len(free["target"]["text"]) for t in free["target"]["tokens"][:-1])


@pytest.fixture(scope="module")
def byte_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("bytes")
    learnt = learn("bpe:270", ["the quick brown fox"])
    model = make_model(source_vocab=learnt.size, target_vocab=learnt.size, max_length=80)
    bundle = make_bundle(model, directory / "small", ("fp32",))
    learnt.save(directory / "bpe.json")
    tokenizers = dict.fromkeys(("source", "target"), directory / "bpe.json")
    with serving(dataclasses.replace(bundle, tokenizers=tokenizers)) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"target": "A", "target_tokens": ["A"]}, "both given"),
        ({"target": "A", "beam_size": 2}, "beam_size is of a search, and target is given"),
        ({"target_tokens": [], "seed": 1}, "seed is of a search, and target_tokens is given"),
        ({"layers": [2]}, "layers takes whole numbers from 0 to 1 of cross attention with this model, not 2."),
        ({"heads": [0, 7]}, "heads takes whole numbers from 0 to 1 with this model, not 7."),
        ({"layers": [0] * 1000, "average": "both"}, "layers names 0 more than once; name each once."),
        ({"heads": [1, 0, 1]}, "heads names 1 more than once"),
        ({"alignment_heads": [0] * 1000}, "alignment_heads names 0 more than once"),
        ({"layers": []}, "layers takes a list of whole numbers from 0, or null"),
        ({"layers": [-1]}, "layers[0] takes a whole number from 0, not -1."),
        ({"attention": ["self"]}, "attention[0] takes encoder, decoder or cross"),
        ({"include": ["nope"]}, "include[0] takes structure, qkv, scores"),
        ({"alignment_layer": 9}, "alignment_layer takes whole numbers from 0 to 1"),
        ({"alignment_heads": [2]}, "alignment_heads takes whole numbers from 0 to 1"),
        ({"alignment_method": "gold"}, "alignment_method takes argmax, mutual or null"),
        ({"encoding": "csv"}, "encoding takes json, float16 or uint8"),
        ({"alternatives": 101}, "alternatives takes a whole number from 0 to 100"),
        ({"beam_size": 4, "temperature": 1.0}, "beam_size is 4 with a temperature"),
        ({"source": ""}, "source is empty"),
        ({"target": "A ?"}, "target has what the model's vocabulary lacks"),
        ({"inputs": "abc"}, "inputs is no field of this request"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_what_to_change(
    client: TestClient, body: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused(client, **body)["message"]


def test_a_limit_on_weights_holds_before_and_after_the_search(tmp_path: Path) -> None:
    bundle = make_bundle(make_model(seed=3), tmp_path / "b", ("fp32",))
    with serving(bundle, max_explain_values=40) as client:
        before = refused(client, target="A B C D E F G A B C D", layers=[0], heads=[0])
        assert before["message"].startswith("this would answer 72 attention weights, and at most 40 are")
        assert before["field"] == "attention"
        late = {"max_length": 12, "min_length": 11, "layers": [0], "heads": [0]}
        assert "and at most 40 are" in refused(client, **late)["message"]
        assert answered(client, target="A", average="both")["attention"][0]["shape"] == [1, 1, 2, 6]
        assert client.get("/v1/info").json()["limits"]["max_explain_values"] == 40


def test_switched_off_it_is_not_there(tmp_path: Path) -> None:
    bundle = make_bundle(make_model(), tmp_path / "b", ("fp32",))
    with serving(bundle, explain=False) as client:
        answer = client.post("/v1/explain", json={"source": "abc"})
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == (
            "/v1/explain is switched off on this server; it is started with --explain true."
        )
        assert client.get("/v1/info").json()["limits"]["max_explain_values"] == 0


def test_a_deadline_that_passed_is_504(client: TestClient) -> None:
    body = {"source": "abcde", "max_length": 60, "min_length": 59, "beam_size": 8, "timeout_ms": 1}
    answer = client.post("/v1/explain", json=body)
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "deadline"


def test_it_is_counted_under_its_own_endpoint(client: TestClient) -> None:
    answered(client)
    text = client.get("/metrics").text
    counted = re.findall(r'requests_total{endpoint="/v1/explain",[^}]*outcome="ok"} (\d+)', text)
    assert sum(map(int, counted)) > 0


OFF = {"heads": [{"kind": "cross", "layer": 0, "head": 1}], "layers": [{"stack": "encoder", "layer": 1}]}


@pytest.mark.parametrize("encoding", ["json", "float16", "uint8"])
def test_what_is_included_has_its_shape_and_axes(client: TestClient, encoding: str) -> None:
    every = ["structure", "qkv", "scores", "sums", "residual", "embeddings", "positions", "neighbours", "plane"]
    found = answered(client, include=every, attention=KINDS, encoding=encoding, layers=[1], heads=[0])
    sizes = {"source": 6, "target": len(found["target"]["tokens"]), "decoder_inputs": len(found["decoder_inputs"])}
    assert {each["name"] for each in found["included"]} == {
        "query", "key", "value", "scores", "sums", "stream", "output", "tokens", "positions", "position_table",
    }  # fmt: skip
    for each in found["included"]:
        assert all(size == sizes.get(axis, size) for axis, size in zip(each["axes"], each["shape"], strict=True))
        if encoding == "json":
            assert list(np.array(each["values"]).shape) == each["shape"]
        else:
            values = np.frombuffer(base64.b64decode(each["values"]), "<f2")
            assert values.size == np.prod(each["shape"])
    assert found["structure"]["norm"] == "post"
    assert [each["side"] for each in found["neighbours"]] == ["source", "target"]
    assert len(found["plane"]["points"]) == 10


def test_without_include_and_ablate_nothing_of_them_is_answered(client: TestClient) -> None:
    found = answered(client)
    assert found["included"] == []
    assert all(found[name] is None for name in ("neighbours", "plane", "structure", "ablated"))


def test_an_ablation_answers_both_models(client: TestClient) -> None:
    plain, found = answered(client), answered(client, ablate=OFF)
    assert found["steps"] == plain["steps"]
    assert found["hypotheses"] == plain["hypotheses"]
    assert [step["id"] for step in found["ablated"]["steps"]] == [step["id"] for step in plain["steps"]]
    assert found["ablated"]["steps"] != plain["steps"]
    assert found["attention"] != plain["attention"]


@pytest.mark.parametrize(
    ("ablate", "sentence"),
    [
        ({"heads": [{"kind": "cross", "layer": 2, "head": 0}]}, "layers from 0 to 1 of cross, not 2"),
        ({"heads": [{"kind": "cross", "layer": 0, "head": 2}]}, "heads from 0 to 1 with this model, not 2"),
        ({"layers": [{"stack": "encoder", "layer": 9}]}, "layers from 0 to 1 of encoder, not 9"),
        ({"sublayers": [{"kind": "head", "layer": 0}]}, "encoder_feed_forward or decoder_feed_forward"),
        ({"positions": ["both"]}, "takes source or target"),
        ({"tokens": []}, "is no field"),
    ],
)
def test_an_ablation_of_what_the_model_has_not_is_refused(
    client: TestClient, ablate: dict[str, Any], sentence: str
) -> None:
    answer = client.post("/v1/explain", json={"source": "abc", "ablate": ablate})
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]["message"]


def test_included_values_count_towards_the_limit(client: TestClient, tmp_path: Path) -> None:
    with serving(make_bundle(make_model(seed=3), tmp_path / "small"), max_explain_values=1000) as small:
        answer = small.post("/v1/explain", json={"source": "abc", "include": ["residual"]})
    assert answer.status_code == 422
    assert "at most 1,000" in answer.json()["error"]["message"]
