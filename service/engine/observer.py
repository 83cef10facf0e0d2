"""Callbacks for the engine's events. The base class ignores them; `service.metrics` counts.

Every method may be called from any thread, and must neither block nor raise. Times are in seconds.
"""

from __future__ import annotations


class EngineObserver:
    def queue_full(self) -> None:
        """A submission was refused because the queue was full."""

    def encoded(self, queue_seconds: list[float], source_tokens: int, seconds: float) -> None:
        """Tasks joined a lane: how long each waited; tokens encoded for them and for waiting tasks, and in how long."""

    def stepped(self, rows: int, seconds: float) -> None:
        """One step of a lane, with `rows` hypotheses in it."""

    def first_token(self, seconds: float) -> None:
        """A task got its first token, `seconds` after it was submitted."""

    def generated(self, target_tokens: int, pruned_tokens: int, seconds_per_token: float) -> None:
        """A generation has ended: tokens answered, tokens decoded but not answered, mean decoding time of a token."""

    def cancelled(self, wasted_tokens: int) -> None:
        """A task was cancelled after `wasted_tokens` were decoded."""

    def expired(self) -> None:
        """A task's deadline passed before it was done."""

    def cache_hit(self, kind: str) -> None:
        """A task was not computed: an equal one was cached (`finished`) or is being computed (`in_flight`)."""

    def cache_missed(self) -> None:
        """A shareable task is computed: no answer was cached and no computation could be joined."""
