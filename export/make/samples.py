"""A run's samples: sources with their targets, on which the graphs are compared with torch and measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendant.export.bundle import BundleError
from attendant.export.graphs.graphs import sizes_of
from attendant.export.make.alignment import Reference
from attendant.export.make.sample_pairs import answer_limit, has_samples, sample_pairs
from attendant.export.verify.extent import FLOAT, room_of
from attendant.model import checkpoint
from attendant.model.checkpoint import TrainedModel
from attendant.model.config import ModelConfig
from attendant.model.search.decode import BATCH_ROWS, decode_all

HELD_OUT = 1000  # sources at most
BEAM, EXPECTED = 4, 20  # the largest beam; tokens of a source

DEFAULTS = ("generation", "languages")  # fields of a run's config and of the manifest

Ids = list[int]


@dataclass
class Samples:
    """Held-out sources, every target of each, and the model itself."""

    trained: TrainedModel
    texts: list[str]
    references: list[list[str]]  # every listed target of each
    defaults: dict[str, Any] = field(default_factory=dict)  # an imported run's generation and languages
    run: Path | None = None  # where the model is from
    invented: bool = False  # whether the texts are random tokens
    rows: int = BATCH_ROWS  # hypotheses that are decoded together
    references_found: list[Reference] = field(default_factory=list)  # of the alignment, once they are computed
    decoded: dict[tuple[Path, str], dict[int, list[Ids]]] = field(default_factory=dict)  # by graphs and way to run
    searched_again: bool = False  # whether the certificate's answers were
    _answers: dict[int, list[Ids]] = field(default_factory=dict)

    @property
    def sources(self) -> list[Ids]:
        return list(self.trained.source.encode_batch(self.texts))

    @property
    def pairs(self) -> list[tuple[Ids, Ids]]:
        """Ids of each source with its first target."""
        targets = self.trained.target.encode_batch([targets[0] for targets in self.references])
        return list(zip(self.sources, targets, strict=True))

    def torch_answers(self, beam_size: int) -> list[Ids]:
        """The torch model's answer to each held-out source, computed once for each beam size."""
        if beam_size not in self._answers:
            trained, limit = self.trained, self.limit
            answers = decode_all(
                trained.model, self.sources, beam_size, max_length=limit, start=trained.start, rows=self.rows
            )
            self._answers[beam_size] = answers
        return self._answers[beam_size]

    def first(self, count: int) -> Samples:
        """The first of them."""
        listed = self.references[:count]
        return dataclasses.replace(self, texts=self.texts[:count], references=listed, decoded={}, _answers={})

    @property
    def limit(self) -> int:
        """Tokens of an answer at most, start tokens included, wherever answers are compared."""
        return answer_limit(self.sources, self.trained.config.max_length)


def read_samples(run: Path, trained: TrainedModel, given: Path | None = None) -> Samples:
    """The samples in `given`, else of the run, that fit the model; BundleError if there are none."""
    pairs, limit = sample_pairs(run, trained, given), trained.config.max_length
    references: dict[str, list[str]] = {}
    for source, target in pairs:
        if len(trained.source.encode(source)) < limit:
            references.setdefault(source, []).append(target)
    texts = list(references)[:HELD_OUT]
    if not texts:
        raise BundleError(
            f"{given or run / checkpoint.SAMPLES}: of its {len(pairs)} pairs, none fits the model's max_length of "
            f"{limit}; at least 1 is needed to compare answers on. Train with other validation pairs, or with a larger "
            "max_length."
        )
    listed = [references[text] for text in texts]
    invented = given is None and not has_samples(run)
    rows = rows_that_fit(trained.config, limit)
    return Samples(trained, texts, listed, imported_defaults(run), run, invented, rows)


def rows_that_fit(config: ModelConfig, limit: int) -> int:
    """How many hypotheses may be decoded together: their caches take at most three eighths of the weights."""
    sizes = sizes_of(config)
    tokens = answer_limit([list(range(EXPECTED))], limit) + EXPECTED
    row = FLOAT * (2 * sizes.decoder_layers * sizes.d_model * tokens + 3 * sizes.target_vocab)
    return max(BEAM, min(BATCH_ROWS, 3 * room_of(sizes) // 4 // row))


def imported_defaults(run: Path) -> dict[str, Any]:
    """An imported run's generation defaults and languages, for the manifest; a trained run has none."""
    kept = checkpoint.read_config(run)
    return {name: kept[name] for name in DEFAULTS if kept.get(name)}
