"""Our engine and CTranslate2 behind one small interface, each imported only where it is asked for.

Neither needs torch, so a worker process holds nothing but the engine that it measures.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Source = list[int]  # ids, without the end token
FIRST_WORD = 4  # the ids below are special tokens
BULK_BATCH = 64  # sources that CTranslate2 decodes together, with which it is fastest in bulk
LONGEST = 256  # tokens of an answer that ends by itself; CTranslate2's own default
SOURCE_LENGTH, TARGET_LENGTH = 20, 24  # tokens of a measured request, the source's end token included


@dataclass(frozen=True)
class Answer:
    ids: tuple[int, ...]
    score: float  # summed log-probability over length; 0 where it was not asked for


class Engine(Protocol):
    def answer(self, sources: list[Source], beam_size: int, length: int | None, scores: bool = False) -> list[Answer]:
        """The best target of each source; of `length` tokens: the end token neither comes before nor after."""
        ...

    def close(self) -> None: ...


class OurEngine:
    """The service's engine, asked for all sources at once, without HTTP."""

    def __init__(self, bundle: Path, precision: str, threads: int, lanes: int = 0) -> None:
        from attendant.export.bundle import read_bundle
        from attendant.service.engine.engine import Engine, EngineSettings

        settings = EngineSettings(
            provider="cpu",
            precision=precision,
            threads=threads,
            lanes=lanes,
            max_queue_requests=4096,
            max_queue_tokens=2**31,
        )
        self.service = Engine(read_bundle(bundle), settings)
        self.service.start()

    def answer(self, sources: list[Source], beam_size: int, length: int | None, scores: bool = False) -> list[Answer]:
        from attendant.service.engine.tasks import Generate, Options

        limit = self.service.description.max_target_length if length is None else length
        options = Options(beam_size=beam_size, max_length=limit, min_length=length or 0, early_stopping=True)
        # Without a bundle's own start tokens, a language, which CTranslate2 is not given either.
        tasks = [Generate(source=tuple(source), options=options, start=()) for source in sources]
        best = [outcome.hypotheses[0] for outcome in self.run(tasks)]
        return [Answer(hypothesis.ids, hypothesis.score if scores else 0.0) for hypothesis in best]

    def run(self, tasks: list[Any]) -> list[Any]:
        """The answers to some tasks, in order; what went wrong with one is raised."""
        from attendant.service.engine.tasks import Finished

        found: dict[int, Any] = {}
        done = threading.Event()

        def hear(event: Any) -> None:
            if isinstance(event, Finished):
                found[event.index] = event.answer
                if len(found) == len(tasks):
                    done.set()

        self.service.submit(tasks, hear)
        done.wait()
        for outcome in found.values():
            if isinstance(outcome, Exception):
                raise outcome
        return [found[i] for i in range(len(tasks))]

    def close(self) -> None:
        self.service.close()


class CTranslate2Engine:
    """CTranslate2 as its users call it: a batch for each of its workers, or in bulk batches of BULK_BATCH."""

    def __init__(self, model: Path, precision: str, threads: int, workers: int = 1) -> None:
        """`threads` are those of all workers together; 0: every processor."""
        import ctranslate2

        from attendant.common.hardware import available_cpus

        compute_type, self._workers = {"fp32": "float32", "int8": "int8"}[precision], workers
        each = max(1, (threads or available_cpus()) // workers)
        self._translator = ctranslate2.Translator(
            str(model), device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=each
        )

    def answer(self, sources: list[Source], beam_size: int, length: int | None, scores: bool = False) -> list[Answer]:
        results = self._translator.translate_batch(
            [peer_tokens(source) for source in sources],
            max_batch_size=min(BULK_BATCH, -(-len(sources) // self._workers)),
            beam_size=beam_size,
            length_penalty=1.0,
            max_input_length=0,
            min_decoding_length=length or 1,
            max_decoding_length=length or LONGEST,
            return_scores=scores,
        )
        return [Answer(peer_ids(result.hypotheses[0]), result.scores[0] if scores else 0.0) for result in results]

    def close(self) -> None:
        self._translator.unload_model()


PEER_NAMES = ("<blank>", "<unk>", "<s>", "</s>")  # the special tokens by id: CTranslate2 finds them by these names


def peer_tokens(source: Source) -> list[str]:
    """A source in the words of `bench.models.random_model`, with the end token that CTranslate2 wants to be given."""
    return [*(f"t{i}" for i in source), PEER_NAMES[3]]


def peer_ids(tokens: list[str]) -> tuple[int, ...]:
    return tuple(PEER_NAMES.index(token) if token in PEER_NAMES else int(token[1:]) for token in tokens)


def make_engine(kind: str, path: Path, precision: str, threads: int) -> Engine:
    """ours, ours_one_lane, ctranslate2, ctranslate2_two_workers, transformers or optimum."""
    if kind.startswith("ours"):
        return OurEngine(path, precision, threads, lanes=1 if kind == "ours_one_lane" else 0)
    if kind.startswith("ctranslate2"):
        return CTranslate2Engine(path, precision, threads, workers=2 if kind == "ctranslate2_two_workers" else 1)
    from bench.versus.huggingface import GenerateEngine

    return GenerateEngine(kind, path, threads)


def random_ids(rng: np.random.Generator, length: int, vocabulary: int) -> list[int]:
    return [int(i) for i in rng.integers(FIRST_WORD, vocabulary, length)]


def sources(count: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Some sources of `length` tokens with the end token, which is not in them."""
    rng = np.random.default_rng(seed)
    return [random_ids(rng, length - 1, vocabulary) for _ in range(count)]


def text(ids: list[int]) -> str:
    return " ".join(f"t{i}" for i in ids)
