"""A run's samples, split by source: some calibrate the int8 variant, the others are held out to compare and measure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.bundle import BundleError
from export.sample_pairs import answer_limit, sample_pairs
from model import checkpoint
from model.checkpoint import TrainedModel
from model.decode import decode_all

CALIBRATION_PAIRS = 500
HELD_OUT = 1000  # sources at most

DEFAULTS = ("generation", "languages")  # fields of a run's config and of the manifest

Ids = list[int]


@dataclass
class Samples:
    """Calibration pairs and held-out sources, which have no source in common; and the model itself."""

    trained: TrainedModel
    calibration: list[tuple[Ids, Ids]]  # source and target
    texts: list[str]  # held-out sources
    references: list[list[str]]  # every listed target of each
    defaults: dict[str, Any] = field(default_factory=dict)  # an imported run's generation and languages
    _answers: dict[int, list[Ids]] = field(default_factory=dict)

    @property
    def sources(self) -> list[Ids]:
        return list(self.trained.source.encode_batch(self.texts))

    def torch_answers(self, beam_size: int) -> list[Ids]:
        """The torch model's answer to each held-out source, computed once for each beam size."""
        if beam_size not in self._answers:
            trained, limit = self.trained, self.limit
            answers = decode_all(trained.model, self.sources, beam_size, max_length=limit, start=trained.start)
            self._answers[beam_size] = answers
        return self._answers[beam_size]

    @property
    def limit(self) -> int:
        """Tokens of an answer at most, start tokens included, wherever answers are compared."""
        return answer_limit(self.sources, self.trained.config.max_length)


def read_samples(run: Path, trained: TrainedModel, given: Path | None = None) -> Samples:
    """The samples in `given`, else of the run, that fit the model; BundleError if they are too few to split."""
    path = given or run / checkpoint.SAMPLES
    pairs = sample_pairs(run, trained, given)
    limit = trained.config.max_length
    calibration, used = _choose_calibration(pairs, trained)
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        if source not in used and len(trained.source.encode(source)) < limit:
            references.setdefault(source, []).append(target)
    texts = list(references)[:HELD_OUT]
    if not calibration or not texts:
        raise BundleError(
            f"{path}: of its {len(pairs)} pairs, {len(calibration)} fit the model's max_length of {limit} for "
            f"calibration, and {len(texts)} sources are left to compare answers on; each needs at least 1. Train with "
            "more validation pairs, or a larger max_length."
        )
    return Samples(trained, calibration, texts, [references[text] for text in texts], imported_defaults(run))


def imported_defaults(run: Path) -> dict[str, Any]:
    """An imported run's generation defaults and languages, for the manifest; a trained run has none."""
    kept = checkpoint.read_config(run)
    return {name: kept[name] for name in DEFAULTS if kept.get(name)}


def calibration_pairs(run: Path, trained: TrainedModel) -> list[tuple[Ids, Ids]]:
    return _choose_calibration(sample_pairs(run, trained), trained)[0]


def _choose_calibration(pairs: list[tuple[str, str]], trained: TrainedModel) -> tuple[list[tuple[Ids, Ids]], set[str]]:
    """Evenly spaced sources, at most every second one, each with its first target, as ids; and these sources."""
    first = dict(reversed(pairs))
    sources = list(dict.fromkeys(source for source, _ in pairs))
    spaced = sources[:: max(2, -(-len(sources) // CALIBRATION_PAIRS))]
    chosen = [(source, first[source]) for source in spaced]
    encoded = [(trained.source.encode(source), trained.target.encode(target)) for source, target in chosen]
    limit, before = trained.config.max_length, len(trained.start)
    fitting = [(source, target) for source, target in encoded if max(len(source), before + len(target)) < limit]
    return fitting, {source for source, _ in chosen}
