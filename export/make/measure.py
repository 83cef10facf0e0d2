"""A variant's answers compared with torch's: drift of log-probabilities, how many answers differ, error rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attendant.export.make.samples import Ids, Samples
from attendant.export.runner import GraphStepper, Runner
from attendant.export.verify import replay
from attendant.model.evaluation.evaluate import measure as error_rates
from attendant.model.search.decode import decode_sources

BEAM = 4
SLACK = 1.0  # percentage points that a rate may move on another processor
DRIFT_SLACK = 1e-4  # nats, beside a factor of 2: rounding on another processor
ERROR_RATES = ("sequence_error_rate", "token_error_rate")
RATES = ("differing_greedy", "differing_beam_4", *ERROR_RATES, *(f"torch_{name}" for name in ERROR_RATES))


def decode(runner: Runner, samples: Samples) -> dict[int, list[Ids]]:
    """The graphs' answers to the held-out inputs, by beam size; decoded once in a process."""
    key = (next(iter(runner.graphs.values())), runner.way)
    if key not in samples.decoded:
        stepper, start, rows = GraphStepper(runner), samples.trained.start, samples.rows
        stepper.max_length = samples.limit
        samples.decoded[key] = {
            beam_size: decode_sources(stepper, samples.sources, beam_size, start=start, rows=rows)
            for beam_size in (1, BEAM)
        }
    return samples.decoded[key]


def measure(runner: Runner, answers: dict[int, list[Ids]], samples: Samples, held: dict[str, Any]) -> dict[str, float]:
    """For the manifest: drift over the certificate in nats; rates over the held-out inputs in percent."""
    rates, torch_rates = (_error_rates(found[1], samples) for found in (answers, _torch(samples)))
    return {
        "held_out_inputs": len(samples.texts),
        "drift": float(f"{replay.drift(held, runner):.3g}"),
        "differing_greedy": differing(answers[1], samples.torch_answers(1)),
        "differing_beam_4": differing(answers[BEAM], samples.torch_answers(BEAM)),
        **rates,
        **{f"torch_{name}": rate for name, rate in torch_rates.items()},
    }


def check_measured(claimed: dict[str, float], found: dict[str, float]) -> Iterator[str]:
    """Rates in the manifest that are off by more than a percentage point, or than three inputs if that is more.

    And a drift that is off by more than a factor of 2.
    """
    slack = max(SLACK, 300 / found["held_out_inputs"])
    for name in RATES:
        if claimed and not abs(claimed.get(name, -slack - 1) - found[name]) <= slack:
            yield f"measured: {name} is {found[name]:.2f} %, and the manifest says {claimed.get(name)}"
    drift = claimed.get("drift", found["drift"])
    if not found["drift"] / 2 - DRIFT_SLACK <= drift <= 2 * found["drift"] + DRIFT_SLACK:
        yield f"measured: the drift is {found['drift']:g}, and the manifest says {drift:g}"


def differing(found: list[Ids], expected: list[Ids]) -> float:
    """Percent of the answers that are not the same tokens."""
    wrong = sum(mine != theirs for mine, theirs in zip(found, expected, strict=True))
    return round(100 * wrong / len(expected), 2)


def _torch(samples: Samples) -> dict[int, list[Ids]]:
    return {1: samples.torch_answers(1)}


def _error_rates(found: list[Ids], samples: Samples) -> dict[str, float]:
    target = samples.trained.target
    report = error_rates([target.decode(ids) for ids in found], samples.references, target, None)
    return {name: round(report[name], 2) for name in ERROR_RATES}
