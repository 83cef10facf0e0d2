"""What docs/walk.md says of the default model is what the service answers."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from attendant.export.bundle import read_bundle
from attendant.service.engine.engine import Engine
from attendant.service.http.app import create_app
from attendant.service.settings import DEFAULT_BUNDLE, Settings

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "walk.md").read_text(encoding="utf-8").split())
SHOWN = 1  # the head of the walk, counted from 0: in cross-attention of the decoder's first layer


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    engine = Engine(read_bundle(DEFAULT_BUNDLE))
    engine.start()
    with TestClient(create_app(Settings(), engine)) as client:
        yield client


def explain(client: TestClient, **options: Any) -> dict[str, Any]:
    answer = client.post("/v1/explain", json={"source": "facade", "alternatives": 2, **options})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def explained(client: TestClient) -> dict[str, Any]:
    return explain(client, attention=["cross"], layers=[0], include=["scores", "qkv"])


def said(pattern: str) -> tuple[str, ...]:
    """The groups of a pattern that the page has once."""
    (found,) = re.findall(pattern, PAGE)
    return (found,) if isinstance(found, str) else tuple(found)


def step_of(explained: dict[str, Any], token: str) -> int:
    return [step["token"] for step in explained["steps"]].index(token)


def test_the_output_and_its_least_probable_tokens_are_the_models(explained: dict[str, Any]) -> None:
    output, *tinted = said(r"The output is `([^`]+)`\. `(\w+)` and `(\w+)` are tinted most")
    assert explained["target"]["text"] == output
    steps = sorted(explained["steps"], key=lambda step: step["logprob"])
    assert {step["token"] for step in steps[:2]} == set(tinted)


def test_what_else_a_token_might_have_been_is_the_second_most_probable(explained: dict[str, Any]) -> None:
    token, other = said(r"Point at `(\w+)`, and it says what else that might have been: `(\w+)`")
    best, second = explained["steps"][step_of(explained, token)]["alternatives"]
    assert (best["token"], second["token"]) == (token, other)


def test_the_heads_that_are_nearly_diagonal_are_those(explained: dict[str, Any]) -> None:
    named = {int(head) - 1 for head in said(r"Heads (\d), (\d) and (\d) are nearly diagonal")}
    (weights,) = explained["attention"][0]["values"]  # (H, T, S)
    looks = [[row.index(max(row)) for row in head] for head in weights]
    assert {i for i, head in enumerate(looks) if head == sorted(set(head))} == named


def test_the_scores_and_the_weight_inside_the_head_are_its(explained: dict[str, Any]) -> None:
    token, size, best, second, share = said(
        r"Click head 2\. .* the step that gives `(\w+)`\. .* √(\d+), is the score\. The second `a` has ([\d.]+), "
        r"the next best letter ([\d.]+), and the softmax makes that (\d+) %"
    )
    step = step_of(explained, token)
    values = {each["name"]: each["values"][0][SHOWN] for each in explained["included"]}
    row = values["scores"][step]
    letters = [letter["text"] for letter in explained["source"]["tokens"]]
    second_a = [i for i, letter in enumerate(letters) if letter == "a"][1]
    assert row[second_a] == max(row) == pytest.approx(float(best), abs=0.01)
    assert sorted(row)[-2] == pytest.approx(float(second), abs=0.01)
    softmax = math.exp(row[second_a]) / sum(map(math.exp, row))
    assert 100 * softmax == pytest.approx(float(share), abs=0.6)
    assert explained["attention"][0]["values"][0][SHOWN][step][second_a] == pytest.approx(softmax, abs=1e-3)
    assert len(values["query"][step]) == int(size)


def answer_without(client: TestClient, **parts: Any) -> str:
    text: str = explain(client, attention=[], ablate=parts)["ablated"]["text"]
    return text


def test_without_parts_the_answers_are_those_of_the_page(client: TestClient, explained: dict[str, Any]) -> None:
    whole = explained["target"]["text"]
    heads = [{"kind": "cross", "layer": 0, "head": head} for head in range(4)]
    assert "cross-attention, click head 2." in PAGE
    assert "Here the answer stays the same" in PAGE
    assert answer_without(client, heads=[heads[SHOWN]]) == whole
    more, before, after = said(r"Click heads (\d and \d) of the same row as well\. Now `(\w+)` becomes `(\w+)`")
    others = [heads[int(head) - 1] for head in more.split(" and ")]
    assert answer_without(client, heads=[heads[SHOWN], *others]) == whole.replace(before, after)
    (unordered,) = said(r"switch off the positions of the source\. .* the answer is `([^`]+)`")
    assert answer_without(client, positions=["source"]) == unordered


@pytest.mark.parametrize("pattern", [r"`(\w+)`, as in `(\w+)`", r"becomes `(\w+)`: .* as if the word were `(\w+)`"])
def test_a_word_that_is_named_for_its_vowel_has_it(pattern: str, client: TestClient) -> None:
    vowel, word = said(pattern)
    answer = client.post("/v1/generate", json={"inputs": word}).json()
    assert vowel in answer["outputs"][0]["hypotheses"][0]["text"].split()


def test_the_command_line_switches_off_the_head_of_the_walk(client: TestClient) -> None:
    (line,) = re.findall(r"^    (curl .*)$", (ROOT / "docs" / "walk.md").read_text(encoding="utf-8"), re.MULTILINE)
    body = json.loads(shlex.split(line)[-1])
    assert body["ablate"] == {"heads": [{"kind": "cross", "layer": 0, "head": SHOWN}]}
    found = explain(client, **body)
    assert [step["token"] for step in found["steps"]] == [step["token"] for step in found["ablated"]["steps"]]
    assert found["steps"] != found["ablated"]["steps"]
