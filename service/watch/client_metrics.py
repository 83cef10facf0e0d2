"""What each client takes, by the names that keys have."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prometheus_client import CollectorRegistry, Counter

from attendant.service.client_keys import NO_NAME

SIDES = ("source", "target")
LIMITS = ("requests", "tokens")


class ClientMetrics:
    """Counters by client; every series is there from the start."""

    def __init__(self, registry: CollectorRegistry, names: Collection[str], outcomes: Sequence[str]) -> None:
        requests = Counter(
            "attendant_client_requests",
            "Requests that decode, by the name of their key.",
            ("client", "outcome"),
            registry=registry,
        )
        tokens = Counter(
            "attendant_client_tokens",
            "Tokens of the same requests, as answers tell them.",
            ("client", "side"),
            registry=registry,
        )
        limited = Counter(
            "attendant_client_limited",
            "Requests over a limit of their client.",
            ("client", "limit"),
            registry=registry,
        )
        clients = sorted({NO_NAME, *names})
        self._requests = {(name, each): requests.labels(name, each) for name in clients for each in outcomes}
        self._tokens = {(name, each): tokens.labels(name, each) for name in clients for each in SIDES}
        self._limited = {(name, each): limited.labels(name, each) for name in clients for each in LIMITS}

    def request(self, client: str, outcome: str, source_tokens: int, target_tokens: int) -> None:
        """A request that decodes has ended."""
        self._requests[client, outcome].inc()
        self._tokens[client, "source"].inc(source_tokens)
        self._tokens[client, "target"].inc(target_tokens)

    def limited(self, client: str, limit: str) -> None:
        self._limited[client, limit].inc()
