"""Engines of small random models, as bundles on disk: what the service's tests decode with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attendant.export.bundle import Bundle, read_bundle, write_bundle
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.convert import TOKENIZERS, describe_variants, write_graphs, written_sizes
from attendant.model.search.reference import Hypothesis, greedy, next_logprobs
from attendant.model.text import tokenizer
from attendant.model.text.tokenizer import BOS, EOS, PAD, UNK
from attendant.model.transformer import Transformer
from attendant.service.engine.batch.runner import Runner
from attendant.service.engine.engine import Engine, EngineSettings
from attendant.service.engine.observer import EngineObserver
from attendant.service.engine.tasks import Distribution, Finished, Generate, Generated, NewTokens, Options
from attendant.service.memory import MemoryAccount

LETTERS = "abcdefghi"  # ids 4 to 12 of the source
SYMBOLS = " ".join("ABCDEFG")  # ids 4 to 10 of the target
LONG = Options(max_length=64, min_length=64)
SOURCES = [[4, 5, 6], [9], [12, 11, 10, 9, 8, 7, 6, 5], [5] * 12]


def replace_step(patch: pytest.MonkeyPatch, step: Callable[..., Any]) -> None:
    """Each step of every lane is `step`, in place of `Runner.run`, and none is taken by compiled code alone."""
    patch.setattr(Runner, "run", step)
    patch.setattr(Runner, "steps_in_compiled_code", False)


def make_bundle(
    model: Transformer, out: Path, variants: tuple[str, ...] = ("fp32", "int8"), sample_length: int = 12
) -> Bundle:
    """A bundle of a model with the vocabularies of tests/support/small_models.py, certified by torch, not verified.

    `sample_length` is the most tokens of an answer in the certificate.
    """

    def fill(directory: Path) -> dict[str, Any]:
        (directory / "tokenizers").mkdir()
        tokenizer.learn("chars", [LETTERS]).save(directory / TOKENIZERS["source"])
        tokenizer.learn("words", [SYMBOLS]).save(directory / TOKENIZERS["target"])
        arrays = arrays_of(model)
        for variant in variants:
            write_graphs(variant, model.config, arrays, directory / variant)
        limit = model.config.max_length
        described = describe_variants(variants, model.config)
        if "int8" in described:
            described["int8"]["tolerance"] = 3.0  # random weights leave little margin
        return {
            "name": "small",
            **written_sizes(model.config),
            "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
            "limits": {"max_source_length": limit - 1, "max_target_length": limit},
            "tokenizers": TOKENIZERS,
            "variants": described,
            "certificate": {"samples": [make_sample(model, source, sample_length) for source in SOURCES]},
            "produced_by": {"attendant": "test"},
        }

    write_bundle(out, fill, force=True)
    return read_bundle(out)


def make_sample(model: Transformer, source: list[int], max_length: int) -> dict[str, Any]:
    return {
        "source_ids": source,
        "greedy": make_answer(greedy(model, source, max_length=max_length)),
        "next_token": {"ids": [4, 5], "logprobs": [next_logprobs(model, source, ())[i] for i in (4, 5)]},
    }


def make_answer(found: Hypothesis) -> dict[str, Any]:
    """An answer of the torch model as a certificate has it."""
    return {"ids": list(found.ids), "logprobs": list(found.logprobs), "finish_reason": found.finish_reason}


def make_engine(
    bundle: Bundle, observer: EngineObserver | None = None, memory: MemoryAccount | None = None, **settings: Any
) -> Engine:
    return Engine(bundle, EngineSettings(**{"threads": 1, "precision": "fp32"} | settings), observer, None, memory)


def finish_all(engine: Engine) -> None:
    """Decode in this thread until nothing waits or runs."""
    while engine.count_running() or engine.count_waiting():
        engine.iteration()


def generate(source: list[int], **options: Any) -> Generate:
    return Generate(source=tuple(source), options=Options(**{"max_length": 20} | options))


class Callback:
    """A callback that keeps its events."""

    def __init__(self, count: int = 1) -> None:
        self.events: list[NewTokens | Finished] = []
        self._missing, self._done = count, threading.Event()

    def __call__(self, event: NewTokens | Finished) -> None:
        self.events.append(event)
        self._missing -= isinstance(event, Finished)
        if not self._missing:
            self._done.set()

    def wait(self) -> dict[int, Any]:
        """The answers by index, each callback once."""
        assert self._done.wait(30)
        finished = [event for event in self.events if isinstance(event, Finished)]
        answers = {event.index: event.answer for event in finished}
        assert len(answers) == len(finished)
        return answers


def without_timing(answer: Any) -> Any:
    if isinstance(answer, Generated):
        return answer.hypotheses
    if isinstance(answer, Distribution):
        return answer.logprobs.tobytes(), answer.prefix_logprobs
    return answer.logprobs
