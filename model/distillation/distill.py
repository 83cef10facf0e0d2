"""Distillation: several trained models' distributions over a corpus, written once for a student to learn from.

At each position of a true target, the teachers' distributions are averaged and the 8 most probable tokens kept. Words
without a target are labelled (labelling.py) and then treated the same; but if another model's hypotheses helped to
label a word, its distributions come from its weighted candidates, not the teachers. Words of held-out files are never
labelled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendant.common.progress import Count
from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel
from attendant.model.corpus.data import EncodedCorpus, numbered_batches
from attendant.model.corpus.pairs import read_lines, read_pairs
from attendant.model.distillation.labelling import Pair, continuations, label, read_hypotheses
from attendant.model.distillation.teachers import DESCRIPTION, PAIRS, TeacherDistributions, read_description
from attendant.model.errors import ConfigError, UserError
from attendant.model.files import file_digest, write_directory, write_json
from attendant.model.text import normalize
from attendant.model.text.tokenizer import UNK
from attendant.model.training import recipe
from attendant.model.transformer import Transformer

BATCH_TOKENS = 32_768


@dataclass(frozen=True, kw_only=True)
class DistillPlan:
    """Which teachers to distil, on which data, and where to write the result."""

    teachers: list[Path]  # runs or released models, with the same tokenizers
    data: Path  # the true pairs
    out: Path
    words: list[Path]  # files with a source on each line, to be labelled
    held_out: list[Path]  # TSV files whose sources are never labelled
    hypotheses: Path | None = None  # another model's best targets for the words, with costs
    min_probability: float = 0.0  # of a label; words below are left out

    @property
    def files(self) -> list[Path]:
        """All input files but the teachers."""
        return [self.data, *self.words, *self.held_out, *([self.hypotheses] if self.hypotheses else [])]


def distill(plan: DistillPlan) -> dict[str, Any]:
    """Write the directory that teachers.py describes, unless it is there; returns what distilled.json says."""
    if plan.words and not plan.held_out:
        raise ConfigError(
            "--words needs --held-out: the validation and test files, whose sources must not be labelled."
        )
    if plan.hypotheses and not plan.words:
        raise ConfigError("--hypotheses needs --words: the sources that they help to label.")
    _check_inputs(plan)
    normalized = _normalizer(plan)
    listed = read_hypotheses(plan.hypotheses, normalized) if plan.hypotheses else {}
    described = describe(plan)
    if plan.out.exists():
        return _check_same(plan.out, described)
    trained = load_teachers(plan.teachers)
    models, limit = [each.model for each in trained], min(each.config.max_length for each in trained)
    pairs = [pair for pair in dict.fromkeys(read_pairs(plan.data)) if fits(pair, trained[0], limit)]
    words, counts = unlabelled_words(plan, {source for source, _ in pairs}, trained[0], limit)
    hypotheses = {word: listed[normalized(word)] for word in words if normalized(word) in listed}
    labels = [each for each in label(models, words, trained[0], hypotheses) if each.probability >= plan.min_probability]
    labels.sort(key=lambda each: bool(each.candidates))  # last, those with distributions from candidates
    helped = sum(bool(each.candidates) for each in labels)
    described["counts"] = {"pairs": len(pairs), **counts, "labelled": len(labels), "labelled_with_hypotheses": helped}
    labelled = [(each.source, each.target) for each in labels]
    target = trained[0].target

    def fill(directory: Path) -> None:
        lines = [f"{source}\t{text}\n" for source, text in [*pairs, *labelled]]
        (directory / PAIRS).write_text("".join(lines), encoding="utf-8")
        trained[0].source.save(directory / checkpoint.SOURCE_TOKENIZER)
        target.save(directory / checkpoint.TARGET_TOKENIZER)
        lengths = [len(ids) for ids in target.encode_batch([text for _, text in [*pairs, *labelled]])]
        written = TeacherDistributions.create(directory, np.array(lengths), target.size)
        by_teachers = len(pairs) + len(labels) - helped
        with encoded([*pairs, *labelled][:by_teachers], trained[0]) as corpus:
            for numbers, distribution in taught(models, corpus):
                written.write(numbers, distribution)
        for number, each in enumerate(labels[len(labels) - helped :], start=by_teachers):
            weighed = zip(target.encode_batch(list(each.candidates)), each.candidates.values(), strict=True)
            written.write(np.array([number]), continuations(target.encode(each.target), weighed, target.size)[None])
        write_json(described, directory / DESCRIPTION)

    write_directory(plan.out, fill)
    return described


def _check_inputs(plan: DistillPlan) -> None:
    """Refuse what cannot be read, before any work is done."""
    for path in (plan.data, *plan.held_out):
        if not path.is_file():
            raise UserError(f"{path} is not there; name a file with lines of source<TAB>target.")
    names = [path.name for path in plan.files]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two of the files are called {name}; give each a name of its own, by which it is recorded."
            )
    for path in plan.words:
        _lines(path)
    for run in plan.teachers:
        if "imported" in checkpoint.read_config(run):
            raise UserError(f"{run} was imported; teachers are models that attendant train made.")


def load_teachers(runs: list[Path]) -> list[TrainedModel]:
    """The teachers, which must have the same tokens under the same ids."""
    trained = [checkpoint.load_trained(run) for run in runs]
    for run, each in zip(runs, trained, strict=True):
        for ours, first in ((each.source, trained[0].source), (each.target, trained[0].target)):
            if ours.to_str() != first.to_str():
                raise UserError(f"{run} has other tokenizers than {runs[0]}; teachers are trained on the same file.")
    return trained


def unlabelled_words(
    plan: DistillPlan, known: set[str], trained: TrainedModel, limit: int
) -> tuple[list[str], dict[str, int]]:
    """The words to label: those in no corpus that the model can read; and how many were left out, by reason.

    Words are compared as the teachers read them: normalized.
    """
    normalized = _normalizer(plan)
    known = {normalized(source) for source in known}
    held_out = {normalized(source) for tsv in plan.held_out for source, _ in read_pairs(tsv)}
    words: dict[str, str] = {}  # {normalized: as first written}
    for line in (line.strip() for path in plan.words for line in _lines(path) if line.strip()):
        words.setdefault(normalized(line), line)
    unheard = [line for word, line in words.items() if word not in known and word not in held_out]
    readable = [word for word in unheard if UNK not in (ids := trained.source.encode(word)) and len(ids) < limit]
    return readable, {
        "words": len(words),
        "words_with_targets": sum(word in known for word in words),
        "words_held_out": sum(word in held_out for word in words),
        "words_unreadable": len(unheard) - len(readable),
    }


@torch.inference_mode()
def taught(models: list[Transformer], corpus: EncodedCorpus) -> Iterator[tuple[np.ndarray, Tensor]]:
    """For each batch, the numbers of its pairs and the teachers' mean distribution (B, T - 1, V)."""
    progress = Count("teachers' distributions", "pairs", corpus.pairs)
    for numbers, batch in numbered_batches(corpus, BATCH_TOKENS):
        each = (model(batch.source, batch.target[:, :-1]).softmax(-1) for model in models)
        yield numbers, sum(each) / len(models)
        progress.add(len(numbers))
    progress.close()


@contextmanager
def encoded(pairs: list[Pair], trained: TrainedModel) -> Iterator[EncodedCorpus]:
    """The pairs as an encoded corpus, in their order, in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        tsv = Path(directory) / PAIRS
        tsv.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
        limit = trained.config.max_length
        corpus, dropped = EncodedCorpus.write(tsv, Path(directory) / "pairs", trained.source, trained.target, limit)
        if dropped:
            raise ValueError(f"{dropped} of the pairs are longer than the model's {limit} tokens")
        yield corpus


def describe(plan: DistillPlan) -> dict[str, Any]:
    """The inputs: the teachers and how they were trained, the files by their digests, and the command."""
    named = [recipe.quoted(recipe.RUNS, run.name) for run in plan.teachers]
    named.append(f"--data {recipe.quoted(recipe.DATA, plan.data.name)}")
    hypotheses = [plan.hypotheses] if plan.hypotheses else []
    for flag, files in (("--words", plan.words), ("--held-out", plan.held_out), ("--hypotheses", hypotheses)):
        named += [" ".join([flag, *(recipe.quoted(recipe.DATA, file.name) for file in files)])] if files else []
    first = checkpoint.read_config(plan.teachers[0])
    least = [f"--min-probability {plan.min_probability}"] if plan.min_probability else []
    return {
        "name": plan.out.name,
        "command": " ".join(
            ["attendant distill", *named, *least, f"--out {recipe.quoted(recipe.RUNS, plan.out.name)}"]
        ),
        "teachers": [_describe_teacher(run) for run in plan.teachers],
        "tokenizers": first["tokenizers"],
        **({"normalize": first["normalize"]} if "normalize" in first else {}),
        "sha256": {file.name: file_digest(file) for file in plan.files},
    }


def _normalizer(plan: DistillPlan) -> Callable[[str], str]:
    """The normalization of a source before the teachers read it."""
    names = tuple(checkpoint.read_config(plan.teachers[0]).get("normalize", ()))
    return normalize.build(names).normalize_str if names else str.strip


def _describe_teacher(run: Path) -> dict[str, Any]:
    return {
        "run": run.name,
        "commands": recipe.commands(run, run.name),
        "changed_on_the_way": recipe.changed_on_the_way(run),
        "sha256": file_digest(checkpoint.find_weights(run)),
    }


def _lines(path: Path) -> list[str]:
    lines = []
    for number, line in read_lines(path):
        if "\t" in line.strip():
            raise UserError(f"{path}, line {number}, has a tab; --words takes text files with a source on each line.")
        lines.append(line)
    return lines


def _check_same(out: Path, described: dict[str, Any]) -> dict[str, Any]:
    found = read_description(out)
    if any(found[name] != value for name, value in described.items()):
        raise UserError(f"{out} was distilled from other teachers or files; remove it, or name another --out.")
    return found


def fits(pair: Pair, trained: TrainedModel, limit: int) -> bool:
    """Whether both sides, with their end tokens, have at most `limit` tokens."""
    return max(len(trained.source.encode(pair[0])), len(trained.target.encode(pair[1]))) < limit
