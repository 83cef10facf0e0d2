"""Models as OpenNMT-py and Argos have them in CTranslate2's format: sources without an end token; older files too."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
from ctranslate2.specs import common_spec, transformer_spec

from attendant import main
from attendant.model.importers.files import ctranslate2_file
from attendant.model.importers.formats import ctranslate2 as importer
from attendant.model.importers.imported import ImportedModel
from attendant.model.search.decode import decode_all
from attendant.model.search.reference import next_logprobs
from attendant.model.text.tokenizer import SPECIAL_TOKENS, UNK
from tests.model.importers.test_marian import pieces_of
from tests.support.foreign import LENGTH, SOURCES, WORDS, sentences, train_spm

D, FF, HEADS = 32, 48, 2


def fill(linear: Any, rng: np.random.Generator, out: int, into: int, bias: bool = True) -> None:
    linear.weight = (0.3 * rng.standard_normal((out, into))).astype(np.float32)
    if bias:
        linear.bias = (0.1 * rng.standard_normal(out)).astype(np.float32)


def fill_norm(norm: Any, rng: np.random.Generator) -> None:
    norm.gamma, norm.beta = ((a + 0.1 * rng.standard_normal(D)).astype(np.float32) for a in (1, 0))


def random_spec(
    vocabulary: int, bias: bool, positions: bool, activation: Any, seed: int = 0, heads: int = HEADS
) -> Any:
    """A TransformerSpec with random weights; `bias`: of attention."""
    rng = np.random.default_rng(seed)
    spec = transformer_spec.TransformerSpec.from_config((2, 1), heads, pre_norm=True, activation=activation)
    for side in (spec.encoder, spec.decoder):
        fill_norm(side.layer_norm, rng)
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = (0.3 * rng.standard_normal((vocabulary, D))).astype(np.float32)
        if positions:
            side.position_encodings.encodings = rng.standard_normal((LENGTH, D)).astype(np.float32)
        for layer in side.layer:
            fill(layer.self_attention.linear[0], rng, 3 * D, D, bias)
            fill(layer.self_attention.linear[1], rng, D, D, bias)
            fill_norm(layer.self_attention.layer_norm, rng)
            if side is spec.decoder:
                for linear, size in zip(layer.attention.linear, (D, 2 * D, D), strict=True):
                    fill(linear, rng, size, D, bias)
                layer.attention.linear[2].weight *= 3
                fill_norm(layer.attention.layer_norm, rng)
            fill(layer.ffn.linear_0, rng, FF, D)
            fill(layer.ffn.linear_1, rng, D, FF)
            fill_norm(layer.ffn.layer_norm, rng)
    fill(spec.decoder.projection, rng, vocabulary, D)
    spec.decoder.projection.bias[[1, 2]] = -100  # no model that was trained writes padding or the start token
    return spec


def save(path: Path, spm: Path, ends: tuple[bool, bool], **options: Any) -> None:
    pieces = [piece for piece in pieces_of(spm) if piece not in ("<unk>", "<s>", "</s>")]
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *pieces]
    spec = random_spec(len(tokens), **options)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.add_source_bos, spec.config.add_source_eos = ends
    spec.validate()
    spec.optimize()
    path.mkdir()
    spec.save(str(path))


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_spm(tmp_path_factory.mktemp("opennmt") / "sentencepiece.model", WORDS)


def compare(imported: ImportedModel, path: Path) -> None:
    """Greedy tokens, and log-probabilities of 20 answers, are those of CTranslate2."""
    texts, length = sentences(SOURCES), LENGTH - 1
    ours = [encoding.ids for encoding in imported.source.encode_batch(texts)]
    bare = [encoding.ids for encoding in imported.source.encode_batch(texts, add_special_tokens=False)]
    translator = ctranslate2.Translator(str(path), compute_type="float32", inter_threads=1)
    theirs = translator.translate_batch(
        [[imported.source.id_to_token(i) for i in ids] for ids in bare],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=length,
        return_scores=True,
        length_penalty=0,
    )
    model = imported.load()
    found = decode_all(model, ours, max_length=length)
    names = {SPECIAL_TOKENS[UNK]: "<unk>"}
    tokens = [[imported.target.id_to_token(i).removeprefix("  ") for i in ids] for ids in found]
    assert [[names.get(token, token) for token in answer] for answer in tokens] == [a.hypotheses[0] for a in theirs]
    assert len({tuple(ids) for ids in found}) > len(texts) // 10
    for source, ids, answer in list(zip(ours, found, theirs, strict=True))[:20]:
        scored = [*ids, 3] if len(ids) < length else ids
        total = sum(next_logprobs(model, source, tuple(scored[:i]))[token] for i, token in enumerate(scored))
        assert total == pytest.approx(answer.scores[0], abs=1e-4 * len(scored))


CASES = [
    ((False, False), {"bias": False, "positions": True, "activation": common_spec.Activation.RELU}),
    ((True, True), {"bias": True, "positions": False, "activation": common_spec.Activation.GELUSigmoid}),
    ((True, False), {"bias": True, "positions": True, "activation": common_spec.Activation.SWISH, "seed": 1}),
]


@pytest.mark.parametrize(("ends", "options"), CASES, ids=["no end", "start and end", "start alone"])
def test_tokens_and_log_probabilities_are_those_of_ctranslate2(
    tmp_path: Path, spm: Path, ends: tuple[bool, bool], options: dict[str, Any]
) -> None:
    save(tmp_path / "model", spm, ends, **options)
    imported = importer.read(tmp_path / "model", sentencepiece=spm)
    assert imported.config.source_end == ends[1]
    compare(imported, tmp_path / "model")


def old_file(model: ctranslate2_file.ModelFile, version: int, flags: dict[str, int]) -> bytes:
    """As CTranslate2 wrote it before 3.0: attributes in one place for both sides, flags in place of config.json."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    arrays = {name: tensor.numpy() for name, tensor in model.arrays.items() if not name.endswith("scale_outputs")}
    for name in importer.OLD_NAMES:
        for side in ("encoder", "decoder"):
            value = arrays.pop(f"{side}/{name}", None)
            arrays |= {name: value} if value is not None else {}
    for side in ("encoder", "decoder"):
        del arrays[f"{side}/scale_embeddings"]
    arrays |= {name: np.array(value, np.int8) for name, value in flags.items()}
    kinds = {"float32": 0, "int8": 1, "int16": 2, "int32": 3}
    content = struct.pack("<I", version) + text("TransformerSpec") + struct.pack("<II", 4, len(arrays))
    for name, array in arrays.items():
        content += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        size = struct.pack("<BI", kinds[str(array.dtype)], array.nbytes)
        content += (size if version > 3 else struct.pack("<BI", array.itemsize, array.size)) + array.tobytes()
    return content + struct.pack("<I", 0)


@pytest.mark.parametrize("version", [3, 5])
def test_files_from_before_config_json_are_read_as_ctranslate2_reads_them(
    tmp_path: Path, spm: Path, version: int
) -> None:
    path = tmp_path / "model"
    save(path, spm, CASES[0][0], **CASES[0][1])
    held = ctranslate2_file.read(path / "model.bin")
    (path / "model.bin").write_bytes(old_file(held, version, {"with_source_bos": 0, "with_target_bos": 1}))
    (path / "config.json").unlink()
    imported = importer.read(path, sentencepiece=spm)
    assert not imported.config.source_end
    compare(imported, path)


FIRST_NAMES = [
    ("embeddings_0/weight", "w_embs"),
    ("embeddings/weight", "w_embs"),
    ("layer_norm", "LayerNorm"),
    ("projection/", "dense/"),
    ("weight", "kernel"),
    ("linear_0", "conv1d"),
    ("linear_", "conv1d_"),
]


def first_name(name: str) -> str:
    """As CTranslate2 had it before its first release: the name in OpenNMT-tf."""
    if name.startswith("decoder"):
        name = name.replace("self_attention", "masked_multi_head").replace("/attention/", "/multi_head/")
    for new, old in [*FIRST_NAMES, ("self_attention", "multi_head")]:
        name = name.replace(new, old)
    return f"transformer/{name}:0"


def oldest_file(model: ctranslate2_file.ModelFile, version: int, int16: bool) -> bytes:
    """Format 1 has no spec and no revision, format 2 both; neither has aliases, attributes or scales of int16."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    arrays = {name: t.numpy() for name, t in model.arrays.items() if name.endswith(("weight", "bias", "gamma", "beta"))}
    content = struct.pack("<I", version)
    content += text("TransformerBase") + struct.pack("<I", 2) if version == 2 else b""
    content += struct.pack("<I", len(arrays))
    for name, array in arrays.items():
        if int16 and name.endswith("weight"):
            array = np.clip(array * 1000, -32768, 32767).astype(np.int16)
        current = name.replace("embeddings_0", "embeddings")
        content += text(first_name(name) if version == 1 else current)
        content += struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += struct.pack("<BI", array.itemsize, array.size) + array.tobytes()
    return content


@pytest.mark.parametrize("int16", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_the_first_formats_are_read_as_ctranslate2_reads_them(
    tmp_path: Path, spm: Path, version: int, int16: bool
) -> None:
    path = tmp_path / "model"
    options: dict[str, Any] = CASES[0][1] | {"positions": False, "bias": True, "heads": 8}
    save(path, spm, CASES[0][0], **options)
    held = ctranslate2_file.read(path / "model.bin")
    (path / "model.bin").write_bytes(oldest_file(held, version, int16))
    (path / "config.json").unlink()
    imported = importer.read(path, sentencepiece=spm)
    assert imported.config.heads == 8
    assert any("int16" in note for note in imported.notes) == int16
    compare(imported, path)


def test_a_source_without_an_end_is_exported_and_served_as_torch_decodes_it(
    tmp_path: Path, spm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "model", spm, CASES[0][0], **CASES[0][1])
    run, bundle = str(tmp_path / "run"), str(tmp_path / "bundle")
    assert main(["import", "ctranslate2", str(tmp_path / "model"), "--sentencepiece", str(spm), "--out", run]) == 0
    (tmp_path / "samples.tsv").write_text("".join(f"{text}\tthe\n" for text in sentences(6)))
    samples = ["--samples", str(tmp_path / "samples.tsv")]
    assert main(["export", run, "--out", bundle, "--precision", "fp32", *samples]) == 0
    imported = importer.read(tmp_path / "model", sentencepiece=spm)
    texts = sentences(5, seed=4)
    wanted = decode_all(imported.load(), [imported.source.encode(text).ids for text in texts], max_length=20)
    capsys.readouterr()
    assert main(["generate", "--bundle", bundle, "--max-length", "20", *texts]) == 0
    found = capsys.readouterr().out.splitlines()
    assert found == [imported.target.decode(ids, skip_special_tokens=False) for ids in wanted]
