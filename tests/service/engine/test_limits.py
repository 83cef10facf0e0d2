"""What a model cannot decode is refused before it is queued: nothing indexes past a table of the graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attendant.export.bundle import Bundle
from attendant.service.engine.engine import Engine
from attendant.service.engine.tasks import Generate, Generated, NextToken, Options, Score, Task
from attendant.service.errors import InvalidFieldError, StartError
from tests.support.engines import Callback, make_bundle, make_engine
from tests.support.small_models import make_model

LIMIT = 64  # positions of the model
SOURCE = (4,) * (LIMIT - 1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(make_model(seed=3), tmp_path_factory.mktemp("bundle") / "small", ("fp32",))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return make_engine(bundle)


LONGEST = [
    Score(source=SOURCE, target=(5,) * (LIMIT - 1)),
    NextToken(source=SOURCE, prefix=(5,) * (LIMIT - 1)),
    Generate(source=SOURCE, options=Options(max_length=LIMIT, min_length=LIMIT)),
    Generate(source=SOURCE, options=Options(max_length=LIMIT, beam_size=3), prefix=(5,) * (LIMIT - 1)),
    Generate(source=SOURCE, options=Options(max_length=LIMIT), prefix=(5,) * LIMIT),
]


def test_the_longest_of_everything_is_decoded(engine: Engine) -> None:
    results = engine.run(LONGEST)
    assert len(results) == len(LONGEST)
    assert isinstance(results[-1], Generated)
    assert results[-1].hypotheses[0].finish_reason == "length"


TOO_LONG: list[tuple[Task, str]] = [
    (Score(source=(4,), target=(5,) * LIMIT), "target"),
    (NextToken(source=(4,), prefix=(5,) * LIMIT), "prefix"),
    (Generate(source=(4,), options=Options(max_length=LIMIT + 1)), "max_length"),
    (Generate(source=(4,), options=Options(max_length=3), prefix=(5,) * 4), "prefix"),
    (NextToken(source=(4,) * LIMIT), "source"),
]
UNKNOWN: list[tuple[Task, str]] = [
    (NextToken(source=(13,)), "source"),
    (NextToken(source=(-1,)), "source"),
    (NextToken(source=(4,), prefix=(11,)), "prefix"),
    (Score(source=(4,), target=(5, 11)), "target"),
    (Generate(source=(4,), prefix=(-1,), options=Options(max_length=9)), "prefix"),
]


@pytest.mark.parametrize(("task", "field"), [*TOO_LONG, *UNKNOWN])
def test_what_is_too_long_or_unknown_is_refused_with_all_that_was_submitted_with_it(
    engine: Engine, task: Task, field: str
) -> None:
    with pytest.raises(InvalidFieldError, match=r"\.$") as refused:
        engine.submit([NextToken(source=(4,)), task], Callback())
    assert refused.value.field == field
    assert engine.count_waiting() == 0


@pytest.mark.parametrize("prefix", [[11], [-1], ["4"], [True], 4, {"0": 4}, [4] * (LIMIT - 1)], ids=str)
def test_a_bundle_whose_start_tokens_cannot_be_decoded_does_not_start(bundle: Bundle, prefix: Any) -> None:
    with pytest.raises(StartError, match=r"target_prefix in its manifest takes at most 62 ids from 0 to 10, not"):
        make_engine(replace(bundle, generation={"target_prefix": prefix}))


def test_the_longest_of_everything_is_decoded_after_start_tokens(bundle: Bundle) -> None:
    start = [4] * 3
    engine = make_engine(replace(bundle, generation={"target_prefix": start}))
    longest = LIMIT - len(start)
    results = engine.run(
        [
            Score(source=SOURCE, target=(5,) * (longest - 1)),
            NextToken(source=SOURCE, prefix=(5,) * (longest - 1)),
            Generate(source=SOURCE, options=Options(max_length=longest, min_length=longest, beam_size=3)),
        ]
    )
    assert len(results) == 3
    with pytest.raises(InvalidFieldError, match=f"over this model's limit of {longest}"):
        engine.submit([Generate(source=SOURCE, options=Options(max_length=longest + 1))], Callback())
