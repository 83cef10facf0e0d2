"""Which files of a model's repository its import needs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from attendant.hub.errors import HubError
from attendant.hub.kinds import FORMATS, why_not

CONFIG = "config.json"
# What importers read beside the weights, as far as a repository has it.
SMALL = (
    CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenization_small100.py",  # never run: that it is there says what the model is
)
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there, whole or in shards


def check_type(path: Path, name: str) -> None:
    """HubError if config.json is of a model that cannot be imported, before its weights are downloaded."""
    try:
        kind = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError, RecursionError):
        raise HubError(f"{name}: its {CONFIG} cannot be read as JSON, so it cannot be imported.") from None
    if not isinstance(kind, str) or kind not in FORMATS:
        why = f": {why_not(kind)}" if why_not(kind) else ""
        raise HubError(
            f"{name} cannot be imported: its {CONFIG} has model_type {kind!r:.60}{why}. What can be imported is "
            f"{', '.join(FORMATS)}."
        )


def small_files(listed: Collection[str]) -> list[str]:
    return [name for name in SMALL if name in listed]


def weight_file(listed: Collection[str], name: str) -> str:
    """The weights, or their index where they are in shards; safetensors before pickles."""
    for weights in WEIGHTS:
        for file in (weights, f"{weights}.index.json"):
            if file in listed:
                return file
    raise HubError(f"{name} cannot be imported: it has neither {' nor '.join(WEIGHTS)}.")


def shards(index: Path, listed: Mapping[str, object], name: str) -> list[str]:
    """The files that an index of shards names."""
    try:
        named = {str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise HubError(f"{name}: its {index.name} is no index of shards, so it cannot be imported.") from None
    if missing := sorted(named - listed.keys()):
        raise HubError(f"{name}: its {index.name} names {missing[0]!r:.80}, which the repository does not have.")
    return sorted(named)
