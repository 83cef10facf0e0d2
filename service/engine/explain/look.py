"""One look into the model: the pass over source and target, with what a task includes, and without what it ablates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attendant.export.bundle import Sizes
from attendant.service.engine.explain import vocabulary
from attendant.service.engine.explain.full_graph import FullGraph
from attendant.service.engine.explain.included import collect, values_of
from attendant.service.engine.explain.inside import Inside
from attendant.service.engine.search.search import SpecialIds
from attendant.service.engine.tasks import Ablated, Array, Explain, Generate, Ids
from attendant.service.errors import CancelledError, NotFoundError

MORE_TOKENS = 8  # than the explained target that an ablated model may decode
LOGPROBS = "logprobs"


class Look:
    """`is_wanted` is asked between two passes: an explanation that nobody waits for stops."""

    def __init__(self, graph: FullGraph, task: Explain, special: SpecialIds, is_wanted: Callable[[], bool]) -> None:
        self._graph, self._task, self._special, self._is_wanted = graph, task, special, is_wanted
        self._source = (*task.source, special.eos)

    def run(self, read: Ids) -> dict[str, Array]:
        """Attention weights whose rows are steps of the target, and the other outputs that the task wants."""
        task, start = self._task, len(self._special.start)
        values = (
            values_of(task.include, task.attention, self._graph.files.sizes, self._inside()) if task.include else []
        )
        values += [LOGPROBS] if task.ablation is not None else []
        found = self._graph.run(self._source, read, self._special.pad, self._ablation(), values)
        return found | {kind: found[kind][:, :, start:] for kind in ("decoder", "cross")}

    def collect(self, outputs: dict[str, Array], ids: Ids, steps: int) -> dict[str, Any]:
        """The other fields of `Explained`, from what `run` returned; `ids` of the target, for `steps` of it."""
        task, files = self._task, self._graph.files
        found: dict[str, Any] = {}
        if task.include:
            inside, start = self._inside(), len(self._special.start)
            found["included"] = collect(
                task.include, task.attention, files.sizes, inside, outputs, len(self._source), start
            )
        if "positions" in task.include:
            found["included"] += vocabulary.positions(files)
        if "structure" in task.include:
            found["structure"] = self._inside().structure(vocabulary.is_turning(files))
        tables = {side: vocabulary.Table(files, side) for side in ("source", "target")}
        if "neighbours" in task.include:
            words = {"source": self._source, "target": (*ids, self._special.eos)[:steps]}
            found["neighbours"] = tuple(
                vocabulary.neighbours(tables[side], side, words[side], self._check) for side in tables
            )
        if "plane" in task.include:
            found["plane"] = vocabulary.plane(tables["target"], (self._special.pad,))
        if task.ablation is not None:
            found["ablated"] = self._ablated(outputs[LOGPROBS][0], ids, steps)
        return found

    def _ablated(self, logprobs: Array, ids: Ids, steps: int) -> Ablated:
        """`logprobs` (R, V) of the ablated model after each token that the decoder reads."""
        rows = logprobs[len(self._special.start) :][:steps].astype(np.float64)
        wanted = (*ids, self._special.eos)[:steps]
        top = min(self._task.search.top_logprobs, rows.shape[1])
        best = np.argsort(-rows, axis=1, kind="stable")[:, :top]
        entropies = -(np.exp(rows) * np.where(np.isfinite(rows), rows, 0)).sum(axis=1)
        own, own_logprobs = self._decode(steps + MORE_TOKENS)
        return Ablated(
            logprobs=tuple(float(row[token]) for row, token in zip(rows, wanted, strict=True)),
            entropies=tuple(entropies.tolist()),
            top_logprobs=tuple(
                tuple((int(token), float(row[token])) for token in tokens)
                for row, tokens in zip(rows, best, strict=True)
            ),
            ids=own,
            own_logprobs=own_logprobs,
            finish_reason="stop" if len(own_logprobs) > len(own) else "length",
        )

    def _decode(self, most: int) -> tuple[Ids, tuple[float, ...]]:
        """Greedily, a pass of the whole graph for each token: what is switched off has no graph with a KV cache."""
        special, search = self._special, self._task.search
        limit = self._graph.files.sizes.max_length - 1 - len(special.start)
        most = min(most, search.options.max_length if isinstance(search, Generate) else limit, limit)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(logprobs) < most:
            self._check()
            read = (special.bos, *special.start, *ids)
            outputs = self._graph.run(self._source, read, special.pad, self._ablation(), [LOGPROBS])
            row = outputs[LOGPROBS][0, -1].astype(np.float64)
            row[[special.pad, special.bos]] = -np.inf
            token = int(row.argmax())
            logprobs.append(float(row[token]))
            if token == special.eos:
                break
            ids.append(token)
        return tuple(ids), tuple(logprobs)

    def _ablation(self) -> Any:
        if self._task.ablation is not None:
            self._inside()
        return self._task.ablation

    def _inside(self) -> Inside:
        if self._graph.inside is None:
            raise NotFoundError("include and ablate need a bundle of this version; export the model again.")
        return self._graph.inside

    def _check(self) -> None:
        if not self._is_wanted():
            raise CancelledError


def passed_bytes(task: Explain, sizes: Sizes, source: int, read: int) -> int:
    """Values that are held beside those that are answered: parts of tables, padded rows, and matrices."""
    tables = 3 * vocabulary.ROWS * sizes.d_model if {"neighbours", "plane"} & {*task.include} else 0
    padded = (
        4 * (sizes.encoder_layers + sizes.decoder_layers) * (source + read + 8) * sizes.d_model if task.include else 0
    )
    matrices = (sizes.encoder_layers + 2 * sizes.decoder_layers) * sizes.d_model * sizes.heads * sizes.head
    return tables + padded + (matrices if "projected" in task.include else 0)
