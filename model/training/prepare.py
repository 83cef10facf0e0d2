"""Before training starts: check the files, learn the tokenizers, encode the corpus, write config.json."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attendant.model import checkpoint, config
from attendant.model.config import ModelConfig, TrainConfig
from attendant.model.corpus import split
from attendant.model.corpus.data import EncodedCorpus
from attendant.model.corpus.pairs import read_pairs
from attendant.model.corpus.shared import overlap_warning
from attendant.model.distillation import teachers
from attendant.model.errors import DataError, UserError
from attendant.model.files import file_digest, write_directory, write_json, write_text
from attendant.model.text import normalize, tokenizer
from attendant.model.text.tokenizer import Tokenizer
from attendant.model.text.unknown import warnings_for
from attendant.model.training import initial

DATA = "data"  # the directory of the encoded corpus, in the run's
SAMPLES = 2000  # pairs of the validation file, at most, that are copied into the run


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to train, on which data, and where to write the run."""

    data: Path
    valid: Path | None  # None: a part of `data` is split off
    out: Path
    model: ModelConfig
    train: TrainConfig
    source_tokenizer: str = "chars"
    target_tokenizer: str = "chars"
    shared_tokenizer: str | None = None
    normalize: tuple[str, ...] = ()  # normalizers of sources, by their names in model/text/normalize.py
    distilled: Path | None = None  # what `attendant distill` wrote: its pairs, tokenizers and teachers' distributions
    init_from: Path | None = None  # a trained model to start from: its weights, tokenizers and shape
    resume: bool = False
    threads: int | None = None  # of torch; 0: measured before the first step; None: as torch is set

    @property
    def train_file(self) -> Path:
        return self.data if self.valid else self.out / split.DIRECTORY / split.TRAIN

    @property
    def valid_file(self) -> Path:
        return self.valid or self.out / split.DIRECTORY / split.VALID


def prepare(plan: Plan) -> None:
    """Check both files, learn the tokenizers, encode the corpus; if config.json exists, only check that it fits."""
    written = plan.out / checkpoint.CONFIG
    if written.exists():
        _check_same_run(plan)
        return
    _refuse_to_replace(plan)
    if plan.valid is None:
        _split(plan)
    held_out = sum(1 for _ in read_pairs(plan.valid_file))
    source, target = learn_tokenizers(plan)
    shared = "shared" in tokenizer_kinds(plan)
    model = dataclasses.replace(
        plan.model, source_vocab=source.size, target_vocab=target.size, shared_vocab=shared
    ).validate()
    plan.out.mkdir(parents=True, exist_ok=True)
    source.save(plan.out / checkpoint.SOURCE_TOKENIZER)
    target.save(plan.out / checkpoint.TARGET_TOKENIZER)
    write_samples(plan.valid_file, held_out, plan.out / checkpoint.SAMPLES)
    for warning in _warnings(plan, source, target):
        print(warning)
    pairs: dict[str, dict[str, Any]] = {}

    def encode(directory: Path) -> None:
        for name, tsv in (("train", plan.train_file), ("valid", plan.valid_file)):
            corpus, dropped = EncodedCorpus.write(tsv, directory / name, source, target, model.max_length)
            pairs[name] = {"file": tsv.name, "sha256": file_digest(tsv), "pairs": corpus.pairs, "dropped": dropped}
            if dropped and plan.distilled and name == "train":
                raise DataError(f"{tsv} has pairs of {model.max_length} tokens or more; take the teachers' max_length.")
            if dropped:
                print(f"{tsv}: left out {dropped} pairs of {model.max_length} tokens or more (--set max_length=).")

    write_directory(plan.out / DATA, encode)
    if plan.valid is None:
        pairs["train"] |= {"file": plan.data.name, "sha256": file_digest(plan.data)}
        pairs["valid"]["split"] = True
    described = {
        "format": 1,
        "run": plan.out.name,
        "model": config.to_json(model),
        "train": config.to_json(plan.train),
        "tokenizers": tokenizer_kinds(plan),
        **({"normalize": list(_normalization(plan))} if _normalization(plan) else {}),
        "data": pairs,
        **({"distilled": teachers.read_description(plan.distilled)} if plan.distilled else {}),
        **({"init_from": initial.describe(plan.init_from)} if plan.init_from else {}),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    write_json(described, written)


def _warnings(plan: Plan, source: Tokenizer, target: Tokenizer) -> list[str]:
    """What is odd about the validation file."""
    overlap = None
    if plan.valid is not None:
        overlap = overlap_warning(plan.train_file, plan.valid, normalize.build(_normalization(plan)).normalize_str)
    return [*([overlap] if overlap else []), *warnings_for(plan.valid_file, source, target)]


def _refuse_to_replace(plan: Plan) -> None:
    """Refuse an --out with files that no run wrote and that preparing this run would replace."""
    given = [tsv.resolve() for tsv in (plan.data, plan.valid) if tsv]
    samples = plan.out / checkpoint.SAMPLES
    begun = (plan.out / checkpoint.SOURCE_TOKENIZER).exists()  # by a run that was stopped before it had a config.json
    if samples.exists() and (samples.resolve() in given or not begun):
        raise UserError(f"{samples} is there, and a run in {plan.out} would replace it; name another --out.")
    written = {DATA: tuple(f"{part}.{kind}" for part in ("train", "valid") for kind in ("index", "tokens"))}
    if plan.valid is None:
        written[split.DIRECTORY] = (split.TRAIN, split.VALID)
    for name, ours in written.items():
        directory = plan.out / name
        held = sorted(directory.iterdir()) if directory.is_dir() else []
        others = [path for path in held if path.resolve() in given or path.name not in ours]
        if others:
            raise UserError(
                f"{directory} has {others[0].name}, and a run in {plan.out} would replace that directory; "
                "name another --out."
            )


def _split(plan: Plan) -> None:
    names = _normalization(plan)
    normalized = normalize.build(names).normalize_str if names else str
    parts = split.split(plan.data, plan.out, normalized)
    print(
        f"no --valid: {parts.valid_pairs:,} of {parts.train_pairs + parts.valid_pairs:,} pairs are split off by a hash "
        f"of their source into {parts.valid}, and are not trained on."
    )


def write_samples(valid: Path, count: int, path: Path) -> None:
    """Evenly spaced sources of the validation file with all their targets: what export proves and measures with.

    `count`: of its pairs. Targets of a source stand on neighbouring lines.
    """
    sources = (list(pairs) for _, pairs in itertools.groupby(read_pairs(valid), key=operator.itemgetter(0)))
    kept = itertools.islice(sources, 0, None, max(1, -(-count // SAMPLES)))
    write_text(path, "".join(f"{source}\t{target}\n" for pairs in kept for source, target in pairs))


def learn_tokenizers(plan: Plan) -> tuple[Tokenizer, Tokenizer]:
    """(source, target): of the --init-from model or of the teachers, whose ids must be kept, else newly learnt."""
    names = _normalization(plan)
    if givers := [directory for directory in (plan.init_from, plan.distilled) if directory]:
        source, target = _load_tokenizers(givers[0])
        if any(
            _load_tokenizers(other)[side].to_str() != (source, target)[side].to_str()
            for other in givers[1:]
            for side in (0, 1)
        ):
            raise UserError(f"{plan.init_from} has other tokenizers than the teachers of {plan.distilled}.")
    elif plan.shared_tokenizer is not None:
        texts = (text for pair in _normalized_pairs(plan) for text in pair)
        source = target = tokenizer.learn(plan.shared_tokenizer, texts)
    else:
        source = tokenizer.learn(plan.source_tokenizer, (pair[0] for pair in _normalized_pairs(plan)))
        target = tokenizer.learn(plan.target_tokenizer, (pair[1] for pair in read_pairs(plan.train_file)))
    return (source.normalizing(names) if names else source), target


def _load_tokenizers(directory: Path) -> tuple[Tokenizer, Tokenizer]:
    return (
        tokenizer.load(directory / checkpoint.SOURCE_TOKENIZER),
        tokenizer.load(directory / checkpoint.TARGET_TOKENIZER),
    )


def _normalized_pairs(plan: Plan) -> Iterator[tuple[str, str]]:
    """The training pairs, as the source tokenizer will see them."""
    normalizer = normalize.build(_normalization(plan))
    for source, target in read_pairs(plan.train_file):
        yield normalizer.normalize_str(source), target


def _check_same_run(plan: Plan) -> None:
    """Refuse to resume with another model, tokenizers or data; new training options and dropout go to config.json."""
    if not plan.resume:
        raise UserError(f"{plan.out} holds a run already; add --resume to go on with it, or name another --out.")
    saved = checkpoint.read_config(plan.out)
    model = {k: v for k, v in config.to_json(plan.model).items() if not k.endswith("_vocab")}
    dropout = {name: value for name, value in model.items() if name.endswith("dropout")}
    begun = config.to_json(config.model_from_json(saved["model"], plan.out / checkpoint.CONFIG))
    changed = [name for name, value in model.items() if name not in dropout and begun[name] != value]
    if saved["tokenizers"] != tokenizer_kinds(plan):
        changed.append("the tokenizers")
    if tuple(saved.get("normalize", ())) != _normalization(plan):
        changed.append("--normalize")
    if saved["data"]["valid"].get("split", False) != (plan.valid is None):
        changed.append("--valid")
    for name, tsv in (("train", plan.data), ("valid", plan.valid)):
        if tsv is not None and saved["data"][name]["sha256"] != file_digest(tsv):
            changed.append(f"the contents of {tsv}")
    if saved.get("distilled") != (teachers.read_description(plan.distilled) if plan.distilled else None):
        changed.append("--distilled")
    if saved.get("init_from") != (initial.describe(plan.init_from) if plan.init_from else None):
        changed.append("--init-from")
    if changed:
        raise UserError(f"{plan.out} was begun with other values of {', '.join(changed)}; resume it with those.")
    saved["train"] = config.to_json(plan.train)
    saved["model"] |= dropout
    write_json(saved, plan.out / checkpoint.CONFIG)


def _normalization(plan: Plan) -> tuple[str, ...]:
    """The normalizers asked for, else those of the model or the teachers that the tokenizers come from."""
    return plan.normalize or tuple(_inherited(plan).get("normalize", ()))


def tokenizer_kinds(plan: Plan) -> dict[str, str]:
    if inherited := _inherited(plan):
        kinds: dict[str, str] = inherited["tokenizers"]
        return kinds
    if plan.shared_tokenizer is not None:
        return {"shared": plan.shared_tokenizer}
    return {"source": plan.source_tokenizer, "target": plan.target_tokenizer}


def _inherited(plan: Plan) -> dict[str, Any]:
    """config.json of the --init-from model, else the teachers' distilled.json; empty if tokenizers are learnt."""
    if plan.init_from:
        return initial.read_own_config(plan.init_from)
    return teachers.read_description(plan.distilled) if plan.distilled else {}
