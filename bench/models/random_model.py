"""A model with random weights, as a run and as a bundle, for measurements.

    python -m bench.models.random_model [--ending]

The default is the paper's base model with a vocabulary of 32,000. The weights come from a seed. As they are drawn by
training's initialisation a model repeats one token for ever; here the sub-layers are scaled so that its answers go on
changing, and the logits so that the most probable token leads the next by more than rounding.

Token i is called `t<i>`, so a text's ids can be read from it. Padding and start have no weights at all. The end token
has none either, so that it never comes by itself and a length can be forced; with --ending (`bench.models.ending`)
every answer is as long as its source.

What is written stays in runs/bench, and is written again when the options or the code of export change.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from attendant.export.bundle import write_bundle
from attendant.export.graphs.weights import arrays_of
from attendant.export.make import convert
from attendant.export.precisions import DEFAULT
from attendant.export.verify.int8_reference import follow, int8_reference
from attendant.model import checkpoint
from attendant.model.config import ModelConfig, to_json
from attendant.model.files import write_directory, write_json
from attendant.model.search import reference
from attendant.model.text.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, Tokenizer
from attendant.model.transformer import Transformer
from bench.models.ending import add_ending
from bench.versus.engines import FIRST_WORD, SOURCE_LENGTH, TARGET_LENGTH, random_ids, text

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "runs" / "bench"
# Found by trying: with these, an answer of 24 tokens has about 24 different ones, and no two sources have the same.
FEED_FORWARD, ATTENTION, SHARPNESS, LOGITS = 3.0, 0.3, 2.0, 4.0
SAMPLES, PAIRS = 4, 48
# Of certified log-probabilities: random weights and large logits are as far from friendly to rounding as can be. What
# int8 may be off is what the int8 reference in torch, which shares no code with the graphs, is off on its own.
TOLERANCE, REFERENCES = 1e-2, 2.0  # of f32 in nats; of int8 in times the reference's distance from f32


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a random model is made from."""

    vocabulary: int = 32_000
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    layers: int = 6
    max_length: int = 512
    ending: bool = False
    seed: int = 1

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            source_vocab=self.vocabulary,
            target_vocab=self.vocabulary,
            shared_vocab=True,
            tie="three",
            d_model=self.d_model,
            d_ff=self.d_ff,
            heads=self.heads,
            encoder_layers=self.layers,
            decoder_layers=self.layers,
            max_length=self.max_length,
        ).validate()


BASE = Shape()
LARGE = Shape(vocabulary=256_206, d_model=1024, d_ff=4096, heads=16, layers=12)  # of NLLB-600M


@dataclass(frozen=True)
class Prepared:
    """Where a random model lies on disk."""

    directory: Path
    shape: Shape

    @property
    def run(self) -> Path:
        return self.directory / "run"

    @property
    def bundle(self) -> Path:
        return self.directory / "bundle"


def prepare(shape: Shape = BASE, cache: Path = CACHE) -> Prepared:
    """The run and the bundle, made if they are not there yet or were made otherwise."""
    stamp = {"shape": dataclasses.asdict(shape), "code": _code_digest()}
    digest = hashlib.sha256(json.dumps(stamp["shape"], sort_keys=True).encode()).hexdigest()[:8]
    prepared = Prepared(cache / f"{shape.layers}x{shape.d_model}-{digest}", shape)
    stamped = prepared.directory / "stamp.json"
    if stamped.is_file() and json.loads(stamped.read_text(encoding="utf-8")) == stamp:
        return prepared
    print(f"{prepared.directory}: writing a random model", flush=True)
    shutil.rmtree(prepared.directory, ignore_errors=True)
    model = random_model(shape)
    write_run(prepared.run, shape, model)
    tokenizer = word_tokenizer(shape.vocabulary)
    write_random_bundle(
        prepared.run, prepared.bundle, checkpoint.TrainedModel(shape.config, model, tokenizer, tokenizer)
    )
    write_json(stamp, stamped)
    return prepared


def random_model(shape: Shape) -> Transformer:
    state = torch.get_rng_state()
    torch.manual_seed(shape.seed)
    model = Transformer(shape.config).eval()
    torch.set_rng_state(state)
    d_model = shape.d_model
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("narrow.weight"):  # ReLU's mean would add the same direction to every token
                weight.sub_(weight.mean(1, keepdim=True)).mul_(FEED_FORWARD)
            elif name.endswith("project_out.weight"):
                weight.mul_(ATTENTION)
            elif name.endswith("project_in.weight"):
                weight[: 2 * d_model].mul_(SHARPNESS)
        model.output.weight[[PAD, UNK, BOS, EOS]] = 0.0
        if shape.ending:
            add_ending(model)
        model.decoder[-1].feed_residual.norm.weight.mul_(LOGITS)
    return model


def write_run(run: Path, shape: Shape, model: Transformer) -> None:
    """A run as `attendant train` leaves it: options, tokenizers, samples, weights."""

    def fill(directory: Path) -> None:
        write_json({"format": 1, "model": to_json(shape.config)}, directory / checkpoint.CONFIG)
        tokenizer = word_tokenizer(shape.vocabulary)
        for name in (checkpoint.SOURCE_TOKENIZER, checkpoint.TARGET_TOKENIZER):
            tokenizer.save(directory / name)
        checkpoint.save_weights(checkpoint.weights_of(model), directory / checkpoint.MODEL)
        rng = np.random.default_rng(shape.seed)
        lines = [
            "\t".join(text(random_ids(rng, length, shape.vocabulary)) for length in (SOURCE_LENGTH - 1, TARGET_LENGTH))
            for _ in range(PAIRS)
        ]
        (directory / checkpoint.SAMPLES).write_text("\n".join(lines) + "\n", encoding="utf-8")

    write_directory(run, fill)


def write_random_bundle(run: Path, out: Path, trained: checkpoint.TrainedModel | None = None) -> None:
    """The run's bundle, without the proof, which for a random model of this size takes hours."""
    trained = trained or checkpoint.load_trained(run)

    def fill(directory: Path) -> dict[str, Any]:
        (directory / "tokenizers").mkdir()
        shutil.copyfile(run / checkpoint.SOURCE_TOKENIZER, directory / convert.TOKENIZERS["source"])
        shutil.copyfile(run / checkpoint.TARGET_TOKENIZER, directory / convert.TOKENIZERS["target"])
        arrays = arrays_of(trained.model)
        for variant in DEFAULT:
            convert.write_graphs(variant, trained.config, arrays, directory / variant)
        described, certificate = convert.describe_variants(DEFAULT, trained.config), short_certificate(trained)
        described["fp32"]["tolerance"] = TOLERANCE
        described["int8"]["tolerance"] = REFERENCES * int8_distance(trained.model, certificate)
        return convert.describe(run, trained, "random", certificate, described)

    write_bundle(out, fill, force=True)


def short_certificate(trained: checkpoint.TrainedModel) -> dict[str, Any]:
    """A certificate of a few short answers: a random model goes on to the last position it has."""
    rng = np.random.default_rng(0)
    samples = []
    for length in np.linspace(3, SOURCE_LENGTH - 1, SAMPLES).astype(int):
        source = random_ids(rng, int(length), trained.config.source_vocab)
        found, first = greedy(trained.model, source)
        best = np.argsort(-first, kind="stable")[:5]
        samples.append(
            {
                "source": text(source),
                "source_ids": source,
                "greedy": found,
                "beam": found,
                "next_token": {"ids": best.tolist(), "logprobs": first[best].tolist()},
            }
        )
    return {"torch": torch.__version__, "beam_size": 1, "length_penalty": 1.0, "samples": samples}


def int8_distance(model: Transformer, certificate: dict[str, Any]) -> float:
    """How far the int8 reference is from the certified log-probabilities, in nats: as `replay.drift` takes it."""
    rounded, distances = int8_reference(model, int8_caches=True), []
    for sample in certificate["samples"]:
        answer, first = sample["greedy"], sample["next_token"]
        ids = [*answer["ids"], EOS][: len(answer["logprobs"])]
        source, target = torch.tensor([[*sample["source_ids"], EOS]]), torch.tensor([[BOS, *ids[:-1]]])
        found = follow(rounded, None, source, target)[0][0].numpy()
        distances.append(np.abs(found[np.arange(len(ids)), ids] - answer["logprobs"]).max())
        distances.append(np.abs(found[0, first["ids"]] - first["logprobs"]).max())
    return float(max(distances))


def greedy(model: Transformer, source: list[int], length: int = 6) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """As `reference.greedy`, which takes minutes where the vocabulary is large: an answer of a certificate.

    Also the log-probabilities of all first tokens.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    first = np.array(reference.next_logprobs(model, source, ()))
    reason = "length"
    while reason == "length" and len(ids) < length:
        found = np.array(reference.next_logprobs(model, source, tuple(ids))) if ids else first
        token = int(np.where(np.isin(np.arange(len(found)), (PAD, BOS)), -np.inf, found).argmax())
        logprobs.append(float(found[token]))
        if token == EOS:
            reason = "stop"
        else:
            ids.append(token)
    score = sum(logprobs) / len(logprobs)
    return {"ids": ids, "logprobs": logprobs, "score": score, "finish_reason": reason}, first


def word_tokenizer(size: int) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens(size))}
    backend = Backend(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def tokens(size: int) -> list[str]:
    return [*SPECIAL_TOKENS, *(f"t{i}" for i in range(FIRST_WORD, size))]


def _code_digest() -> str:
    """Of all that decides what a bundle is."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "export").rglob("*.py"), Path(__file__), Path(__file__).with_name("ending.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the random base model, if it is not there yet.")
    parser.add_argument("--ending", action="store_true", help="a model whose answers end by themselves")
    options = parser.parse_args()
    prepared = prepare(Shape(ending=options.ending))
    print(f"{prepared.run}\n{prepared.bundle}")


if __name__ == "__main__":
    main()
