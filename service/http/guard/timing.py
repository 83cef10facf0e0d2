"""What a request asks of the engine and where its time goes, for its line in the log and for the metrics.

A request's time is cut into phases, one after the other, so that nothing of it is unexplained: `read` its body,
`validate` it, `load` the model if it is not loaded, `tokenize`, then the engine's own `queue`, `encode` and `decode`
with the event loop's delay around them (`loop`), write the `answer`, and `send` it.
"""

from __future__ import annotations

from collections.abc import Sequence

from attendant.service.engine.tasks import (
    Explain,
    Explained,
    Generate,
    Generated,
    Outcome,
    Result,
    Scored,
    Task,
    Timing,
)
from attendant.service.http.guard.record import Record
from attendant.service.watch.metrics import ModelMetrics

ENGINE = "engine"


def note_tasks(record: Record, metrics: ModelMetrics, tasks: Sequence[Task]) -> None:
    """Note what is asked for, before it is submitted: so it is in the log also if it fails."""
    searches = [task.search if isinstance(task, Explain) else task for task in tasks]
    record.log_fields |= {"inputs": len(tasks), "source_tokens": sum(len(search.source) for search in searches)}
    first = searches[0] if searches else None
    if isinstance(first, Generate):
        options = first.options
        asked = {"beam_size": options.beam_size, "max_length": options.max_length, "stream": first.stream}
        record.log_fields |= asked
    for search in searches:
        metrics.asked(len(search.source), search.options.beam_size if isinstance(search, Generate) else 1)


def note_outcomes(record: Record, metrics: ModelMetrics, outcomes: Sequence[Outcome]) -> None:
    """Note the engine's times, of the slowest text; the rest of the wait was the event loop's."""
    waited = record.mark(ENGINE)
    results = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    if not results:
        return
    timings = [_timing(result) for result in results]
    slowest = max(
        timing.queue + timing.encode + timing.decode + _explaining(result)
        for timing, result in zip(timings, results, strict=True)
    )
    del record.phases[ENGINE]
    record.phases["loop"] = max(0.0, waited - slowest)
    for phase in ("queue", "encode", "decode"):
        record.log_fields[f"{phase}_ms"] = round(max(getattr(timing, phase) for timing in timings) * 1000, 3)
    for result in results:
        metrics.answered(_target_tokens(result))


def _timing(result: Result) -> Timing:
    return result.found.timing if isinstance(result, Explained) else result.timing


def _explaining(result: Result) -> float:
    return result.seconds if isinstance(result, Explained) else 0.0


def _target_tokens(result: Result) -> int:
    """Of the best hypothesis, or of the target that was given."""
    found = result.found if isinstance(result, Explained) else result
    if isinstance(found, Generated):
        return max((len(each.logprobs) for each in found.hypotheses[:1]), default=0)
    return len(found.logprobs) if isinstance(found, Scored) else 1
