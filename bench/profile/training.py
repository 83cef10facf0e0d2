"""Training speed: Attendant against an equal torch.nn.Transformer trained on padded batches of a fixed size.

    python -m bench.profile.training --data train.tsv --out FILE.json

The peer is what one writes from torch's own parts: nn.Transformer of the same sizes, dropout and normalisation,
Adam, pairs in random order in batches of a fixed number, each padded to its longest. Ours are the batches, the model
and the optimizer that `attendant train --preset g2p` uses. Both compute in the precision that the machine is best at
and take turns in one process; the best turn of each counts. Pairs per second are of whole updates: forward, backward,
clipping and optimizer.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attendant.model.config import ModelConfig, TrainConfig, build
from attendant.model.corpus.data import Batch, EncodedCorpus, collate, epoch_batches
from attendant.model.corpus.pairs import read_pairs
from attendant.model.text.tokenizer import PAD, Tokenizer, learn
from attendant.model.training.device import pick_precision
from attendant.model.training.loss import smoothed_cross_entropy
from attendant.model.training.optim import make_optimizer
from attendant.model.transformer import Transformer, sinusoids
from bench.report.machine import machine_facts

PRECISION = pick_precision("auto", torch.device("cpu"))
PAIRS_A_TURN = 5_000
TURNS = 5


class TorchTransformer(nn.Module):
    """torch's own layers between the embeddings and the output of a ModelConfig."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(n, config.d_model) for n in (config.source_vocab, config.target_vocab))
        self.layers = nn.Transformer(
            config.d_model,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            config.activation,
            batch_first=True,
            norm_first=config.norm == "pre",
        )
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.d_model, config.target_vocab, bias=False)
        self.output.weight = self.target.weight
        self.scale = config.d_model**0.5
        self.register_buffer("positions", sinusoids(config.max_length, config.d_model))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        embedded = [
            self.dropout(embedding(ids) * self.scale + self.positions[: ids.shape[1]])
            for embedding, ids in ((self.source, source), (self.target, target))
        ]
        padded = (source == PAD).float().masked_fill(source == PAD, float("-inf"))
        hidden = self.layers(
            *embedded, tgt_mask=mask, src_key_padding_mask=padded, memory_key_padding_mask=padded, tgt_is_causal=True
        )
        return self.output(hidden)


def fixed_batches(pairs: list[tuple[list[int], list[int]]], rows: int) -> Iterator[Batch]:
    """The pairs in random order, `rows` at a time, padded to the longest."""
    order = np.random.default_rng(1).permutation(len(pairs))
    for first in range(0, len(order) - rows + 1, rows):
        chosen = [pairs[i] for i in order[first : first + rows]]
        yield collate([source for source, _ in chosen], [target for _, target in chosen])


def updates(model: nn.Module, optimizer: torch.optim.Optimizer, smoothing: float) -> Callable[[Batch], None]:
    def update(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16"):
            logits = model(batch.source, batch.target[:, :-1]).float()
        (smoothed_cross_entropy(logits, batch.target[:, 1:], smoothing) / batch.target_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    model.train()
    return update


def turn(update: Callable[[Batch], None], batches: Iterator[Batch]) -> float:
    """Pairs per second over about PAIRS_A_TURN pairs."""
    pairs, started = 0, time.perf_counter()
    while pairs < PAIRS_A_TURN:
        batch = next(batches)
        update(batch)
        pairs += len(batch.source)
    return pairs / (time.perf_counter() - started)


def compare(tsv: Path) -> dict[str, Any]:
    source = learn("chars", (pair[0] for pair in read_pairs(tsv)))
    target = learn("words", (pair[1] for pair in read_pairs(tsv)))
    model_config, train_config = build("g2p", {})
    model_config = dataclasses.replace(model_config, source_vocab=source.size, target_vocab=target.size)
    ours, theirs = Transformer(model_config), TorchTransformer(model_config)
    with tempfile.TemporaryDirectory() as directory:
        corpus, _ = EncodedCorpus.write(tsv, Path(directory) / "corpus", source, target, model_config.max_length)
        rows = round(np.mean([len(b.source) for b in epoch_batches(corpus, train_config.batch_tokens, 1, 0)]))
        our_batches = itertools.chain.from_iterable(
            epoch_batches(corpus, train_config.batch_tokens, 1, epoch) for epoch in itertools.count()
        )
        their_batches = itertools.cycle(fixed_batches(encode(tsv, source, target), rows))
        rates = race(ours, theirs, our_batches, their_batches, train_config)
    return {
        "ours_pairs_per_second": round(max(rates["ours"])),
        "theirs_pairs_per_second": round(max(rates["theirs"])),
        "ratio": round(max(rates["ours"]) / max(rates["theirs"]), 2),
        "goal": 1.5,
        "parameters": ours.parameter_count(),
        "their_rows": rows,
        "turns": {name: [round(rate) for rate in values] for name, values in rates.items()},
        "precision": PRECISION,
        "torch": torch.__version__,
    }


def race(
    ours: nn.Module,
    theirs: nn.Module,
    our_batches: Iterator[Batch],
    their_batches: Iterator[Batch],
    config: TrainConfig,
) -> dict[str, list[float]]:
    update_ours = updates(ours, make_optimizer(ours, config), config.label_smoothing)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-4, betas=(config.beta1, config.beta2), eps=config.epsilon)
    update_theirs = updates(theirs, adam, config.label_smoothing)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(TURNS):
        rates["ours"].append(turn(update_ours, our_batches))
        rates["theirs"].append(turn(update_theirs, their_batches))
        print(f"turn {number + 1}: ours {rates['ours'][-1]:,.0f}, nn.Transformer {rates['theirs'][-1]:,.0f} pairs/s")
    return rates


def encode(tsv: Path, source: Tokenizer, target: Tokenizer) -> list[tuple[list[int], list[int]]]:
    pairs = list(read_pairs(tsv))
    sources = source.encode_batch([pair[0] for pair in pairs])
    return list(zip(sources, target.encode_batch([pair[1] for pair in pairs]), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Training speed against an equal nn.Transformer.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    result = compare(options.data)
    result |= {
        "machine": machine_facts(),
        "command": shlex.join(["python", "-m", "bench.profile.training", *sys.argv[1:]]),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{result['ratio']} times the pairs per second of nn.Transformer on padded batches (goal: {result['goal']})")


if __name__ == "__main__":
    main()
