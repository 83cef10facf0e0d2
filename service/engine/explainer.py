"""The explainer: computes attention weights of finished searches, one at a time, in a thread of its own.

It runs the bundle's `full` graph, which lanes do not use: loaded on first use, on the CPU, with threads of its own, so
that lanes go on decoding meanwhile and compute the same bits. Memory is bounded: there is one run at a time, a run that
would take more than a share of the limit is refused, and jobs that wait hold no tensors.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import nullcontext

import numpy as np
import onnxruntime as ort

from export.bundle import Bundle, padded_width
from service.engine import attention
from service.engine.job import Job
from service.engine.tasks import (
    ATTENTION_KINDS,
    Array,
    EventCallback,
    Explain,
    Explained,
    Finished,
    Generated,
    Ids,
    NewTokens,
    Result,
    Score,
    Scored,
)
from service.engine.turns import Turns
from service.errors import InvalidFieldError, NotFoundError, QueueFullError, ServiceError
from service.hardware import memory_limit

MAX_PENDING = 32  # explanations that are accepted and have no outcome yet
WEIGHTS_SHARE = 0.25  # of the memory limit, for the graph's weights
RUN_SHARE = 0.25  # of the memory limit, for one run
log = logging.getLogger("attendant")


class Explainer:
    def __init__(self, bundle: Bundle, precision: str, threads: int, turns: Turns | None = None) -> None:
        """`precision` is the one that lanes decode with; attention is computed in f32 where the bundle has it.

        `turns` are shared with other engines; None: there are no others.
        """
        self._bundle, self._precision, self._threads, self._turns = bundle, precision, threads, turns
        self._graph: FullGraph | None = None
        self._waiting: deque[tuple[Job, Generated | Scored]] = deque()
        self._pending = 0
        self._closed = self._stopped = False
        self._changed = threading.Condition()

    def count_pending(self) -> int:
        """Explanations whose search is done, without an outcome yet."""
        return len(self._waiting)

    def reserve(self, count: int) -> None:
        with self._changed:
            if self._pending + count > MAX_PENDING:
                raise QueueFullError(f"{self._pending} explanations are under way already; try again in 1 s.", 1)
            self._pending += count

    def release(self, count: int = 1) -> None:
        with self._changed:
            self._pending -= count

    def releasing(self, on_event: EventCallback) -> EventCallback:
        """Wrap the callback of an explanation: its outcome also releases its reservation."""

        def call(event: NewTokens | Finished) -> None:
            if isinstance(event, Finished):
                self.release()
            on_event(event)

        return call

    def add(self, job: Job, found: Result) -> None:
        """Queue a job whose search is done; called by a lane."""
        assert isinstance(found, Generated | Scored)
        with self._changed:
            self._waiting.append((job, found))
            self._changed.notify_all()

    def loop(self) -> None:
        """Run until it is closed and nothing waits, or until it is stopped."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed or self._stopped)
                if self._stopped or not self._waiting:
                    return
            self.run_next()

    def run_next(self) -> None:
        """Deliver the outcome of the first waiting job, which counts as waiting until then."""
        if not self._waiting:
            return
        job, found = self._waiting[0]
        now = time.monotonic()
        if job.cancelled or job.expired(now):
            job.drop(now)
        else:
            try:
                job.finish_with(self._explain(job, found))
            except ServiceError as error:
                job.fail(error)
            except Exception:
                log.exception("an explanation failed; its request gets an error")
                job.fail(ServiceError("the server failed while explaining; the request may be sent again."))
        with self._changed:
            self._waiting.popleft()

    def close(self) -> None:
        """Nothing more will be added."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End after the run that is under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def drain(self, error: Exception) -> None:
        """Fail the jobs that still wait; only once its thread has ended."""
        while self._waiting:
            self._waiting.popleft()[0].fail(error)

    def _explain(self, job: Job, found: Generated | Scored) -> Explained:
        task, special = job.task, job.search.special
        assert isinstance(task, Explain)
        ids, steps = _target_of(task, found)
        start = (special.bos, *special.start)
        read = (*start, *ids)[: len(special.start) + steps]
        self._check_size(task, steps, len(read))
        started = time.monotonic()
        if self._graph is None:
            self._graph = load_full_graph(self._bundle, self._precision, self._threads)
        with nullcontext() if self._turns is None else self._turns.take(self._threads):
            weights = self._graph.run((*task.source, special.eos), read, special.pad)
        weights["decoder"] = weights["decoder"][:, :, len(special.start) :]
        weights["cross"] = weights["cross"][:, :, len(special.start) :]
        return Explained(
            found,
            tuple(attention.choose(kind, weights[kind], task.attention) for kind in task.attention.kinds),
            start,
            attention.align(weights["cross"], task.alignment, task.alignable, len(ids)),
            self._graph.precision,
            time.monotonic() - started,
        )

    def _check_size(self, task: Explain, steps: int, read: int) -> None:
        """Refuse what would be too much to answer, or to compute here."""
        sizes, source = self._bundle.sizes, len(task.source) + 1
        attention.check_value_count(attention.count_values(task.attention, sizes, source, steps, read), task.max_values)
        every = sizes.encoder_layers * source**2 + sizes.decoder_layers * (read + source) * read
        computed = 4 * (2 * sizes.heads * every + 3 * read * sizes.target_vocab)  # 2: attention is stacked in a copy
        limit = int(RUN_SHARE * memory_limit())
        if computed > limit:
            raise InvalidFieldError(
                f"explaining {source} source and {read} target tokens of this model takes about {computed / 1e6:.0f} "
                f"MB, and {limit / 1e6:.0f} MB are allowed here; give shorter texts.",
                "source",
            )


def _target_of(task: Explain, found: Generated | Scored) -> tuple[Ids, int]:
    """The target's ids without the end token; and the number of steps, with the end token's if there is one."""
    if isinstance(task.search, Score):
        return task.search.target, len(task.search.target) + 1
    assert isinstance(found, Generated)
    best = found.hypotheses[0]
    return best.ids, len(best.logprobs)


class FullGraph:
    """The `full` graph of a variant on the CPU."""

    def __init__(self, bundle: Bundle, precision: str, threads: int) -> None:
        self.precision = precision
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.enable_mem_pattern = options.enable_cpu_mem_arena = False  # nothing is kept between runs
        options.add_session_config_entry("session.force_spinning_stop", "1")
        path = str(bundle.variants[precision].graphs["full"])
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, source: Ids, target: Ids, pad: int) -> dict[str, Array]:
        """Attention weights of every kind, (L, H, queries, keys), padding cut off."""
        count, width = len(source), padded_width(len(source))
        padded = np.full((1, width), pad, np.int64)
        padded[0, :count] = source
        feeds = {"source": padded, "source_length": np.array([count]), "target": np.array([target], np.int64)}
        outputs = self._session.run([f"{kind}_attention" for kind in ATTENTION_KINDS], feeds)
        encoder, decoder, cross = (np.asarray(output)[0] for output in outputs)
        return {"encoder": encoder[..., :count, :count], "decoder": decoder, "cross": cross[..., :count]}


def load_full_graph(bundle: Bundle, served: str, threads: int) -> FullGraph:
    """Load it in f32, as torch computes, or in the served precision if the f32 weights are missing or too large."""
    limit = int(WEIGHTS_SHARE * memory_limit())
    for precision in dict.fromkeys(("fp32", served)):
        if precision in bundle.variants and weight_bytes(bundle, precision) <= limit:
            return FullGraph(bundle, precision, threads)
    raise NotFoundError(
        f"{bundle.name} cannot be explained here: its weights take more than {limit / 1e6:.0f} MB, a quarter of the "
        "memory limit, beside those that decode."
    )


def weight_bytes(bundle: Bundle, precision: str) -> int:
    path = bundle.variants[precision].graphs["full"]
    return sum(file.stat().st_size for file in path.parent.iterdir())
