"""int8 holds for imported models that are trained and have a few channels far larger than the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from torch import Tensor, nn

from attendant import main
from attendant.export.bundle import read_bundle
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import graphs_of
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.balance import load_balanced
from attendant.export.make.convert import write_graphs
from attendant.export.runner import GraphStepper, Runner
from attendant.model import checkpoint
from attendant.model.importers.formats import fairseq, marian, t5
from attendant.model.importers.imported import ImportedModel
from attendant.model.search.decode import decode_sources
from attendant.model.transformer import Transformer
from tests.model.importers.test_fairseq import fairseq_weights, options, sinusoids, write_dictionaries
from tests.model.importers.test_marian import pieces_of
from tests.model.importers.test_trained import train
from tests.support.foreign import OTHER, WORDS, TorchTransformer, sentences, train_spm

STEPS, STEPS_OF_T5 = 300, 500
ASKED, WITHIN = 2000, 0.1  # sentences, and points of their error rate
FACTOR = 30.0
TABLE = dict(zip(WORDS, [*OTHER, "sind"], strict=True))
SIZES: dict[str, Any] = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("ffn_dim", 128), ("attention_heads", 4), ("layers", 1))
}


def translated(text: str) -> str:
    return " ".join(TABLE[word] for word in text.split())


def learn(model: nn.Module, encode: Callable[[str, list[str]], list[list[int]]], pad: int, steps: int = STEPS) -> None:
    texts = sentences(8000)
    train(model, encode("source", texts), encode("target", [translated(text) for text in texts]), pad, steps)


def trained_marian(path: Path) -> ImportedModel:
    spm = {
        name: sentencepiece.SentencePieceProcessor(model_file=str(train_spm(path / f"{name}.spm", words)))
        for name, words in (("source", WORDS), ("target", [*OTHER, "sind"]))
    }
    pieces = sorted({piece for name in spm for piece in pieces_of(path / f"{name}.spm")} - {"<s>", "</s>", "<unk>"})
    ids = {token: i for i, token in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    special = {"pad_token_id": ids["<pad>"], "decoder_start_token_id": ids["<pad>"], "eos_token_id": 0}
    config = transformers.MarianConfig(
        vocab_size=len(ids), **SIZES, **special, d_model=64, max_position_embeddings=64, init_std=0.1, dropout=0.0
    )
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config)

    def encode(side: str, texts: list[str]) -> list[list[int]]:
        return [[*(ids[piece] for piece in spm[side].encode(text, out_type=str)), 0] for text in texts]

    learn(model, encode, ids["<pad>"])
    model.final_logits_bias[0, ids["<pad>"]] = -1e4
    model.save_pretrained(path)
    return marian.read(path)


def trained_t5(path: Path) -> ImportedModel:
    train_spm(path / t5.SPM, [*WORDS, *OTHER, "sind"], pad_id=0, eos_id=1, unk_id=2, bos_id=-1, vocab_size=80)
    tokenizer = transformers.T5Tokenizer.from_pretrained(str(path))
    shape = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 1, "decoder_start_token_id": 0}
    more = {"feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "initializer_factor": 0.5}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=len(tokenizer), **shape, **more))
    learn(model, lambda _, texts: list(tokenizer(texts).input_ids), 0, STEPS_OF_T5)
    model.save_pretrained(path)
    return t5.read(path, max_length=40)


class WithLoss(nn.Module):
    """torch's own transformer, trained as fairseq would: the decoder begins with </s>, 2, and padding is 1."""

    def __init__(self, model: TorchTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        read = torch.cat([torch.full((len(labels), 1), 2), labels[:, :-1].masked_fill(labels[:, :-1] < 0, 1)], 1)
        logits = self.model(input_ids, attention_mask, read).transpose(1, 2)
        return transformers.utils.ModelOutput(loss=nn.functional.cross_entropy(logits, labels, ignore_index=-100))


def trained_fairseq(path: Path) -> ImportedModel:
    words, width = [*WORDS, *OTHER, "sind"], 32
    torch.manual_seed(0)
    shape = {"d_model": width, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 48}
    model = TorchTransformer(len(words) + 4, len(words) + 4, sinusoids(28), **shape, norm_first=True, output_bias=False)
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=width**-0.5)
    learn(WithLoss(model), lambda _, texts: [[*(words.index(w) + 4 for w in t.split()), 2] for t in texts], 1)
    torch.save({"args": options(True), "model": fairseq_weights(model)}, path / "checkpoint.pt")
    return fairseq.read(path / "checkpoint.pt", **write_dictionaries(path, words))


@torch.no_grad()
def stretch(model: Transformer) -> None:
    """The same function, with two channels before every product 30 times larger, and its weights 30 times smaller."""

    def rows(module: Any, chosen: list[int], factor: float) -> None:
        for weight in module.parameters():
            weight[chosen] *= factor

    config, before = model.config, [1, model.config.d_model // 2]
    for layer in [*model.encoder, *model.decoder]:
        for attention in [
            getattr(layer, name) for name in ("self_attention", "cross_attention") if hasattr(layer, name)
        ]:
            values = [2, config.inner // 2 + 3]
            rows(attention.project_in, [config.inner + i for i in values], FACTOR)  # keys, which meet queries
            rows(attention.project_in, values, 1 / FACTOR)
            rows(attention.project_in, [2 * config.inner + i for i in values], FACTOR)
            attention.project_out.weight[:, values] /= FACTOR
        if config.gated:
            rows(layer.feed_forward.widen, [config.d_ff + i for i in before], FACTOR)
        elif config.activation == "relu":
            rows(layer.feed_forward.widen, before, FACTOR)
        if config.gated or config.activation == "relu":
            layer.feed_forward.narrow.weight[:, before] /= FACTOR
        if config.norm == "pre":
            for norm, product in (
                (layer.self_residual.norm, layer.self_attention.project_in),
                (layer.feed_residual.norm, layer.feed_forward.widen),
            ):
                rows(norm, before, FACTOR)
                product.weight[:, before] /= FACTOR


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int8")


@cache
def run_of(make: Callable[[Path], ImportedModel], directory: Path) -> Path:
    """A run of a model that was trained, written in its format, imported and stretched."""
    path = directory / make.__name__
    path.mkdir()
    imported = make(path)
    model = imported.load()
    stretch(model)
    imported.weights = checkpoint.weights_of(model)
    imported.write(path / "run")
    return path / "run"


def error_rate(run: Path, precision: str, out: Path) -> float:
    """Percent of the sentences, by the graphs that are exported."""
    trained, texts = load_balanced(run), sentences(ASKED, seed=9)
    write_graphs(precision, trained.config, arrays_of(trained.model), out / precision)
    graphs = {name: out / precision / f"{name}.onnx" for name in graphs_of(precision, trained.config)}
    stepper = GraphStepper(Runner(graphs, sizes_of(trained.config)))
    found = decode_sources(stepper, trained.source.encode_batch(texts), shows=False)
    wrong = sum(trained.target.decode(ids) != translated(text) for ids, text in zip(found, texts, strict=True))
    return 100 * wrong / len(texts)


@pytest.mark.parametrize("make", [trained_marian, trained_t5, trained_fairseq])
def test_int8_of_a_trained_model_with_large_channels_has_the_error_rate_of_f32(
    make: Callable[[Path], ImportedModel], directory: Path, tmp_path: Path
) -> None:
    run = run_of(make, directory)
    whole, rounded = (error_rate(run, precision, tmp_path) for precision in ("fp32", "int8"))
    assert whole < 5  # it is trained
    assert abs(rounded - whole) <= WITHIN


def test_an_export_without_samples_keeps_int8_of_a_trained_model(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    run = run_of(trained_fairseq, directory)
    assert main(["export", str(run), "--out", str(out), "--require", "int8", "--seconds", "0.1"]) == 0
    assert list(read_bundle(out).variants) == ["fp32", "int8"]
