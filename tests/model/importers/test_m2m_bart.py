"""M2M100, BART, mBART and mBART-50 of Hugging Face's library, against the library itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from attendant import main
from attendant.export.bundle import read_bundle
from attendant.export.make.convert import convert
from attendant.model.importers.formats import bart, m2m
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from attendant.model.search.decode import decode_all
from attendant.model.search.reference import next_logprobs
from attendant.model.text.tokenizer import BOS, EOS, PAD
from attendant.service.engine.batch.job import make_search
from attendant.service.engine.engine import Engine, EngineSettings
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import Generate, Generated, Options
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.planning import plan_generate
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from tests.support.foreign import (
    LENGTH,
    SOURCES,
    WORDS,
    check_against,
    greedy_after,
    names_to_foreign,
    randomize,
    sentences,
    train_spm,
)
from tests.support.tables import NO_TIME, run

SHAPE: dict[str, Any] = {
    "d_model": 32,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
BEAM_LENGTH = 12  # tokens of a target, the first and the end token included
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def save(path: Path, model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    model.eval()
    randomize(model, seed)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_().mul_(0.3)[0, 2] += 1
    model.save_pretrained(path)
    return model


def pieces_of(path: Path) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def compare(
    imported: ImportedModel,
    oracle: Any,
    ids: dict[str, int],
    encode: Any,
    start: list[int],
    source_end: int | None = None,
) -> None:
    """`start`: what the oracle's decoder is given first; the last of it is in our ids where a target is forced."""
    first = 2 if len(start) > 1 or start == [2] else start[0]
    to_foreign = names_to_foreign(imported, "target", ids, [1, 3, first, 2])
    end = 2 if source_end is None else source_end
    of_source = names_to_foreign(imported, "source", ids, [1, 3, first, end])

    def forward(source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return oracle(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits

    check_against(
        imported,
        sentences(SOURCES),
        to_foreign,
        forward,
        encode,
        start,
        2,
        1,
        [1] if first == 2 else [1, first],
        of_source,
    )
    if start[0] == 2:
        check_beams(imported, oracle, [encode(text) for text in sentences(SOURCES)], to_foreign, start[1])


def check_beams(
    imported: ImportedModel, oracle: Any, sources: list[list[int]], to_foreign: dict[int, int], first: int
) -> None:
    """Beam 4 after a forced first token is that of the library on 99 % of the sources."""
    width = max(map(len, sources))
    given = torch.tensor([[*source, *[1] * (width - len(source))] for source in sources])
    answers = oracle.generate(
        input_ids=given,
        attention_mask=(given != 1).long(),
        num_beams=4,
        early_stopping=True,
        length_penalty=1.0,
        max_new_tokens=BEAM_LENGTH,
        forced_bos_token_id=first,
        forced_eos_token_id=None,
        suppress_tokens=[1],  # padding has no probability here
        renormalize_logits=True,
    )
    wanted = [[i for i in row[2:].tolist() if i not in (1, 2)] for row in answers]
    ours = [encoding.ids for encoding in imported.source.encode_batch(sentences(SOURCES))]
    start = imported.generation["target_prefix"]
    found = decode_all(imported.load(), ours, 4, max_length=BEAM_LENGTH, start=start, early_stopping=True)
    same = sum([to_foreign[i] for i in ids] == answer for ids, answer in zip(found, wanted, strict=True))
    assert same >= 0.99 * len(sources)


@pytest.fixture(scope="module")
def m2m_directory(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, dict[str, int]]:
    path = tmp_path_factory.mktemp("m2m") / "model"
    return path, *make_m2m(path)


def make_m2m(path: Path) -> tuple[Any, dict[str, int]]:
    """As M2M-100 has it: a vocabulary of its own order, languages after it, and rows that no token uses."""
    path.mkdir()
    train_spm(path / "sentencepiece.bpe.model", WORDS, kind="bpe")
    tokens = [*SPECIAL, *sorted(pieces_of(path / "sentencepiece.bpe.model"))]
    (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    languages = ["__en__", "__fr__", "__de__"]
    (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": languages}))
    config = transformers.M2M100Config(vocab_size=len(tokens) + 5, activation_function="relu", **SHAPE)
    oracle = save(path, transformers.M2M100ForConditionalGeneration(config))
    return oracle, {token: i for i, token in enumerate([*tokens, *languages])}


def with_codes(ids: dict[str, int], size: int) -> dict[str, int]:
    """Names without the marks of a language, and of unused rows."""
    codes = {token.strip("_"): index for token, index in ids.items() if token.startswith("__")}
    return {**ids, **codes, **{f"<unused {i}>": i for i in range(size)}}


def test_m2m_tokens_and_log_probabilities_are_those_of_transformers(m2m_directory: Any) -> None:
    path, oracle, ids = m2m_directory
    imported = m2m.read(path, source_language="en", target_language="fr")
    spm = sentencepiece.SentencePieceProcessor(model_file=str(path / "sentencepiece.bpe.model"))

    def encode(text: str) -> list[int]:
        return [ids["__en__"], *(ids.get(piece, 3) for piece in spm.encode(text, out_type=str)), 2]

    names = with_codes(ids, oracle.config.vocab_size)
    compare(imported, oracle, names, encode, [2, ids["__fr__"]])
    assert sorted(imported.languages["target_prefix"]) == ["de", "en", "fr"]


@pytest.mark.parametrize("penalty", [0.6, 1.0])
def test_beam_search_after_a_language_is_that_of_transformers(
    m2m_directory: Any, tmp_path: Path, penalty: float
) -> None:
    """The language counts in the length that a score is divided by."""
    path, other, ids = m2m_directory
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    oracle = save(tmp_path, transformers.M2M100ForConditionalGeneration(other.config), seed=1)
    imported = m2m.read(tmp_path, source_language="en", target_language="fr")
    model, names = imported.load(), with_codes(ids, oracle.config.vocab_size)
    of_source, of_target = (names_to_foreign(imported, side, names, [1, 3, 2, 2]) for side in ("source", "target"))
    sources = [encoding.ids for encoding in imported.source.encode_batch(sentences(40))]
    rows = [[of_source[i] for i in (*source, EOS)] for source in sources]
    width = max(map(len, rows))
    found = oracle.generate(
        torch.tensor([[*row, *[1] * (width - len(row))] for row in rows]),
        attention_mask=torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
        forced_bos_token_id=ids["__fr__"],
        suppress_tokens=[1],
        renormalize_logits=True,
        max_length=2 + 9,
        num_beams=4,
        early_stopping=True,
        length_penalty=penalty,
    )
    wanted = [tuple(i for i in row if i not in (1, 2)) for row in found[:, 2:].tolist()]
    start = tuple(imported.generation["target_prefix"])
    special = SpecialIds(pad=PAD, bos=BOS, eos=EOS, start=start)
    options = Options(beam_size=4, max_length=9, length_penalty=penalty, early_stopping=True)
    ours = []
    for source in sources:
        search = make_search(special, Generate(source=(), options=options))
        run(search, lambda ids, source=source: np.array(next_logprobs(model, source, (*start, *ids)), np.float32))
        ours.append(tuple(of_target[i] for i in search.result(NO_TIME).hypotheses[0].ids))
    assert ours == wanted


def test_small100_has_the_target_language_before_the_source(m2m_directory: Any, tmp_path: Path) -> None:
    path, _, _ = m2m_directory
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "SMALL100Tokenizer"}')
    imported = m2m.read(tmp_path, target_language="de")
    assert "target_prefix" not in imported.generation
    first = imported.source.encode("the").ids[0]
    assert imported.source.id_to_token(first) == "<language de>"
    assert imported.languages["source_prefix_by_target"]["de"] == [first]


def test_a_language_that_the_model_lacks_is_refused(m2m_directory: Any) -> None:
    with pytest.raises(ImportRefusedError, match="--target-language takes one of de, en, fr, not 'xx'"):
        m2m.read(m2m_directory[0], source_language="en", target_language="xx")


def test_bart_tokens_and_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    ids = write_bytes(tmp_path)
    config = transformers.BartConfig(vocab_size=len(ids), forced_bos_token_id=0, num_beams=4, **SHAPE)
    oracle = save(tmp_path, transformers.BartForConditionalGeneration(config))
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({**generation, "forced_bos_token_id": 0}))
    imported = bart.read(tmp_path)
    reference = Tokenizer(models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def encode(text: str) -> list[int]:
        return [0, *reference.encode(text).ids, 2]

    compare(imported, oracle, ids, encode, [2, 0])
    assert (
        imported.target.decode(imported.target.encode("Größe </s> 😀").ids, skip_special_tokens=False)
        == "Größe </s> 😀"
    )


def write_bytes(path: Path) -> dict[str, int]:
    """BART's files: GPT-2's bytes and merges, with fairseq's special tokens first."""
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer, trainee.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    trainee.train_from_iterator(sentences(200), trainer)
    trainee.model.save(str(path))
    ids = json.loads((path / "vocab.json").read_text(encoding="utf-8"))
    (path / "vocab.json").write_text(json.dumps({**ids, "<mask>": len(ids)}), encoding="utf-8")
    return {**ids, "<mask>": len(ids)}


def make_mbart(path: Path, tokenizer_class: str, start: int = 2) -> tuple[Any, dict[str, int]]:
    """As mBART has it: pieces in fairseq's order, then languages and the mask; `start`: the decoder's first token."""
    path.mkdir(exist_ok=True)
    train_spm(path / "sentencepiece.bpe.model", WORDS)
    languages = ["en_XX", "ro_RO", "<mask>"]
    tokens = [*SPECIAL, *pieces_of(path / "sentencepiece.bpe.model"), *languages]
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": tokenizer_class, "additional_special_tokens": languages})
    )
    config = transformers.MBartConfig(
        vocab_size=len(tokens), scale_embedding=True, **(SHAPE | {"decoder_start_token_id": start % len(tokens)})
    )
    oracle = save(path, transformers.MBartForConditionalGeneration(config), seed=1)
    return oracle, {token: i for i, token in enumerate(tokens)}


def test_mbart_50_tokens_and_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    oracle, ids = make_mbart(tmp_path, "MBart50Tokenizer")
    imported = bart.read(tmp_path, source_language="en_XX", target_language="ro_RO")
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))

    def encode(text: str) -> list[int]:
        return [ids["en_XX"], *(ids.get(piece, 3) for piece in spm.encode(text, out_type=str)), 2]

    compare(imported, oracle, ids, encode, [2, ids["ro_RO"]])


@pytest.mark.parametrize("where", ["config.json", "nowhere"])
def test_mbart_50_is_known_where_tokenizer_config_does_not_name_it(where: str, tmp_path: Path) -> None:
    make_mbart(tmp_path, "MBart50Tokenizer")
    known = bart.read(tmp_path, source_language="en_XX", target_language="ro_RO")
    for file, change in (("tokenizer_config.json", None), ("config.json", "MBart50Tokenizer")):
        values = json.loads((tmp_path / file).read_text())
        values.pop("tokenizer_class", None)
        values |= {"tokenizer_class": change} if change and where == file else {}
        (tmp_path / file).write_text(json.dumps(values))
    found = bart.read(tmp_path, source_language="en_XX", target_language="ro_RO")
    assert found.source.to_str() == known.source.to_str()
    assert found.generation == known.generation


def test_mbart_25_has_the_language_after_the_source_and_starts_with_the_targets(tmp_path: Path) -> None:
    oracle, ids = make_mbart(tmp_path, "MBartTokenizer", start=-2)
    imported = bart.read(tmp_path, source_language="en_XX", target_language="ro_RO")
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))

    def encode(text: str) -> list[int]:
        return [*(ids.get(piece, 3) for piece in spm.encode(text, out_type=str)), 2, ids["en_XX"]]

    compare(imported, oracle, {**ids, "</s>": 2}, encode, [ids["ro_RO"]], ids["en_XX"])
    with pytest.raises(ImportRefusedError, match="--source-language must name it"):
        bart.read(tmp_path)


def test_a_request_names_the_languages_of_an_m2m_that_was_imported_with_none(
    m2m_directory: Any, tmp_path: Path
) -> None:
    path, _, _ = m2m_directory
    m2m.read(path).write(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "bundle", "m2m", variants=("fp32",))
    engine = Engine(read_bundle(tmp_path / "bundle"), EngineSettings(threads=1))
    request = GenerateRequest(
        inputs=sentences(5), source_language="fr", target_language="de", beam_size=1, max_length=9
    )
    with pytest.raises(InvalidFieldError, match="source_language is missing; this model takes one of: de, en, fr"):
        plan_generate(GenerateRequest(inputs=sentences(5)), ServedModel(engine), Settings())
    tasks = plan_generate(request, ServedModel(engine), Settings())
    fixed = m2m.read(path, source_language="fr", target_language="de")
    sources = [fixed.source.encode(text).ids for text in sentences(5)]
    wanted = greedy_after(fixed.load(), sources, fixed.generation["target_prefix"])
    assert [found.hypotheses[0].ids for found in engine.run(tasks)] == [tuple(ids[:9]) for ids in wanted]


def test_an_exported_m2m_begins_in_the_target_language_as_torch_does(m2m_directory: Any, tmp_path: Path) -> None:
    path, _, _ = m2m_directory
    imported = m2m.read(path, source_language="en", target_language="fr")
    imported.write(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "bundle", "m2m", variants=("fp32",))
    engine = Engine(read_bundle(tmp_path / "bundle"), EngineSettings(threads=1))
    sources = [tuple(engine.source_tokenizer.encode(text)) for text in sentences(20)]
    tasks = [Generate(source=source, options=Options(max_length=12)) for source in sources]
    wanted = greedy_after(imported.load(), [list(source) for source in sources], imported.generation["target_prefix"])
    for found, ids in zip(engine.run(tasks), wanted, strict=True):
        assert isinstance(found, Generated)
        assert list(found.hypotheses[0].ids) == ids[:12]


def test_a_run_and_its_bundle_are_evaluated_in_the_language_of_the_import(
    m2m_directory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, _ = m2m_directory
    imported = m2m.read(path, source_language="en", target_language="fr")
    imported.write(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attendant.export.make.convert.verify", lambda *_: [])  # its proof is tested elsewhere, and slow
        convert(tmp_path / "run", tmp_path / "bundle", "m2m", variants=("fp32",))
    sources = [encoding.ids for encoding in imported.source.encode_batch(sentences(20))]
    answers = greedy_after(imported.load(), sources, imported.generation["target_prefix"])
    targets = [imported.target.decode(ids, skip_special_tokens=False) for ids in answers]
    pairs = {a: b for a, b in zip(sentences(20), targets, strict=True) if b.strip()}
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs.items()), encoding="utf-8")
    for model in ("run", "bundle"):
        report = tmp_path / f"{model}.json"
        arguments = [str(tmp_path / model), "--data", str(tmp_path / "pairs.tsv"), "--json", str(report)]
        assert main(["evaluate", *arguments]) == 0
        assert json.loads(report.read_text())["sequence_error_rate"] == 0
    m2m.read(path).write(tmp_path / "any")
    assert main(["evaluate", str(tmp_path / "any"), "--data", str(tmp_path / "pairs.tsv")]) == 2
    assert "several source languages, and its import named none" in capsys.readouterr().err


@pytest.mark.parametrize("with_spm", [False, True])
def test_nllb_tokens_and_log_probabilities_are_those_of_transformers(tmp_path: Path, with_spm: bool) -> None:
    """Its vocabulary is that of tokenizer.json, with or without the SentencePiece file beside it."""
    languages = ["eng_Latn", "fra_Latn"]
    (tmp_path / "spm").mkdir()
    spm = train_spm(tmp_path / "spm" / "sentencepiece.bpe.model", WORDS, kind="bpe")
    tokenizer = transformers.NllbTokenizer.from_pretrained(str(spm.parent), extra_special_tokens=languages)
    tokenizer.src_lang = "eng_Latn"
    path = tmp_path / "nllb"
    tokenizer.save_pretrained(path)
    if with_spm:
        (path / spm.name).write_bytes(spm.read_bytes())
    config = transformers.M2M100Config(
        vocab_size=len(tokenizer), activation_function="relu", scale_embedding=True, **SHAPE
    )
    oracle = save(path, transformers.M2M100ForConditionalGeneration(config))
    imported = m2m.read(path, source_language="eng_Latn", target_language="fra_Latn")
    ids = tokenizer.get_vocab()
    compare(imported, oracle, ids, lambda text: tokenizer(text).input_ids, [2, ids["fra_Latn"]])
    assert imported.target.decode(imported.target.encode("the of they").ids) == "the of they"


def test_a_tokenizer_json_of_another_kind_is_refused_by_name(m2m_directory: Any, tmp_path: Path) -> None:
    for file in m2m_directory[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "sentencepiece.bpe.model").unlink()
    for model, why in (
        ({"type": "WordPiece", "vocab": {"a": 0}}, "a model of type 'WordPiece'"),
        ({"type": "BPE", "vocab": {"▁a": 0}, "merges": [["▁"]]}, "a merge is not two pieces"),
        ({"type": "BPE", "vocab": {"▁a": 0}, "merges": []}, "has no merges"),
        ({"type": "Unigram", "vocab": [["▁a", 0.0]], "byte_fallback": True}, "byte_fallback"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
        with pytest.raises(ImportRefusedError, match=why):
            m2m.read(tmp_path)
