"""An imported model against CTranslate2: one directory, `attendant import marian` and CTranslate2's own converter.

    python -m bench.versus.imported [--seconds 60]

The directory is a Marian of the paper's base size, as Hugging Face's library writes it, with random weights: post-norm,
swish, an output bias. Works, turns and ratios are those of `bench.versus.quick`. It needs the `dev` extra.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from bench.models.random_model import ATTENTION, CACHE, FEED_FORWARD, LOGITS, SHARPNESS, write_random_bundle
from bench.report.record import RESULTS_HERE, facts, warn_of_few_cores, write_json
from bench.versus.quick import WORKS
from bench.versus.race import UnequalError, race, show_row, start_workers

DIRECTORY = CACHE / "marian"
VOCABULARY, WIDTH, LAYERS = 32_000, 512, 6
TEXT = ["a text that the tokenizer is learnt from, which is never tokenized here"]


def main() -> None:
    parser = argparse.ArgumentParser(description="The ratios to CTranslate2 of an imported Marian of base size.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long turns are taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "imported.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)
    if not (DIRECTORY / "bundle").is_dir():
        prepare(DIRECTORY)
    models = {precision: DIRECTORY / f"ctranslate2-{precision}" for precision in ("fp32", "int8")}
    workers = start_workers(DIRECTORY / "bundle", models, options.threads)
    try:
        rows = race(workers, WORKS, VOCABULARY, options.seconds)
    except UnequalError as error:
        raise SystemExit(str(error)) from None
    finally:
        for worker in workers:
            worker.close()
    about = {**facts("bench.versus.imported"), "threads": options.threads}
    write_json(options.out, [{**row, **about} for row in rows])
    for row in rows:
        print(show_row(row))


def prepare(directory: Path) -> None:
    """The directory, our bundle of it, and CTranslate2's two models."""
    from ctranslate2.converters import TransformersConverter

    from attendant import main as attendant

    print(f"{directory}: writing a random Marian", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    write_marian(directory / "marian")
    for precision, quantization in (("fp32", None), ("int8", "int8")):
        converter = TransformersConverter(str(directory / "marian"))
        converter.convert(str(directory / f"ctranslate2-{precision}"), quantization=quantization)
    if attendant(["import", "marian", str(directory / "marian"), "--out", str(directory / "run")]):
        raise SystemExit("the import was refused")
    write_random_bundle(directory / "run", directory / "bundle")


def write_marian(path: Path) -> None:
    """Token i of ours is called t<i>, which `bench.versus.engines` tells CTranslate2."""
    import sentencepiece
    import torch
    import transformers

    path.mkdir(parents=True)
    for name in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT), model_prefix=str(path / name), vocab_size=40, hard_vocab_limit=False
        )
        (path / f"{name}.model").rename(path / f"{name}.spm")
        (path / f"{name}.vocab").unlink()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / "source.spm"))
    known = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    words = [f"t{i}" for i in range(4, VOCABULARY)]
    tokens = ["</s>", "<unk>", *words, *known, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}), encoding="utf-8"
    )
    size: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIZES.items()}
    config = transformers.MarianConfig(
        vocab_size=len(tokens),
        d_model=WIDTH,
        max_position_embeddings=512,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=len(tokens) - 1,
        decoder_start_token_id=len(tokens) - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
        **size,
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config)
    randomize(model, len(words))
    model.save_pretrained(path)


SIZES = {"layers": LAYERS, "ffn_dim": 4 * WIDTH, "attention_heads": 8}


def randomize(model: Any, words: int) -> None:
    """Weights with which answers are words and differ by their sources, as those of `bench.models.random_model`."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2 or "embed_positions" in name:
                continue
            if "shared" in name or "embed_tokens" in name:
                weight.normal_(std=WIDTH**-0.5)
                weight[:2], weight[2 + words :] = 0.0, 0.0
                continue
            torch.nn.init.xavier_uniform_(weight)
            if "fc2" in name:
                weight.sub_(weight.mean(1, keepdim=True)).mul_(FEED_FORWARD)
            elif "out_proj" in name:
                weight.mul_(ATTENTION)
            elif "q_proj" in name or "k_proj" in name:
                weight.mul_(SHARPNESS)
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(LOGITS)


if __name__ == "__main__":
    main()
