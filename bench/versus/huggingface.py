"""Hugging Face's `generate` and Optimum's `ORTModelForSeq2SeqLM` on the very same weights, beside our engine.

    pip install 'transformers<4.58' optimum-onnx
    python -m bench.versus.huggingface

They are far behind CTranslate2, so they are measured once a release, each where it can be installed. Our post-norm
model is a Marian model: its weights go there as they are, and with a length forced its tokens are ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from pathlib import Path
from typing import Any

from bench.report.record import RESULTS_HERE, warn_of_few_cores, write_record
from bench.versus.engines import Answer, Source
from bench.versus.quick import WORKS
from bench.versus.race import UnequalError, race, show_row
from bench.versus.worker import Worker

KINDS = {"transformers": "transformers", "optimum": "optimum.onnxruntime"}  # and the module that each needs
PAD, BOS, EOS = 0, 2, 3


def marian_config(config: Any) -> dict[str, Any]:
    """A model's options in Marian's words; an attribute that neither has is refused."""
    if (config.norm, config.score, config.tied, config.bias) != ("post", "dot", "three", True):
        raise ValueError("only a post-norm model with dot products, biases and one vocabulary is a Marian model.")
    return {
        "vocab_size": config.target_vocab,
        "d_model": config.d_model,
        "activation_function": config.activation,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "max_position_embeddings": config.max_length,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "dropout": 0.0,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
    }


def marian_weights(model: Any) -> dict[str, Any]:
    """A model's weights by Marian's names.

    Marian always has sines in the first half of its features and cosines in the second, where ours alternate: so all
    features are put in that order, which changes no answer.
    """
    import torch

    d_model = model.config.d_model
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    weights = dict(model.named_parameters(remove_duplicate=False))
    found = {"model.shared.weight": weights["target_embedding.tokens.weight"][:, order]}
    for side in ("encoder", "decoder"):
        embedding = "source_embedding" if side == "encoder" else "target_embedding"
        found[f"model.{side}.embed_positions.weight"] = getattr(model, embedding).positions[:, order]
        for i in range(len(getattr(model, side))):
            ours, theirs = f"{side}.{i}", f"model.{side}.layers.{i}"
            for kind, name in (("self", "self_attn"), ("cross", "encoder_attn")):
                if f"{ours}.{kind}_attention.project_in.weight" in weights:
                    found |= _attention(weights, order, f"{ours}.{kind}", f"{theirs}.{name}")
            found[f"{theirs}.fc1.weight"] = weights[f"{ours}.feed_forward.widen.weight"][:, order]
            found[f"{theirs}.fc1.bias"] = weights[f"{ours}.feed_forward.widen.bias"]
            for part in ("weight", "bias"):
                found[f"{theirs}.fc2.{part}"] = weights[f"{ours}.feed_forward.narrow.{part}"][order]
                found[f"{theirs}.final_layer_norm.{part}"] = weights[f"{ours}.feed_residual.norm.{part}"][order]
    return found


def _attention(weights: dict[str, Any], order: Any, ours: str, theirs: str) -> dict[str, Any]:
    found = {}
    for part in ("weight", "bias"):
        three = weights[f"{ours}_attention.project_in.{part}"].chunk(3)
        for name, value in zip("qkv", three, strict=True):
            found[f"{theirs}.{name}_proj.{part}"] = value[:, order] if part == "weight" else value
        found[f"{theirs}.out_proj.{part}"] = weights[f"{ours}_attention.project_out.{part}"][order]
        found[f"{theirs}_layer_norm.{part}"] = weights[f"{ours}_residual.norm.{part}"][order]
    return found


def save_marian(run: Path, out: Path) -> None:
    """The run as a Marian model directory."""
    from transformers import MarianConfig, MarianMTModel

    from attendant.model.checkpoint import load_trained

    model = load_trained(run).model
    marian = MarianMTModel(MarianConfig(**marian_config(model.config)))
    missing, unknown = marian.load_state_dict(marian_weights(model), strict=False)
    left = [name for name in missing if not name.endswith(("embed_tokens.weight", "lm_head.weight", "logits_bias"))]
    if left or unknown:
        raise ValueError(f"the weights do not fit a Marian model: {left + list(unknown)}")
    marian.tie_weights()
    shutil.rmtree(out, ignore_errors=True)
    marian.eval().save_pretrained(out)


class GenerateEngine:
    """`generate` on torch or on onnxruntime: both have the same interface."""

    def __init__(self, kind: str, path: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        if kind == "transformers":
            from transformers import MarianMTModel

            self._model = MarianMTModel.from_pretrained(path).eval()
        else:
            import onnxruntime
            from optimum.onnxruntime import ORTModelForSeq2SeqLM

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            self._model = ORTModelForSeq2SeqLM.from_pretrained(path, export=True, session_options=options)

    def answer(self, sources: list[Source], beam_size: int, length: int | None, scores: bool = False) -> list[Answer]:
        ids = [[*source, EOS] for source in sources]
        longest = max(map(len, ids))
        padded = self._torch.tensor([row + [PAD] * (longest - len(row)) for row in ids])
        with self._torch.inference_mode():
            found = self._model.generate(
                input_ids=padded,
                attention_mask=(padded != PAD).long(),
                num_beams=beam_size,
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
                length_penalty=1.0,
                bad_words_ids=None,
                return_dict_in_generate=True,
                output_scores=scores and beam_size > 1,
            )
        totals = found.sequences_scores.tolist() if scores and beam_size > 1 else [0.0] * len(sources)
        rows = found.sequences[:, 1:].tolist()
        return [Answer(tuple(row), total) for row, total in zip(rows, totals, strict=True)]

    def close(self) -> None: ...


def installed() -> list[str]:
    return [kind for kind, module in KINDS.items() if _found(module)]


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Hugging Face's generate and Optimum, on the same weights.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "huggingface.json")
    options = parser.parse_args()
    warn_of_few_cores(options.threads)
    kinds = installed()
    if not kinds:
        raise SystemExit(
            "neither transformers nor optimum-onnx is installed: pip install 'transformers<4.58' optimum-onnx"
        )

    from bench.models.random_model import BASE, prepare

    prepared = prepare(BASE)
    marian = prepared.directory / "marian"
    if not marian.is_dir():
        save_marian(prepared.run, marian)
    workers: list[Worker] = []
    try:
        workers += [Worker("ours", prepared.bundle, precision, options.threads) for precision in ("fp32", "int8")]
        workers += [Worker(kind, marian, "fp32", options.threads) for kind in kinds]
        rows = race(workers, WORKS, BASE.vocabulary, options.seconds)
    except UnequalError as error:
        raise SystemExit(str(error)) from None
    finally:
        for worker in workers:
            worker.close()
    write_record(options.out, "bench.versus.huggingface", rows, threads=options.threads)
    for row in rows:
        print(show_row({**row, "goal": None}))


if __name__ == "__main__":
    main()
