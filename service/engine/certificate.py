"""Replays a certificate: a bundle's samples are decoded on this machine and compared with the torch model's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendant.export.bundle import Bundle
from attendant.service.engine.interface import CertificateResult
from attendant.service.engine.tasks import (
    Array,
    Distribution,
    Generate,
    Generated,
    NextToken,
    Options,
    Result,
    Score,
    Scored,
    Task,
)
from attendant.service.errors import InvalidFieldError, NoNumbersError, StartError

Decode = Callable[[Sequence[Task]], Sequence[Result]]  # the results of tasks of one row each, in order


@dataclass(frozen=True)
class Expectation:
    """The log-probabilities that torch gave for some tokens."""

    task: Task
    logprobs: Array
    ids: Array | None = None  # which tokens, if the result has the whole vocabulary


def check_certificate(bundle: Bundle, precision: str, decoders: Sequence[Decode]) -> CertificateResult:
    """Replay every sample with each decoder; StartError if any log-probability is off by more than the tolerance.

    A decoder is one way in which this engine computes: a lane with the graphs that it uses.
    """
    samples, tolerance = bundle.certificate["samples"], bundle.variants[precision].tolerance
    try:
        expectations = [expectation for sample in samples for expectation in expectations_of(sample)]
        drift = float(np.max([drift_of(expectations, decode) for decode in decoders], initial=0.0))
    except NoNumbersError:
        drift = float("nan")
    except (KeyError, TypeError, IndexError, ValueError, InvalidFieldError) as error:
        raise StartError(f"{bundle.directory}: its certificate cannot be read: {error!r}.") from None
    except Exception as error:  # onnxruntime raises its own kinds, with no common base
        reason = str(error).splitlines()[0]
        raise StartError(f"{bundle.directory}: its certificate cannot be replayed on this machine: {reason}") from None
    if not drift <= tolerance:  # NaN is never within it
        found = "are not numbers" if np.isnan(drift) else f"are off by {drift:.2g}"
        raise StartError(
            f"{bundle.directory} fails its certificate on this machine: log-probabilities {found}, and {tolerance:.2g} "
            f"is allowed for {precision}. Choose another --precision, or export it again on this machine."
        )
    return CertificateResult(drift=drift, tolerance=tolerance, samples=len(samples))


def expectations_of(sample: Mapping[str, Any]) -> Iterator[Expectation]:
    """What is expected of a sample: for its first token, and for each token of the greedy and the beam answer."""
    source, first = tuple(sample["source_ids"]), sample["next_token"]
    yield Expectation(NextToken(source=source), np.array(first["logprobs"], float), np.array(first["ids"], int))
    for answer in (sample["greedy"], sample.get("beam")):
        if answer is not None:
            yield Expectation(scoring_task(source, answer), np.array(answer["logprobs"], float))


def scoring_task(source: tuple[int, ...], answer: Mapping[str, Any]) -> Task:
    """The task that gives an answer's log-probabilities, with the end token's unless the length limit came first."""
    ids, count = tuple(answer["ids"]), len(answer["logprobs"])
    if count == len(ids) + 1:
        return Score(source=source, target=ids)
    if count == len(ids) > 0:  # all of it is a prefix that ends at the length limit
        return Generate(source=source, prefix=ids, options=Options(max_length=len(ids)))
    raise ValueError(f"{len(ids)} tokens with {count} log-probabilities")


def drift_of(expectations: Sequence[Expectation], decode: Decode) -> float:
    """The largest difference from what is expected; NaN if anything is NaN."""
    tasks = list(dict.fromkeys(expectation.task for expectation in expectations))
    found = dict(zip(tasks, map(logprobs_of, decode(tasks)), strict=True))
    worst = 0.0
    for expected in expectations:
        logprobs = found[expected.task]
        if np.isnan(logprobs).any():
            return float("nan")
        same = logprobs if expected.ids is None else logprobs[expected.ids]
        worst = float(np.maximum(worst, np.max(np.abs(same - expected.logprobs), initial=0.0)))
    return worst


def logprobs_of(result: Result) -> Array:
    if isinstance(result, Generated):
        return np.array(result.hypotheses[0].logprobs)
    assert isinstance(result, Distribution | Scored)
    return np.asarray(result.logprobs)
