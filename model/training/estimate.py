"""What a run trains and how long it may take, printed before its first step; and the preset where none is named."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendant.model.config import PRESETS, ModelConfig, TrainConfig, build
from attendant.model.corpus.pairs import read_pairs
from attendant.model.errors import ConfigError
from attendant.model.text.tokenizer import SPECIAL_TOKENS

# Tokens of both sides below which a preset would only memorise the corpus. `big` is never chosen automatically.
TOKENS_WANTED = {"base": 20_000_000, "g2p": 200_000, "tiny": 0}
LONGEST_TRAINING = 24 * 3600.0  # seconds that an automatically chosen preset may take, unless it is the smallest
EFFICIENCY = 0.4  # the speed of training, as a fraction of a plain matrix product's
STEP_OVERHEAD = 0.02  # seconds of a step beside its matrix products
LARGEST_LENGTH = 512  # tokens: the most that max_length is raised to


@dataclass(frozen=True)
class CorpusSize:
    pairs: int
    tokens: int  # of both sides; a BPE token is taken for two characters
    longest: int  # tokens of the longest side; an upper bound with BPE, whose characters are counted
    source_vocab: int
    target_vocab: int


def measure_corpus(tsv: Path, source_kind: str, target_kind: str) -> CorpusSize:
    """The size of a corpus, before its tokenizers are learnt; for `bpe:SIZE`, an estimate from characters."""
    pairs = tokens = longest = 0
    seen: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for pair in read_pairs(tsv):
        pairs += 1
        for kind, text, counts in zip((source_kind, target_kind), pair, seen, strict=True):
            symbols = text.split() if kind == "words" else text
            tokens += len(symbols) // 2 if kind.startswith("bpe") else len(symbols)
            longest = max(longest, len(symbols))
            counts.update(symbols)
    vocabularies = (
        int(kind.partition(":")[2]) if kind.startswith("bpe") else len(counts) + len(SPECIAL_TOKENS)
        for kind, counts in zip((source_kind, target_kind), seen, strict=True)
    )
    return CorpusSize(pairs, tokens, longest, *vocabularies)


def choose_preset(corpus: CorpusSize, flops: float, settings: dict[str, Any]) -> tuple[str, str]:
    """The largest preset that the corpus is enough for and the machine trains within a day; and why."""
    reasons = []
    fitting = fitting_presets(settings)
    for name in fitting:
        wanted = TOKENS_WANTED[name]
        seconds = training_seconds(*build(name, settings), corpus, flops)
        if corpus.tokens < wanted and name != fitting[-1]:
            reasons.append(f"{name} wants {wanted / 1e6:g} million tokens")
        elif seconds > LONGEST_TRAINING and name != fitting[-1]:
            reasons.append(f"{name} would take about {duration(seconds)}")
        else:
            why = (
                f"for {corpus.pairs:,} pairs of {corpus.tokens:,} tokens, and about {duration(seconds)} on this machine"
            )
            return name, why + (f" ({', '.join(reversed(reasons))})" if reasons else "")
    raise AssertionError("the smallest is for any corpus")


def fitting_presets(settings: dict[str, Any]) -> list[str]:
    """The presets that the settings are valid with, largest first; ConfigError if there is none."""
    fitting, problem = [], ConfigError("")
    for name in TOKENS_WANTED:
        try:
            build(name, settings)
            fitting.append(name)
        except ConfigError as error:
            problem = error
    if not fitting:
        raise problem
    return fitting


def training_seconds(model: ModelConfig, train: TrainConfig, corpus: CorpusSize, flops: float) -> float:
    """A rough estimate: six operations for each weight that a token meets, by the speed of matrix products."""
    attention, feed_forward = 4 * model.d_model**2, 2 * model.d_model * model.d_ff
    encoder = model.encoder_layers * (attention + feed_forward)
    decoder = model.decoder_layers * (2 * attention + feed_forward) + corpus.target_vocab * model.d_model
    update = 6 * (encoder + decoder) / 2 * train.batch_tokens * train.accumulate
    return train.steps * (update / (EFFICIENCY * flops) + STEP_OVERHEAD)


def machine_flops() -> float:
    """Floating-point operations per second of a matrix product on the device that would train."""
    import torch

    from attendant.model.training.device import pick_device

    device = pick_device("auto", 0)
    a = torch.ones(512, 512, device=device)
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < 0.1:
        (a @ a)[0, 0].item()
        done += 1
    return 2 * 512**3 * done / (time.perf_counter() - begun)


def preset_for(tsv: Path, kinds: dict[str, str], settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The chosen preset, and the settings with a max_length that fits the corpus if none is set; prints why."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each process would measure for itself
        raise ConfigError(f"--preset must be given under torchrun: one of {', '.join(PRESETS)}.")
    fitting_presets(settings)  # refuses bad settings before the corpus is read
    source, target = (kinds.get(side, kinds.get("shared", "chars")) for side in ("source", "target"))
    corpus = measure_corpus(tsv, source, target)
    name, why = choose_preset(corpus, machine_flops(), settings)
    print(f"preset {name}: {why}; --preset takes one of {', '.join(PRESETS)}.", flush=True)
    needed = min(-(-(corpus.longest + 1) // 64) * 64, LARGEST_LENGTH)
    if "max_length" not in settings and needed > build(name, {})[0].max_length:
        settings = {**settings, "max_length": needed}
    return name, settings


def overview(config: dict[str, Any], parameters: int) -> list[str]:
    """What is trained on what, from the run's config.json."""
    model, train, data = config["model"], config["train"], config["data"]
    kinds = ", ".join(f"{side} {kind}" for side, kind in config["tokenizers"].items())
    accumulated = f" x {train['accumulate']}" if train["accumulate"] > 1 else ""
    return [
        f"model: {parameters:,} parameters, {model['encoder_layers']} encoder and {model['decoder_layers']} decoder "
        f"layers of {model['d_model']} features; vocabulary: {model['source_vocab']:,} source and "
        f"{model['target_vocab']:,} target tokens ({kinds})",
        f"data: {data['train']['pairs']:,} pairs to train on, {data['valid']['pairs']:,} to validate on; "
        f"{train['steps']:,} steps, each a batch of up to {train['batch_tokens']:,}{accumulated} tokens with padding",
    ]


def duration(seconds: float) -> str:
    """45 s, 3 min, 2 h 40 min, 9 days"""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return f"{round(minutes / 60 / 24):,} days"
