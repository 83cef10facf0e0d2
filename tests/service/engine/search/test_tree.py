"""The tree of a beam search against the table that it was searched in, and against what the search answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.service.engine.batch.job import make_search
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import BeamNode, Generate, Generated, Options
from tests.support.tables import NO_TIME, SPECIAL, VOCABULARY, generate, run, table


def recorded(seed: int, prefix: tuple[int, ...] = (), special: SpecialIds = SPECIAL, **options: Any) -> Generated:
    search = make_search(special, Generate(source=(), prefix=prefix, options=Options(**options), record=True))
    run(search, table(seed))
    found = search.result(NO_TIME)
    assert isinstance(found, Generated)
    return found


def paths(found: Generated) -> dict[int, tuple[int, ...]]:
    """The tokens from the root to each node; every parent was kept in the step before."""
    assert found.tree is not None
    tokens: dict[int, tuple[int, ...]] = {0: ()}
    extended = {0}
    for nodes in found.tree:
        for node in nodes:
            assert node.parent in extended
            assert node.number not in tokens
            tokens[node.number] = (*tokens[node.parent], node.token)
        extended = {node.number for node in nodes if node.state == "kept"}
    return tokens


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999),
    beam_size=st.integers(1, 5),
    max_length=st.integers(1, 7),
    penalty=st.sampled_from([0.0, 1.0]),
    prefix=st.sampled_from([(), (3,), (4, 3)]),
    stopping=st.sampled_from([True, False, "never"]),
)
def test_the_tree_is_the_search(
    seed: int, beam_size: int, max_length: int, penalty: float, prefix: tuple[int, ...], stopping: Any
) -> None:
    options = {
        "beam_size": beam_size, "num_hypotheses": beam_size, "length_penalty": penalty, "early_stopping": stopping,
        "max_length": max_length + len(prefix),
    }  # fmt: skip
    found = recorded(seed, prefix, **options)
    for one, other in zip(found.hypotheses, generate(table(seed), prefix, **options), strict=True):
        assert (one.ids, one.logprobs, one.score, one.finish_reason) == (
            other.ids,
            other.logprobs,
            other.score,
            other.finish_reason,
        )
    check_candidates(found, seed, prefix, beam_size)
    check_answers(found, prefix)


def check_candidates(found: Generated, seed: int, prefix: tuple[int, ...], beam_size: int) -> None:
    """Sums are the table's; nothing better than what was kept is missing; each candidate has one fate."""
    assert found.tree is not None
    tokens, logprobs = paths(found), table(seed)
    sums = {0: sum(float(logprobs(prefix[:i])[token]) for i, token in enumerate(prefix))}
    live = [0]
    for nodes in found.tree:
        assert len(nodes) <= 2 * beam_size
        assert len({(node.parent, node.token) for node in nodes}) == len(nodes)
        assert [node.weight for node in nodes] == sorted((node.weight for node in nodes), reverse=True)
        for node in nodes:
            assert node.state in ("kept", "finished", "pruned")
            own = float(logprobs((*prefix, *tokens[node.parent]))[node.token])
            assert node.logprob == pytest.approx(own)
            sums[node.number] = sums[node.parent] + own
            assert node.weight == pytest.approx(sums[node.number])
        kept = [node for node in nodes if node.state == "kept"]
        assert len(kept) <= beam_size
        seen = {(node.parent, node.token) for node in nodes}
        for parent in live:
            after = logprobs((*prefix, *tokens[parent]))
            for token in set(range(VOCABULARY)) - {SPECIAL.pad, SPECIAL.bos}:
                better = kept and sums[parent] + float(after[token]) > kept[-1].weight + 1e-6
                assert not better or (parent, token) in seen
        live = [node.number for node in kept]


def check_answers(found: Generated, prefix: tuple[int, ...], forced_end: bool = False) -> None:
    """The finished nodes that say so are the hypotheses answered, each once; a forced end changes no ranks."""
    assert found.tree is not None
    tokens = paths(found)
    answered: dict[int, BeamNode] = {
        node.hypothesis: node for nodes in found.tree for node in nodes if node.hypothesis is not None
    }
    assert sorted(answered) == list(range(len(found.hypotheses)))
    for place, hypothesis in enumerate(found.hypotheses):
        node = answered[place]
        ids = (*prefix, *tokens[node.number])
        assert node.state == "finished"
        assert (ids[:-1] if len(hypothesis.logprobs) > len(hypothesis.ids) else ids) == hypothesis.ids
        assert forced_end or node.score == pytest.approx(hypothesis.score)


def test_start_tokens_count_in_the_scores_of_the_tree_too() -> None:
    special = SpecialIds(SPECIAL.pad, SPECIAL.bos, SPECIAL.eos, start=(3, 4))
    found = recorded(4, special=special, beam_size=2, num_hypotheses=2, max_length=5)
    check_answers(found, ())


def test_a_forced_end_is_a_finished_node() -> None:
    found = recorded(1, beam_size=3, num_hypotheses=3, max_length=4, min_length=3, forced_end=True)
    check_answers(found, (), forced_end=True)
    assert found.tree is not None
    assert {node.token for node in found.tree[-1]} == {SPECIAL.eos}


def test_hypotheses_that_may_not_go_on_have_finished_where_they_are() -> None:
    found = recorded(0, beam_size=2, num_hypotheses=2, max_length=40, min_length=39, no_repeat_ngram_size=1)
    assert found.tree is not None
    assert {node.state for node in found.tree[-1]} <= {"finished", "pruned"}
    assert [hypothesis.finish_reason for hypothesis in found.hypotheses] == ["length", "length"]
    check_answers(found, ())


def test_a_prefix_that_fills_the_target_leaves_no_tree() -> None:
    assert recorded(0, prefix=(3, 4), max_length=2).tree == ()


def test_samples_have_no_tree_and_unrecorded_searches_neither() -> None:
    assert recorded(0, temperature=1.0, max_length=5).tree is None
    search = make_search(SPECIAL, Generate(source=(), options=Options(max_length=5)))
    run(search, table(0))
    found = search.result(NO_TIME)
    assert isinstance(found, Generated)
    assert found.tree is None
    assert found.hypotheses[0].entropies == ()


def test_entropies_are_those_of_the_tables_rows() -> None:
    best = recorded(3, beam_size=3, max_length=6).hypotheses[0]
    for place, entropy in enumerate(best.entropies):
        values = table(3)(best.ids[:place]).astype(np.float64)
        assert entropy == pytest.approx(-(np.exp(values) * values).sum())
    assert len(best.entropies) == len(best.logprobs)
