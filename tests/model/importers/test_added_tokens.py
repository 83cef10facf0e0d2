"""Tokens that were added to a Hugging Face tokenizer: read and written as a whole, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from attendant.model.importers.formats import bart, marian
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from tests.model.importers.test_m2m_bart import SHAPE, save, write_bytes
from tests.model.importers.test_marian import make_marian

ADDED = ["<triplet>", "<subj>"]
TEXT = "the <triplet>tea <subj> was<triplet>"


def make_bart(path: Path, more: int = len(ADDED)) -> dict[str, int]:
    """A BART whose embeddings have `more` rows than its vocab.json has tokens."""
    ids = write_bytes(path)
    save(path, transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=len(ids) + more, **SHAPE)))
    return ids


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def add(path: Path, where: str, tokens: dict[str, int]) -> None:
    """Name added tokens in one of the places where Hugging Face's library writes them."""
    listed = [{"id": i, "content": token, "special": False} for token, i in tokens.items()]
    if where == "added_tokens.json":
        write(path / where, tokens)
    elif where == "tokenizer_config.json":
        write(path / where, {"added_tokens_decoder": {str(entry.pop("id")): entry for entry in listed}})
    else:
        model = {"vocab": json.loads((path / "vocab.json").read_text(encoding="utf-8")), "merges": []}
        write(path / where, {"added_tokens": listed, "model": model})


def foreign_ids(imported: ImportedModel, text: str, ids: dict[str, int]) -> list[int]:
    special = {"<special <s>>": 0, "<end of text>": 2}
    return [ids[token] if token in ids else special[token] for token in imported.source.encode(text).tokens]


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_an_added_token_is_read_and_written_as_a_whole(where: str, tmp_path: Path) -> None:
    ids = make_bart(tmp_path)
    added = {token: len(ids) + i for i, token in enumerate(ADDED)}
    add(tmp_path, where, added)
    imported = bart.read(tmp_path)
    oracle = transformers.BartTokenizerFast(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"), add_prefix_space=False
    )
    oracle.add_tokens(ADDED)
    assert [oracle.convert_tokens_to_ids(token) for token in ADDED] == list(added.values())
    assert [*foreign_ids(imported, TEXT, ids | added), 2] == oracle(TEXT).input_ids
    assert imported.target.decode(imported.target.encode(TEXT).ids, skip_special_tokens=False) == TEXT


def test_spaces_beside_an_added_token_are_its_own_where_its_file_says_so(tmp_path: Path) -> None:
    ids = make_bart(tmp_path, 1)
    entry = {"content": "<triplet>", "lstrip": True, "rstrip": True, "special": True}
    write(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": {str(len(ids)): entry}})
    source = bart.read(tmp_path).source
    found = source.encode("the <triplet> tea").ids
    assert found == source.encode("the<triplet>tea").ids
    assert found.count(source.token_to_id("<triplet>")) == 1


@pytest.mark.parametrize(("token", "index"), [("<triplet>", 5), ("<mask>", 301), ("<triplet>", 310)])
def test_an_added_token_that_contradicts_the_vocabulary_is_refused_by_name(
    token: str, index: int, tmp_path: Path
) -> None:
    assert len(make_bart(tmp_path)) == 301
    write(tmp_path / "added_tokens.json", {token: index})
    with pytest.raises(ImportRefusedError, match=token):
        bart.read(tmp_path)


@pytest.mark.parametrize("content", [[], {"<a>": "b"}, {"<a>": -1}, {"<a>": True}])
def test_a_damaged_list_of_added_tokens_is_refused(content: Any, tmp_path: Path) -> None:
    make_bart(tmp_path)
    write(tmp_path / "added_tokens.json", content)
    with pytest.raises(ImportRefusedError, match=r"added_tokens\.json|<a>"):
        bart.read(tmp_path)


def test_the_mask_may_have_no_row_as_in_bart_large_cnn(tmp_path: Path) -> None:
    ids = make_bart(tmp_path, -1)
    add(tmp_path, "tokenizer.json", {"<mask>": len(ids) - 1})
    assert not any("mask" in token for token in bart.read(tmp_path).source.get_vocab())


@pytest.mark.parametrize("spaced", [True, False])
def test_a_space_before_the_text_is_added_where_the_tokenizer_does_so(spaced: bool, tmp_path: Path) -> None:
    make_bart(tmp_path)
    write(tmp_path / "tokenizer_config.json", {"add_prefix_space": spaced})
    imported = bart.read(tmp_path)
    same = imported.source.encode("tea").ids == imported.source.encode(" tea").ids
    assert same is spaced


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json"])
def test_marian_refuses_tokens_that_were_added_to_its_vocabulary_by_name(where: str, tmp_path: Path) -> None:
    make_marian(tmp_path / "opus")
    vocabulary = json.loads((tmp_path / "opus" / "vocab.json").read_text(encoding="utf-8"))
    add(tmp_path / "opus", where, {"</s>": 0, "<unk>": 1, ">>fra<<": vocabulary[">>fra<<"]})
    marian.read(tmp_path / "opus")
    add(tmp_path / "opus", where, {"</s>": 0, "<triplet>": len(vocabulary), "<subj>": len(vocabulary) + 1})
    with pytest.raises(ImportRefusedError, match="'<triplet>', '<subj>'"):
        marian.read(tmp_path / "opus")
