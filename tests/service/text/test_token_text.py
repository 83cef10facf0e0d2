"""Tokens as people can read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from attendant.model.text.tokenizer import learn
from attendant.service.engine.tasks import Distribution, Generated, Hypothesis, Scored
from attendant.service.requests.content import next_token_content, output_content, score_content
from attendant.service.requests.served import ServedModel
from attendant.service.text.token_text import BYTES, token_text
from tests.support.fake_engine import TIMING, FakeEngine, make_bundle

TEXT = "天气 naïve 🙂"


@pytest.mark.parametrize(
    ("token", "byte_level", "text"),
    [
        ("Ġtian", True, " tian"),
        ("æ°Ķ", True, "气"),
        ("æ°", True, "<0xE6><0xB0>"),
        ("aæ", True, "a<0xE6>"),
        ("Ċ", True, "\n"),
        ("<end of text>", True, "<end of text>"),
        ("▁the", False, " the"),
        ("Ġ", False, "Ġ"),
        ("AH0", False, "AH0"),
    ],
)
def test_a_token_stands_for_a_text(token: str, byte_level: bool, text: str) -> None:
    assert token_text(token, byte_level) == text


def test_every_character_of_the_byte_alphabet_is_known() -> None:
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTES.values()) == list(range(256))


@pytest.fixture
def served(tmp_path: Path) -> ServedModel:
    """Its targets are written in byte-level BPE without merges: a token for each byte."""
    bundle = make_bundle(tmp_path)
    learn("bpe:260", [TEXT]).save(bundle.tokenizers["target"])
    return ServedModel(FakeEngine(bundle))


def test_texts_of_tokens_stand_beside_them_everywhere(served: ServedModel) -> None:
    ids = served.engine.target_tokenizer.encode(TEXT)
    wanted = "".join(character if character.isascii() else _bytes(character) for character in TEXT)
    logprobs = (-1.0,) * len(ids)
    generated = Generated((Hypothesis(ids, logprobs, -1.0, "length"),), TIMING)
    (hypothesis,) = output_content(served, generated, logprobs=False)["hypotheses"]
    assert "".join(hypothesis["token_texts"]) == wanted
    assert hypothesis["text"] == TEXT
    scored = score_content(served, ids, Scored((*logprobs, -1.0), TIMING))["tokens"]
    assert "".join(token["text"] for token in scored[:-1]) == wanted
    distribution = Distribution(np.zeros(len(served.tokens), np.float32), (), TIMING)
    for token in next_token_content(served, distribution, 0, 1.0)["tokens"]:
        assert token["text"] == served.engine.target_tokenizer.text(token["id"])


def test_a_token_that_is_its_text_is_not_told_twice(tmp_path: Path) -> None:
    served = ServedModel(FakeEngine(make_bundle(tmp_path)))
    (hypothesis,) = output_content(
        served, Generated((Hypothesis((5,), (-1.0,), -1.0, "length"),), TIMING), logprobs=False
    )["hypotheses"]
    assert "token_texts" not in hypothesis


def _bytes(character: str) -> str:
    return "".join(f"<0x{byte:02X}>" for byte in character.encode())
