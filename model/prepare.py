"""Before training starts: check the files, learn the tokenizers, encode the corpus, write down what the run is."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model import checkpoint, config, teachers, tokenizer
from model.config import ModelConfig, TrainConfig
from model.data import EncodedCorpus, read_pairs
from model.errors import DataError, UserError
from model.tokenizer import Tokenizer

SAMPLES = 2000  # pairs of the validation file that stay with the run


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to train on what, and where the run goes."""

    data: Path
    valid: Path
    out: Path
    model: ModelConfig
    train: TrainConfig
    source_tokenizer: str = "chars"
    target_tokenizer: str = "chars"
    shared_tokenizer: str | None = None
    distilled: Path | None = None  # what `attendant distill` wrote: its pairs, tokenizers and teachers' distributions
    resume: bool = False


def prepare(plan: Plan) -> None:
    """Check both files, learn the tokenizers and encode the corpus, once; a directory with config.json is prepared."""
    written = plan.out / checkpoint.CONFIG
    if written.exists():
        _check_same_run(plan)
        return
    held_out = sum(1 for _ in read_pairs(plan.valid))
    source, target = learn_tokenizers(plan)
    shared = "shared" in _tokenizer_kinds(plan)
    model = dataclasses.replace(
        plan.model, source_vocab=source.size, target_vocab=target.size, shared_vocab=shared
    ).validate()
    plan.out.mkdir(parents=True, exist_ok=True)
    source.save(plan.out / checkpoint.SOURCE_TOKENIZER)
    target.save(plan.out / checkpoint.TARGET_TOKENIZER)
    write_samples(plan.valid, held_out, plan.out / checkpoint.SAMPLES)
    pairs: dict[str, dict[str, Any]] = {}

    def encode(directory: Path) -> None:
        for name, tsv in (("train", plan.data), ("valid", plan.valid)):
            corpus, dropped = EncodedCorpus.write(tsv, directory / name, source, target, model.max_length)
            pairs[name] = {"file": tsv.name, "sha256": file_digest(tsv), "pairs": corpus.pairs, "dropped": dropped}
            if dropped and plan.distilled and name == "train":
                raise DataError(f"{tsv} has pairs of {model.max_length} tokens or more; take the teachers' max_length.")
            if dropped:
                print(f"{tsv}: left out {dropped} pairs of {model.max_length} tokens or more (--set max_length=).")

    checkpoint.write_directory(plan.out / "data", encode)
    described = {
        "format": 1,
        "run": plan.out.name,
        "model": config.to_json(model),
        "train": config.to_json(plan.train),
        "tokenizers": _tokenizer_kinds(plan),
        "data": pairs,
        **({"distilled": teachers.read_description(plan.distilled)} if plan.distilled else {}),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    checkpoint.write_json(described, written)


def write_samples(valid: Path, count: int, path: Path) -> None:
    """Evenly spaced pairs of the validation file, which export calibrates and verifies with."""
    stride = max(1, count // SAMPLES)
    kept = itertools.islice(itertools.islice(read_pairs(valid), 0, None, stride), SAMPLES)
    path.write_text("".join(f"{source}\t{target}\n" for source, target in kept), encoding="utf-8")


def learn_tokenizers(plan: Plan) -> tuple[Tokenizer, Tokenizer]:
    """Learnt from the training file, or the teachers', whose ids their distributions speak of."""
    if plan.distilled is not None:
        names = (checkpoint.SOURCE_TOKENIZER, checkpoint.TARGET_TOKENIZER)
        source, target = (tokenizer.load(plan.distilled / name) for name in names)
        return source, target
    if plan.shared_tokenizer is not None:
        both = tokenizer.learn(plan.shared_tokenizer, (text for pair in read_pairs(plan.data) for text in pair))
        return both, both
    source = tokenizer.learn(plan.source_tokenizer, (pair[0] for pair in read_pairs(plan.data)))
    target = tokenizer.learn(plan.target_tokenizer, (pair[1] for pair in read_pairs(plan.data)))
    return source, target


def _check_same_run(plan: Plan) -> None:
    """A resumed run keeps its model, tokenizers and data; config.json takes over new training options and dropout."""
    if not plan.resume:
        raise UserError(f"{plan.out} holds a run already; add --resume to go on with it, or name another --out.")
    saved = checkpoint.read_config(plan.out)
    model = {k: v for k, v in config.to_json(plan.model).items() if not k.endswith("_vocab")}
    dropout = {name: value for name, value in model.items() if name.endswith("dropout")}
    begun = config.to_json(config.model_from_json(saved["model"], plan.out / checkpoint.CONFIG))
    changed = [name for name, value in model.items() if name not in dropout and begun[name] != value]
    if saved["tokenizers"] != _tokenizer_kinds(plan):
        changed.append("the tokenizers")
    for name, tsv in (("train", plan.data), ("valid", plan.valid)):
        if saved["data"][name]["sha256"] != file_digest(tsv):
            changed.append(f"the contents of {tsv}")
    if saved.get("distilled") != (teachers.read_description(plan.distilled) if plan.distilled else None):
        changed.append("--distilled")
    if changed:
        raise UserError(f"{plan.out} was begun with other values of {', '.join(changed)}; resume it with those.")
    saved["train"] = config.to_json(plan.train)
    saved["model"] |= dropout
    checkpoint.write_json(saved, plan.out / checkpoint.CONFIG)


def _tokenizer_kinds(plan: Plan) -> dict[str, str]:
    if plan.distilled is not None:
        return teachers.read_description(plan.distilled)["tokenizers"]
    if plan.shared_tokenizer is not None:
        return {"shared": plan.shared_tokenizer}
    return {"source": plan.source_tokenizer, "target": plan.target_tokenizer}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
