"""SentencePiece models as tokenizers, against SentencePiece; and files that are none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sentencepiece as library

from attendant.model.importers.files import sentencepiece
from attendant.model.importers.problems import Problems
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK
from tests.support.foreign import OTHER, WORDS, sentences, train_spm

NASTY = ["", " ", "  the   of  ", "ﬁne", "Ⅳ", "für", "the\u00a0of", "</s> <unk>", "the…", "the\tof", "ß", "xxxx"]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity", "nmt_nfkc_cf"])
def test_texts_are_cut_and_joined_as_by_sentencepiece(tmp_path: Path, kind: str, rule: str) -> None:
    path = train_spm(tmp_path / "a.spm", [*WORDS, *OTHER], kind, normalization_rule_name=rule)
    problems = Problems(path)
    found = sentencepiece.read(path, problems)
    problems.raise_if_any()
    assert found is not None
    backend = found.backend([*SPECIAL_TOKENS, *found.scores])
    rng = random.Random(0)
    made_up = ["".join(rng.choices("the ofandüxz ", k=rng.randint(1, 20))) for _ in range(200)]
    texts = [*sentences(100), *sentences(100, OTHER), *NASTY, *made_up]
    assert sentencepiece.differences(path, backend, texts) == []
    processor = library.SentencePieceProcessor(model_file=str(path))
    for text in texts:
        ids = backend.encode(text).ids
        if UNK not in ids:
            assert backend.decode(ids) == processor.decode(processor.encode(text))


def test_user_defined_pieces_win_over_their_parts(tmp_path: Path) -> None:
    path = train_spm(tmp_path / "a.spm", WORDS, user_defined_symbols=["heof"])
    found = sentencepiece.read(path, Problems(path))
    assert found is not None
    backend = found.backend([*SPECIAL_TOKENS, *found.scores])
    assert sentencepiece.differences(path, backend, ["theof the", "heofheof", "the heof of"]) == []


def test_tokens_that_are_no_pieces_are_never_produced_but_decoded(tmp_path: Path) -> None:
    path = train_spm(tmp_path / "a.spm", WORDS)
    found = sentencepiece.read(path, Problems(path))
    assert found is not None
    backend = found.backend([*SPECIAL_TOKENS, *found.scores, "▁the▁of", "<language fr>"])
    outside = backend.get_vocab_size() - 2
    assert outside not in backend.encode("the of <language fr>").ids
    assert backend.decode([outside + 1, outside]) == "the of"


def test_byte_fallback_of_bpe_is_refused(tmp_path: Path) -> None:
    path = train_spm(tmp_path / "a.spm", WORDS, "bpe", byte_fallback=True, vocab_size=300)
    problems = Problems(path)
    assert sentencepiece.read(path, problems) is None
    assert "byte_fallback" in problems.found[0]


@pytest.mark.parametrize("kind", ["word", "char"])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = train_spm(tmp_path / "a.spm", WORDS, kind)
    problems = Problems(path)
    assert sentencepiece.read(path, problems) is None
    assert kind in problems.found[0]


def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = train_spm(tmp_path / "a.spm", WORDS).read_bytes()
    rng = random.Random(1)
    damaged = [b"", b"\xff" * 50, whole[:7], whole[: len(whole) // 2], b"\x0a\xff\xff\xff\xff\x7f", b"\x08\x01" * 9]
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        damaged.append(bytes(changed))
    for number, content in enumerate(damaged):
        (tmp_path / "b.spm").write_bytes(content)
        problems = Problems(tmp_path / "b.spm")
        found = sentencepiece.read(tmp_path / "b.spm", problems)
        assert (found is None) == bool(problems.found)  # a changed score or letter makes another model, not a bad one
        assert found is None or number >= 6
