"""Directories as they are on Hugging Face's hub, written by the libraries that wrote those: other names and shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file, save_model

from attendant.model.importers.formats import bart, m2m
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from attendant.service.text.tokenizer import Tokenizer
from tests.model.importers.test_m2m_bart import SHAPE, compare, make_m2m, make_mbart, save, write_bytes
from tests.support.foreign import WORDS, train_spm

TIED = ["model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight", "model.shared.weight"]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A BART as save_pretrained writes it."""
    path = tmp_path_factory.mktemp("bart") / "whole"
    path.mkdir()
    ids = write_bytes(path)
    config = transformers.BartConfig(vocab_size=len(ids), forced_bos_token_id=0, **SHAPE)
    return path, save(path, transformers.BartForConditionalGeneration(config))


@pytest.fixture
def copy(made: tuple[Path, Any], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "bart"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def assert_same(found: ImportedModel, wanted: ImportedModel) -> None:
    assert found.config == wanted.config
    assert found.weights.keys() == wanted.weights.keys()
    assert all(torch.equal(found.weights[name], wanted.weights[name]) for name in wanted.weights)


@pytest.mark.parametrize("name", [*TIED, "lm_head.weight"])
def test_tied_embeddings_are_taken_from_whichever_of_their_names_is_stored(
    made: tuple[Path, Any], copy: Path, name: str
) -> None:
    """safetensors writes the others into its `__metadata__`: bart-large-cnn has the decoder's alone."""
    others = [*TIED, "lm_head.weight"]
    others.remove(name)
    model = made[1]
    save_model(model, str(copy / WEIGHTS))
    stored = load_file(copy / WEIGHTS)
    kept = next(key for key in [*TIED, "lm_head.weight"] if key in stored)
    stored[name] = stored.pop(kept)
    save_file(stored, copy / WEIGHTS, dict.fromkeys(others, name))
    assert_same(bart.read(copy), bart.read(made[0]))


def test_a_base_model_without_the_prefix_is_read(made: tuple[Path, Any], copy: Path) -> None:
    """facebook/bart-large is a BartModel: no `model.` before its names, no bias, and fairseq's versions."""
    made[1].model.save_pretrained(copy)
    stored = load_file(copy / WEIGHTS)
    assert not any(name.startswith("model.") for name in stored)
    versions = {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    save_file(stored | versions, copy / WEIGHTS, {"format": "pt"})
    found, wanted = bart.read(copy), bart.read(made[0])
    assert found.weights.pop("output.bias").max() == 0
    wanted.weights.pop("output.bias")
    assert_same(found, wanted)


def test_shards_of_pickles_are_read(made: tuple[Path, Any], copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    save_torch_state_dict(made[1].state_dict(), copy, max_shard_size="50KB", safe_serialization=False)
    assert len(list(copy.glob("pytorch_model-*.bin"))) > 1
    assert_same(bart.read(copy), bart.read(made[0]))
    next(iter(copy.glob("pytorch_model-*.bin"))).unlink()
    with pytest.raises(ImportRefusedError, match=r"pytorch_model-0000\d-of-0000\d.bin is missing"):
        bart.read(copy)


def test_generation_config_counts_alone_where_it_is_there(copy: Path) -> None:
    edit(copy / "config.json", lambda values: values.update(num_beams=7, length_penalty=2.0, forced_bos_token_id=0))
    (copy / "generation_config.json").write_text('{"length_penalty": 0.5}')
    found = bart.read(copy).generation
    assert found == {"length_penalty": 0.5, "early_stopping": False}
    (copy / "generation_config.json").unlink()
    found = bart.read(copy).generation
    assert (found["beam_size"], found["length_penalty"], len(found["target_prefix"])) == (7, 2.0, 1)


@pytest.mark.parametrize("there", [False, True])
def test_the_old_name_of_a_forced_first_token_is_known_where_config_json_counts(copy: Path, there: bool) -> None:
    edit(
        copy / "config.json",
        lambda values: values.update(forced_bos_token_id=None, force_bos_token_to_be_generated=True),
    )
    if not there:
        (copy / "generation_config.json").unlink()
    else:
        edit(copy / "generation_config.json", lambda values: values.update(forced_bos_token_id=None))
    model = bart.read(copy)
    first = [model.target.token_to_id("<special <s>>")]
    assert model.generation.get("target_prefix") == (None if there else first)


def test_special_tokens_that_bart_writes_by_itself_are_not_part_of_a_text(copy: Path) -> None:
    """As transformers decodes with skip_special_tokens."""
    edit(copy / "generation_config.json", lambda values: values.pop("forced_bos_token_id", None))
    target = bart.read(copy).target
    ids = [
        target.token_to_id("<special <s>>"),
        *target.encode("the of <s>").ids,
        target.token_to_id("<special <mask>>"),
    ]
    assert target.decode(ids, skip_special_tokens=False) == "the of <s>"
    target.save(str(copy / "target.json"))
    served = Tokenizer(copy / "target.json", {"pad": 0, "unk": 1, "bos": 2, "eos": 3})
    assert served.decode(ids) == "the of <s>"
    assert [served.text(i) for i in target.encode(" é").ids] == [" ", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize("sign", ["tokenization_small100.py", "_name_or_path", "directory", "flag"])
def test_small100_is_known_where_its_tokenizer_is_called_m2m100(tmp_path: Path, sign: str) -> None:
    path = tmp_path / ("SMaLL-100" if sign == "directory" else "model")
    make_m2m(path)
    edit(path / "tokenizer_config.json", lambda values: values.update(tokenizer_class="M2M100Tokenizer"))
    assert sign == "directory" or "source_prefix" in m2m.read(path, target_language="de").languages
    if sign.endswith(".py"):
        (path / sign).write_text("")
    if sign == "_name_or_path":
        edit(path / "config.json", lambda values: values.update(_name_or_path="alirezamsh/small100"))
    found = m2m.read(path, target_language="de", **({"small100": "yes"} if sign == "flag" else {}))
    assert "source_prefix_by_target" in found.languages
    assert any("SMaLL-100" in note for note in found.notes)
    other = m2m.read(path, target_language="de", small100="no")
    assert "source_prefix" in other.languages
    with pytest.raises(ImportRefusedError, match="--small100 takes yes or no, not 'x'"):
        m2m.read(path, small100="x")


def test_nllb_with_its_legacy_behaviour_has_the_language_after_the_source(tmp_path: Path) -> None:
    languages = ["eng_Latn", "fra_Latn"]
    (tmp_path / "spm").mkdir()
    spm = train_spm(tmp_path / "spm" / "sentencepiece.bpe.model", WORDS, kind="bpe")
    tokenizer = transformers.NllbTokenizer.from_pretrained(
        str(spm.parent), extra_special_tokens=languages, legacy_behaviour=True
    )
    tokenizer.src_lang = "eng_Latn"
    path = tmp_path / "nllb"
    tokenizer.save_pretrained(path)
    shape = SHAPE | {"vocab_size": len(tokenizer)}
    config = transformers.M2M100Config(activation_function="relu", scale_embedding=True, **shape)
    oracle = save(path, transformers.M2M100ForConditionalGeneration(config))
    imported = m2m.read(path, source_language="eng_Latn", target_language="fra_Latn")
    ids = tokenizer.get_vocab()
    end = ids["eng_Latn"]
    compare(imported, oracle, ids, lambda text: tokenizer(text).input_ids, [2, ids["fra_Latn"]], end)
    assert "source_prefix" not in imported.languages
    with pytest.raises(ImportRefusedError, match="--source-language must name it"):
        m2m.read(path, target_language="fra_Latn")


def test_an_mbart_without_a_start_token_is_mbart_25(tmp_path: Path) -> None:
    make_mbart(tmp_path, "MBartTokenizer")
    edit(tmp_path / "config.json", lambda values: values.update(decoder_start_token_id=None))
    found = bart.read(tmp_path, source_language="en_XX", target_language="ro_RO")
    assert "source_prefix" not in found.languages
    assert [found.source.id_to_token(i) for i in found.source.encode("the").ids[-1:]] == ["<special </s>>"]


def test_the_start_token_of_an_mbart_50_outweighs_the_name_of_its_tokenizer(tmp_path: Path) -> None:
    make_mbart(tmp_path, "PreTrainedTokenizerFast")
    found = bart.read(tmp_path, source_language="en_XX", target_language="ro_RO")
    assert sorted(found.languages["source_prefix"]) == ["en_XX", "ro_RO"]
    assert found.generation["target_prefix"]
