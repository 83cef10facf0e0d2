"""The tree of a beam search, recorded by the search itself: every candidate that a step looked at, and its fate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attendant.service.engine.search.search import Candidate
from attendant.service.engine.tasks import BeamNode, Hypothesis, Ids


class Tree:
    def __init__(self) -> None:
        self._steps: list[list[BeamNode]] = []
        self._nodes: dict[int, BeamNode] = {}
        self._live = [0]  # the node of each live hypothesis; 0 is the root

    def add(self, candidates: Sequence[Candidate], states: Mapping[int, str], divisor: float) -> None:
        """Record a step: its candidates, best first, and the states, by index, of those that were not pruned.

        A candidate's score is its weight divided by `divisor`.
        """
        nodes = []
        for place, (negative, parent, token, logprob, _) in enumerate(candidates):
            number, state = len(self._nodes) + 1, states.get(place, "pruned")
            node = BeamNode(number, self._live[parent], token, logprob, -negative, -negative / divisor, state)
            nodes.append(node)
            self._nodes[number] = node
        self._steps.append(nodes)
        self._live = [node.number for node in nodes if node.state == "kept"]

    def end_live(self) -> None:
        """Every next token is forbidden: mark all live hypotheses as finished."""
        if self._steps:
            self._steps[-1] = [
                replace(node, state="finished") if node.state == "kept" else node for node in self._steps[-1]
            ]

    def steps(self, prefix: int, eos: int, hypotheses: Sequence[Hypothesis]) -> tuple[tuple[BeamNode, ...], ...]:
        """The nodes of each step; one at which an answered hypothesis ends has its index. `prefix`: forced tokens."""
        found: dict[int, int] = {}  # number of a node: index of the hypothesis that ends there
        for place, hypothesis in enumerate(hypotheses):
            depth = len(hypothesis.logprobs) - prefix  # steps that it took
            if not 0 < depth <= len(self._steps):
                continue
            ended = len(hypothesis.logprobs) > len(hypothesis.ids)
            tokens = (*hypothesis.ids, eos) if ended else hypothesis.ids
            for node in self._steps[depth - 1]:
                if node.state == "finished" and self._path(node) == tokens[prefix:]:
                    found[node.number] = place
        return tuple(tuple(replace(node, hypothesis=found.get(node.number)) for node in nodes) for nodes in self._steps)

    def _path(self, node: BeamNode) -> Ids:
        """The tokens from the root to a node."""
        tokens = [node.token]
        while node.parent:
            node = self._nodes[node.parent]
            tokens.append(node.token)
        return tuple(reversed(tokens))
