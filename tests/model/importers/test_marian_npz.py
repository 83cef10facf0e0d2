"""Marian's own .npz, written here from models of Hugging Face's library, which is the oracle."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers

from attendant import main
from attendant.model.importers.files import marian_yaml
from attendant.model.importers.formats import marian_npz
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import ImportRefusedError
from tests.model.importers.test_marian import SHAPE, make_marian
from tests.support.foreign import (
    LENGTH,
    SOURCES,
    WORDS,
    Harmful,
    check_against,
    names_to_foreign,
    randomize,
    sentences,
    train_spm,
)

ATTENTION = {f"{part}_proj": part for part in "qkv"} | {"out_proj": "o"}
NORMS = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}
OPTIONS = {
    "type": "transformer",
    "dim-emb": SHAPE["d_model"],
    "transformer-dim-ffn": SHAPE["encoder_ffn_dim"],
    "transformer-heads": SHAPE["encoder_attention_heads"],
    "enc-depth": SHAPE["encoder_layers"],
    "dec-depth": SHAPE["decoder_layers"],
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "tied-embeddings-all": True,
    "right-left": False,
    "version": "v1.9.0",
}
PRE_NORM = {
    "transformer-ffn-activation": "gelu",
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-emb": "nd",
    "transformer-postprocess-top": "n",
    "tied-embeddings-all": False,
}


def sinusoids() -> torch.Tensor:
    """As Marian's SinusoidalPositionEmbeddings computes them: frequencies 10000^(-i / (half - 1)) from position 0."""
    d = SHAPE["d_model"]
    half = d // 2
    return torch.tensor(
        [
            [
                (math.sin if i < half else math.cos)(p * math.exp((i % half) * -math.log(10000) / (half - 1)))
                for i in range(d)
            ]
            for p in range(LENGTH)
        ]
    )


def npz_arrays(model: Any, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    """A model's layers and norms under Marian's names; the last row, of padding, is left out of tables."""
    options, arrays = OPTIONS | changes, {}
    pre = "_pre" if options["transformer-preprocess"] else ""
    for name, value in model.state_dict().items():
        parts = name.split(".")
        array = value.numpy()
        if "layers" in parts:
            side, number, module, leaf = parts[1], int(parts[3]) + 1, parts[4], parts[-1]
            layer = f"{side}_l{number}"
            if module in NORMS:
                arrays[f"{layer}_{NORMS[module]}_ln_{'scale' if leaf == 'weight' else 'bias'}{pre}"] = array[None]
                continue
            if module in ("fc1", "fc2"):
                place, letter = f"{layer}_ffn_", module[-1]
            else:
                place, letter = f"{layer}_{'self' if module == 'self_attn' else 'context'}_", ATTENTION[parts[5]]
            arrays[f"{place}{'W' if leaf == 'weight' else 'b'}{letter}"] = array.T if leaf == "weight" else array[None]
        elif len(parts) > 2 and parts[-2] in ("layernorm_embedding", "layer_norm"):
            kind, end = ("emb", "_pre") if parts[-2] == "layernorm_embedding" else ("top", "")
            arrays[f"{parts[1]}_{kind}_ln_{'scale' if parts[-1] == 'weight' else 'bias'}{end}"] = array[None]
    source, target = (module.embed_tokens.weight.detach().numpy()[:-1] for module in sides(model))
    bias = model.final_logits_bias.numpy()[:, :-1]
    if options["tied-embeddings-all"]:
        arrays["Wemb"] = source
    else:
        arrays |= {"encoder_Wemb": source, "decoder_Wemb": target}
        arrays["decoder_ff_logit_out_Wt"] = model.lm_head.weight.detach().numpy()[:-1]
    return arrays | {"decoder_ff_logit_out_b": bias, "special:model.yml": text_array(options)}


def sides(model: Any) -> tuple[Any, Any]:
    return model.model.encoder, model.model.decoder


def text_array(options: dict[str, Any]) -> np.ndarray:
    lines = [f"{name}: {json.dumps(value)}" for name, value in options.items() if not isinstance(value, list)]
    for name, value in options.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"  - {json.dumps(entry)}" for entry in value)] if value else [f"{name}: []"]
    return np.frombuffer("\n".join(lines).encode() + b"\0", np.int8)


def write(path: Path, arrays: dict[str, np.ndarray], vocabularies: list[str]) -> Path:
    np.savez(path / "model.npz", **arrays)
    listed = "".join(f"  - /somewhere/else/{name}\n" for name in vocabularies)
    (path / "model.npz.decoder.yml").write_text(
        f"relative-paths: false\nmodels:\n  - /x/model.npz\nvocabs:\n{listed}beam-size: 6\nnormalize: 0.6\n"
    )
    return path / "model.npz"


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, dict[str, int]]:
    """As OPUS-MT has it: one vocabulary in YAML, SentencePiece for each side, languages among the tokens."""
    path = tmp_path_factory.mktemp("npz")
    oracle = make_marian(path / "hf")
    for module in sides(oracle):
        module.embed_positions.weight.data = sinusoids()
    with torch.no_grad():
        oracle.model.shared.weight[-1] = 0
    ids = json.loads((path / "hf" / "vocab.json").read_text(encoding="utf-8"))
    lines = (f"{json.dumps(token, ensure_ascii=False)}: {i}\n" for token, i in ids.items() if token != "<pad>")
    (path / "vocab.yml").write_text("".join(lines), encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        (path / name).write_bytes((path / "hf" / name).read_bytes())
    write(path, npz_arrays(oracle, {}), ["vocab.yml", "vocab.yml"])
    return path, oracle, ids


def compare(imported: ImportedModel, oracle: Any, ids: dict[str, int], encode: Any) -> None:
    pad = oracle.config.pad_token_id
    to_foreign = names_to_foreign(imported, "target", ids, [pad, ids["<unk>"], pad, ids["</s>"]])

    def forward(source: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return oracle(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits

    # The oracle has fewer positions: Marian's sinusoids end nowhere.
    for side in ("source", "target"):
        imported.weights[f"{side}_embedding.positions"] = imported.weights[f"{side}_embedding.positions"][:LENGTH]
    imported.config = dataclasses.replace(imported.config, max_length=LENGTH)
    check_against(imported, sentences(SOURCES), to_foreign, forward, encode, [pad], ids["</s>"], pad, [pad])


@pytest.mark.parametrize("language", [None, "fra"])
def test_tokens_and_log_probabilities_are_those_of_transformers(opus: Any, language: str | None) -> None:
    path, oracle, ids = opus
    spm = sentencepiece.SentencePieceProcessor(model_file=str(path / "source.spm"))
    before = [ids[f">>{language}<<"]] if language else []

    def encode(text: str) -> list[int]:
        return [*before, *(ids.get(piece, ids["<unk>"]) for piece in spm.encode(text, out_type=str)), 0]

    names = {**ids, "fra": ids[">>fra<<"], "deu": ids[">>deu<<"]}
    compare(marian_npz.read(path / "model.npz", target_language=language), oracle, names, encode)


def test_pre_norm_gelu_norms_and_separate_tables_are_those_of_transformers(tmp_path: Path) -> None:
    """mBART has pre-norm and the norms; its activation is set to Marian's GELU, its positions to Marian's."""
    spm = train_spm(tmp_path / "vocab.spm", WORDS, bos_id=-1, eos_id=0, unk_id=1)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    ids = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    pad = len(ids)
    config = transformers.MBartConfig(
        **(SHAPE | {"activation_function": "quick_gelu", "vocab_size": pad + 1, "tie_word_embeddings": False}),
        pad_token_id=pad,
        eos_token_id=0,
    )
    oracle = transformers.MBartForConditionalGeneration(config).eval()
    randomize(oracle)
    oracle.final_logits_bias.normal_().mul_(0.3)[0, 0] += 1
    with torch.no_grad():
        for module in sides(oracle):
            module.embed_tokens.weight[pad] = 0
            module.embed_positions.weight[2:] = sinusoids()
    write(tmp_path, npz_arrays(oracle, PRE_NORM), ["vocab.spm", "vocab.spm"])
    imported = marian_npz.read(tmp_path / "model.npz")
    assert imported.config.norm == "pre"
    assert imported.config.embedding_norm
    compare(imported, oracle, ids, lambda text: [*processor.encode(text), 0])


def test_generation_defaults_and_languages_come_along(opus: Any) -> None:
    imported = marian_npz.read(opus[0] / "model.npz")
    assert imported.generation == {"beam_size": 6, "length_penalty": 0.6}
    assert sorted(imported.languages["source_prefix_by_target"]) == ["deu", "fra"]


def test_vocabularies_are_read_as_marian_writes_them() -> None:
    lines = [
        "</s>: 0",
        '"a\\"b\\x20\\u00e4": 1',
        "'it''s': 2",
        "no: 3",
        '":": 4',
        "? |long",
        ": 5",
        "x\u2028y: 6",
        "a: b: 7",
    ]
    found = marian_yaml.vocabulary(lines)
    assert list(found) == ["</s>", 'a"b \u00e4', "it's", "no", ":", "|long", "x\u2028y", "a: b"]
    assert list(found.values()) == list(range(8))


def test_all_that_does_not_fit_is_said_at_once(opus: Any, tmp_path: Path) -> None:
    path, oracle, _ = opus
    changes: dict[str, Any] = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
    changes |= {
        "transformer-postprocess": "dhn",
        "transformer-ffn-activation": "tanh",
        "transformer-tied-layers": [1, 1],
    }
    arrays = npz_arrays(oracle, changes) | {"special:model.yml": text_array(OPTIONS | changes)}
    write(tmp_path, arrays, ["vocab.yml", "vocab.yml"])
    (tmp_path / "vocab.yml").write_bytes((path / "vocab.yml").read_bytes())
    with pytest.raises(ImportRefusedError) as refused:
        marian_npz.read(tmp_path / "model.npz")
    for part in ("recurrent cells (SSRU)", "'dhn'", "'tanh'", "layers that share weights"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "s2s"}, "its type is 's2s'"),
        ({"transformer-decoder-autoreg": "average-attention"}, r"average attention \(AAN\)"),
        (
            {"transformer-postprocess-top": "", "transformer-preprocess": "n", "transformer-postprocess": "da"},
            "without a norm after",
        ),
        ({"enc-depth": 10**9}, "enc-depth is 1000000000"),
        ({"dim-emb": 10**12}, "dim-emb is 1000000000000"),
        ({"enc-depth": 3}, "encoder_l3_self_Wq is missing"),
        ({"enc-depth": 1}, "more than 1 layers"),
    ],
)
def test_other_architectures_are_refused_by_name(opus: Any, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path, oracle, _ = opus
    arrays = npz_arrays(oracle, {}) | {"special:model.yml": text_array(OPTIONS | changes)}
    with pytest.raises(ImportRefusedError, match=said):
        marian_npz.read(write(tmp_path, arrays, ["vocab.yml"]), source_vocabulary=path / "vocab.yml")


def entry(header: str, content: bytes) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def archived(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def test_hostile_files_are_refused_in_a_sentence_and_nothing_is_written(
    opus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = (opus[0] / "model.npz").read_bytes()
    objects = entry("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps(Harmful()))
    huge = entry("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", b"")
    negative = entry("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", b"")
    short = entry("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", b"1234")
    records = entry("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", b"1234")
    array = entry("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", b"1234")
    long = entry("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", bytes(16))
    nested = entry("[" * 5000, b"")
    twice = io.BytesIO(archived("Wemb", array))
    with zipfile.ZipFile(twice, "a") as archive:
        archive.writestr("Wemb.npy", array)
    cases = {
        "cut": (whole[: len(whole) // 2], "no whole .npz"),
        "empty": (b"", "no whole .npz"),
        "objects": (archived("Wemb.npy", objects), "'Wemb' cannot be read: Object arrays cannot be loaded"),
        "huge": (archived("Wemb.npy", huge), "'Wemb'"),
        "negative": (archived("Wemb.npy", negative), "'Wemb' cannot be read"),
        "short": (archived("Wemb.npy", short), "'Wemb' cannot be read"),
        "records": (archived("Wemb.npy", records), "which is refused: only numbers of up to 64 bits are read"),
        "long": (archived("Wemb.npy", long), "which is refused: only numbers of up to 64 bits are read"),
        "text": (archived("Wemb.npy", b"no array"), "'Wemb' is no array"),
        "twice": (twice.getvalue(), "holds 'Wemb' twice"),
        "late": (array + archived("Wemb.npy", huge), "does not begin as a zip archive"),
        "nested": (archived("Wemb.npy", nested), "no whole .npz"),
        "bomb": (archived("Wemb.npy", bytes(2**27)), "unpacks to 134,217,728 bytes"),
        "pickle": (pickle.dumps(Harmful()), "no whole .npz"),
        "bare": (
            archived("Wemb.npy", array),
            "special:model.yml",
        ),
    }
    for name, (content, said) in cases.items():
        Path(f"{name}.npz").write_bytes(content)
        assert main(["import", "marian-npz", f"{name}.npz", "--out", "run"]) == 1
        shown = capsys.readouterr().err
        assert said in shown, name
        assert "Traceback" not in shown
        Path(f"{name}.npz").unlink()
    assert main(["import", "marian-npz", str(tmp_path), "--out", "run"]) == 1
    assert "it is a directory; name the .npz file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
