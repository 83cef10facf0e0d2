"""CTranslate2 with the very same weights, and the proof that in f32 its tokens are ours.

    python -m bench.models.peers

A run's weights become a CTranslate2 model directory, in f32 and in int8. With a length forced (no end token before it,
none after it) both searches are the same, so greedy and beam search must give the same tokens, and the sums of
log-probabilities must agree. CTranslate2 is imported where it is used: converting needs torch, running does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.report.record import RESULTS_HERE, write_record
from bench.versus.engines import PEER_NAMES, SOURCE_LENGTH, TARGET_LENGTH, Engine, make_engine, sources

COMPUTE_TYPES = {"fp32": None, "int8": "int8"}  # ours: CTranslate2's name for the quantization of weights
SCORE_TOLERANCE = 1e-3  # of a sum of log-probabilities over a whole target


def prepare_peer(run: Path, out: Path) -> dict[str, Path]:
    """The run as CTranslate2 models, by compute type, beside each other; made once."""
    paths = {name: out / name for name in COMPUTE_TYPES}
    version = importlib.metadata.version("ctranslate2")
    for name, path in paths.items():
        if (path / "version.txt").is_file() and (path / "version.txt").read_text(encoding="utf-8") == version:
            continue
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        save_peer(run, path, COMPUTE_TYPES[name])
        (path / "version.txt").write_text(version, encoding="utf-8")
    return paths


def save_peer(run: Path, out: Path, quantization: str | None) -> None:
    """One CTranslate2 model directory from a run's weights."""
    from attendant.model.checkpoint import load_trained

    model = load_trained(run).model
    spec = peer_spec(model)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(out))


def peer_spec(model: Any) -> Any:
    """A Transformer as CTranslate2 describes one; it takes pre- and post-norm, ReLU, GELU and SiLU, dot products."""
    from ctranslate2.specs import transformer_spec
    from ctranslate2.specs.common_spec import Activation

    config, weights = model.config, Weights(model)
    if config.score != "dot" or not config.bias:
        raise ValueError(f"CTranslate2 has no model with score={config.score} and bias={config.bias}.")
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation={"relu": Activation.RELU, "gelu": Activation.GELU, "silu": Activation.SWISH}[config.activation],
    )
    for side, embedding, embeddings in (
        (spec.encoder, "source_embedding", spec.encoder.embeddings[0]),
        (spec.decoder, "target_embedding", spec.decoder.embeddings),
    ):
        embeddings.weight = weights[f"{embedding}.tokens.weight"]
        side.position_encodings.encodings = getattr(model, embedding).positions.detach().numpy()
        side.scale_embeddings = True
    spec.decoder.projection.weight = weights["output.weight"]
    if config.norm == "pre":
        weights.norm(spec.encoder.layer_norm, "encoder_norm")
        weights.norm(spec.decoder.layer_norm, "decoder_norm")
    for i, layer in enumerate(spec.encoder.layer):
        weights.self_attention(layer.self_attention, f"encoder.{i}")
        weights.feed_forward(layer.ffn, f"encoder.{i}")
    for i, layer in enumerate(spec.decoder.layer):
        weights.self_attention(layer.self_attention, f"decoder.{i}")
        weights.cross_attention(layer.attention, f"decoder.{i}")
        weights.feed_forward(layer.ffn, f"decoder.{i}")
    for register, size in (
        (spec.register_source_vocabulary, config.source_vocab),
        (spec.register_target_vocabulary, config.target_vocab),
    ):
        register([*PEER_NAMES, *(f"t{i}" for i in range(len(PEER_NAMES), size))])
    spec.config.layer_norm_epsilon = 1e-5
    return spec


class Weights:
    """A model's weights by name, put where CTranslate2 looks for them."""

    def __init__(self, model: Any) -> None:
        self._values = {name: value.detach().numpy() for name, value in model.named_parameters(remove_duplicate=False)}

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._values[name]

    def linear(self, spec: Any, name: str, start: int = 0, stop: int | None = None) -> None:
        spec.weight = np.ascontiguousarray(self[f"{name}.weight"][start:stop])
        spec.bias = np.ascontiguousarray(self[f"{name}.bias"][start:stop])

    def norm(self, spec: Any, name: str) -> None:
        spec.gamma, spec.beta = self[f"{name}.weight"], self[f"{name}.bias"]

    def self_attention(self, spec: Any, layer: str) -> None:
        self.linear(spec.linear[0], f"{layer}.self_attention.project_in")
        self.linear(spec.linear[1], f"{layer}.self_attention.project_out")
        self.norm(spec.layer_norm, f"{layer}.self_residual.norm")

    def cross_attention(self, spec: Any, layer: str) -> None:
        name = f"{layer}.cross_attention"
        d_model = self[f"{name}.project_out.weight"].shape[0]
        self.linear(spec.linear[0], f"{name}.project_in", 0, d_model)
        self.linear(spec.linear[1], f"{name}.project_in", d_model)
        self.linear(spec.linear[2], f"{name}.project_out")
        self.norm(spec.layer_norm, f"{layer}.cross_residual.norm")

    def feed_forward(self, spec: Any, layer: str) -> None:
        self.linear(spec.linear_0, f"{layer}.feed_forward.widen")
        self.linear(spec.linear_1, f"{layer}.feed_forward.narrow")
        self.norm(spec.layer_norm, f"{layer}.feed_residual.norm")


@dataclass(frozen=True)
class Case:
    requests: int
    beam_size: int
    source_length: int = SOURCE_LENGTH
    length: int = TARGET_LENGTH


CASES = (Case(1, 1), Case(1, 4), Case(32, 1), Case(16, 4), Case(4, 1, 3, 64), Case(4, 4, 60, 8))


def compare(ours: Engine, theirs: Engine, vocabulary: int, cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """For each case how many answers have the same tokens, and how far their scores are apart."""
    rows = []
    for case in cases:
        asked = sources(case.requests, case.source_length, vocabulary, seed=case.source_length)
        mine, others = (engine.answer(asked, case.beam_size, case.length, scores=True) for engine in (ours, theirs))
        same = [a.ids == b.ids and len(a.ids) == case.length for a, b in zip(mine, others, strict=True)]
        distance = max(abs(a.score - b.score) for a, b in zip(mine, others, strict=True))
        rows.append({**dataclasses.asdict(case), "same": sum(same), "score_distance": distance})
    return rows


def differences(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each case that is not the same on both sides."""
    found = []
    for row in rows:
        what = f"{row['requests']} requests, beam {row['beam_size']}, {row['length']} tokens"
        if row["same"] != row["requests"]:
            found.append(f"{what}: {row['requests'] - row['same']} answers have other tokens than CTranslate2's.")
        elif not row["score_distance"] <= SCORE_TOLERANCE:
            found.append(f"{what}: scores are up to {row['score_distance']:.2g} apart from CTranslate2's.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that CTranslate2 and our engine give the same tokens in f32.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "peers.json")
    options = parser.parse_args()

    from bench.models.random_model import BASE, prepare

    prepared = prepare(BASE)
    models = prepare_peer(prepared.run, prepared.directory / "ctranslate2")
    ours = make_engine("ours", prepared.bundle, "fp32", options.threads)
    theirs = make_engine("ctranslate2", models["fp32"], "fp32", options.threads)
    rows = compare(ours, theirs, BASE.vocabulary)
    for engine in (ours, theirs):
        engine.close()
    for row in rows:
        print(
            "{requests:>3} requests, beam {beam_size}, source {source_length}, {length} tokens: "
            "{same} the same, scores within {score_distance:.1g}".format(**row)
        )
    write_record(options.out, "bench.models.peers", rows)
    problems = differences(rows)
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
