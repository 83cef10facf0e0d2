"""An imported model: our options, our parameter names, tokenizers and defaults; and its run on disk."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from attendant.common.version import VERSION
from attendant.model import checkpoint
from attendant.model.config import ModelConfig, to_json
from attendant.model.errors import ConfigError
from attendant.model.files import write_directory, write_json
from attendant.model.importers.families.vocabulary import Layout, Tables
from attendant.model.importers.files.sentencepiece import SPACE
from attendant.model.importers.problems import Problems
from attendant.model.text.tokenizer import Tokenizer
from attendant.model.transformer import Transformer

SIGMOID_GELU = 1.702  # the factor in x sigmoid(1.702 x)
LARGEST_DEFAULT = 10**6
FEWEST_POSITIONS = 8  # a source and a target of a few tokens, with their ends
MOST_RELATIVE_POSITIONS = 2**16
NEVER = -30_000.0  # an output bias that leaves a class no probability, and that f16 holds


@dataclass
class ImportedModel:
    config: ModelConfig
    weights: dict[str, Tensor]  # under our parameter names, each tied one once
    source: Backend
    target: Backend
    provenance: dict[str, Any]  # format, files, conversions
    generation: dict[str, Any] = field(default_factory=dict)  # defaults of a request; target_prefix as ids
    languages: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences for the user
    spm: dict[str, Path] = field(default_factory=dict)  # side: the SentencePiece file of its tokenizer

    @property
    def is_sentencepiece(self) -> bool:
        """Whether sources are read by a SentencePiece model, whose own libraries take any text."""
        return any(piece.startswith(SPACE) for piece in self.source.get_vocab())

    def check(self, problems: Problems) -> None:
        """Check that the weights and vocabularies are exactly those that the options describe."""
        try:
            self.config.validate()
        except ConfigError as error:
            problems.add(str(error))
            return
        with torch.device("meta"):
            wanted = {name: p.shape for name, p in Transformer(self.config).named_parameters()}
        for name in sorted(wanted.keys() | self.weights.keys()):
            if name not in self.weights or name not in wanted:
                problems.add(f"{name} is {'missing' if name in wanted else 'no weight of the model'}")
            elif self.weights[name].shape != wanted[name]:
                problems.add(f"{name} is {tuple(self.weights[name].shape)}, not {tuple(wanted[name])}")
        for side, backend, size in (
            ("source", self.source, self.config.source_vocab),
            ("target", self.target, self.config.target_vocab),
        ):
            if backend.get_vocab_size() != size:
                problems.add(f"the {side} tokenizer has {backend.get_vocab_size()} tokens, and the model {size}")

    def keep_positions(self, count: int) -> None:
        """Only the first positions, or any number of relative ones; longer defaults of a request are cut to them."""
        relative = self.config.positions == "relative"
        most = MOST_RELATIVE_POSITIONS if relative else self.config.max_length
        if not FEWEST_POSITIONS <= count <= most:
            of = "whose positions are relative" if relative else "the positions of this model"
            raise ConfigError(f"--max-length takes {FEWEST_POSITIONS} to {most}, {of}, not {count}.")
        self.config = dataclasses.replace(self.config, max_length=count)
        for name, weight in self.weights.items():
            if name.endswith("_embedding.positions"):
                self.weights[name] = weight[:count].clone()
        for name in ("max_length", "min_length"):
            if name in self.generation:
                self.generation[name] = min(self.generation[name], count)

    def write(self, out: Path, samples: Path | None = None) -> None:
        """Write the run directory, which `attendant export` reads."""

        def fill(directory: Path) -> None:
            checkpoint.save_weights(self.weights, directory / checkpoint.MODEL)
            Tokenizer(self.source).save(directory / checkpoint.SOURCE_TOKENIZER)
            Tokenizer(self.target).save(directory / checkpoint.TARGET_TOKENIZER)
            if samples is not None:
                shutil.copyfile(samples, directory / checkpoint.SAMPLES)
            config = {
                "model": to_json(self.config),
                "imported": self.provenance,
                "generation": {**({"allow_unknown": True} if self.is_sentencepiece else {}), **self.generation},
                "languages": self.languages,
                "versions": {"attendant": VERSION, "torch": torch.__version__},
            }
            write_json(config, directory / checkpoint.CONFIG)

        write_directory(out, fill)

    def load(self) -> Transformer:
        """The model in eval mode; its weights are these, not a copy."""
        return checkpoint.model_of(self.config, self.weights).eval()


def with_embeddings(
    config: ModelConfig,
    weights: dict[str, Tensor],
    tables: Tables,
    layouts: tuple[Layout, Layout],
    bias: Tensor | None = None,
) -> ModelConfig:
    """Put the source, target and output tables into `weights`, in our order; the options say which are tied."""
    one = tables[0] is tables[1] and layouts[0] == layouts[1]  # then no copy is made to be compared
    source = layouts[0].table(tables[0])
    target = source if one else layouts[1].table(tables[1])
    output = target if tables[2] is tables[1] else layouts[1].table(tables[2])
    output_bias = layouts[1].table(torch.zeros(len(tables[2])) if bias is None else bias)
    output_bias[layouts[1].blocked] = NEVER
    shared = source.shape == target.shape and torch.equal(source, target)
    tied = torch.equal(target, output)
    weights["source_embedding.tokens.weight"] = source
    if not shared:
        weights["target_embedding.tokens.weight"] = target
    if not tied:
        weights["output.weight"] = output
    weights["output.bias"] = output_bias
    return dataclasses.replace(
        config,
        source_vocab=layouts[0].size,
        target_vocab=layouts[1].size,
        output_bias=True,
        shared_vocab=shared,
        tie={(True, True): "three", (True, False): "embeddings", (False, True): "two"}.get((shared, tied), "none"),
    )


def with_positions(config: ModelConfig, weights: dict[str, Tensor], source: Tensor, target: Tensor) -> ModelConfig:
    """Put the position tables into `weights`, both cut to the length of the shorter."""
    length = min(len(source), len(target))
    weights["source_embedding.positions"] = source[:length].clone()
    weights["target_embedding.positions"] = target[:length].clone()
    return dataclasses.replace(config, positions="learned", max_length=length)


def fold_sigmoid_gelu(weights: dict[str, Tensor]) -> None:
    """Turn x sigmoid(1.702 x) into SiLU: multiply the feed-forward's first layer by 1.702, divide its second by it."""
    for name in weights:
        if ".feed_forward.widen." in name:
            weights[name] = weights[name] * SIGMOID_GELU
        elif name.endswith(".feed_forward.narrow.weight"):
            weights[name] = weights[name] / SIGMOID_GELU


def is_default(value: Any) -> bool:
    """Whether a value can be a default of a request: a finite number of a size that makes sense."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_DEFAULT
