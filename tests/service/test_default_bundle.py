"""The embedded bundle is the committed checkpoint's, small enough, and what the README's lines are answered from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from attendant.export.bundle import Bundle, digest, read_bundle
from attendant.export.verify.same_graphs import check_graphs
from attendant.model import checkpoint
from attendant.service.engine.engine import Engine
from attendant.service.http.app import create_app
from attendant.service.settings import DEFAULT_BUNDLE, Settings
from tests.support.serving import events_of

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "model" / "default"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return read_bundle(DEFAULT_BUNDLE)


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Iterator[TestClient]:
    engine = Engine(bundle)
    engine.start()
    with TestClient(create_app(Settings(), engine)) as client:
        yield client


def test_it_was_made_from_the_committed_checkpoint(bundle: Bundle) -> None:
    wanted = digest(checkpoint.find_weights(CHECKPOINT))
    assert bundle.produced_by["checkpoint_sha256"] == wanted, "run: make export"


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_every_node_and_weight_in_it_is_the_checkpoints(bundle: Bundle, variant: str) -> None:
    assert list(check_graphs(bundle.variants[variant], checkpoint.load_trained(CHECKPOINT))) == []


def test_its_tokenizers_are_the_checkpoints(bundle: Bundle) -> None:
    for side, name in (("source", checkpoint.SOURCE_TOKENIZER), ("target", checkpoint.TARGET_TOKENIZER)):
        assert bundle.tokenizers[side].read_bytes() == (CHECKPOINT / name).read_bytes()


def test_it_is_small_and_int8_is_a_third_of_fp32(bundle: Bundle) -> None:
    def size(directory: Path) -> int:
        return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())

    assert size(DEFAULT_BUNDLE) <= 40e6
    assert 3 * size(DEFAULT_BUNDLE / "int8") <= size(DEFAULT_BUNDLE / "fp32")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_answers_as_its_certificate_says(bundle: Bundle, precision: str) -> None:
    from attendant.service.engine.engine import EngineSettings

    described = Engine(bundle, EngineSettings(precision=precision)).description.certificate
    assert described.drift <= described.tolerance


def lines_of(page: str) -> list[tuple[str, dict[str, Any], str]]:
    """(path, body, what is printed under it) of every curl line of a page."""
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for line, printed in re.findall(r"^    (curl .*)\n\n?((?:    [{ ].*\n)*)", text, re.M):
        words = shlex.split(line)
        path = next(re.sub(r"^(http://)?[^/]*", "", word) for word in words if ":8000/" in word)
        if "-d" in words:
            found.append((path, json.loads(words[words.index("-d") + 1]), printed))
    return found


def test_the_lines_of_the_readme_and_of_the_tour_are_answered(client: TestClient) -> None:
    lines = [*lines_of("README.md"), *lines_of("docs/api.md")]
    assert {path for path, _, _ in lines} >= {"/v1/generate", "/v1/next-token", "/v1/score", "/v1/explain"}
    for path, body, _ in lines:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        if body.get("stream"):
            assert [name for name, _ in events_of(answer.text)][-1] == "done"


def test_the_answers_in_the_documentation_are_those_of_the_embedded_model(client: TestClient) -> None:
    checked = 0
    for path, body, printed in lines_of("docs/api.md"):
        if printed and "..." not in printed:
            found = client.post(path, json=body).json()
            assert_same(found, json.loads(printed), path)
            checked += 1
    assert checked >= 4


def assert_same(found: Any, printed: Any, where: str) -> None:
    """The same but for ids and times, and for what another processor rounds differently."""
    if isinstance(printed, dict):
        assert found.keys() == printed.keys(), where
        for name in printed.keys() - {"timing", "id", "created"}:
            assert_same(found[name], printed[name], f"{where} {name}")
    elif isinstance(printed, list):
        assert len(found) == len(printed), where
        for i, (mine, theirs) in enumerate(zip(found, printed, strict=True)):
            assert_same(mine, theirs, f"{where} {i}")
    elif isinstance(printed, float):
        assert found == pytest.approx(printed, abs=1e-3), where
    else:
        assert found == printed, where


def test_a_word_in_is_its_phones_out(client: TestClient) -> None:
    answer = client.post("/v1/generate", json={"inputs": ["cat", "ships"]}).json()
    assert [output["hypotheses"][0]["text"] for output in answer["outputs"]] == ["K AE1 T", "SH IH1 P S"]
