"""Planning: deadlines of requests."""

from __future__ import annotations

import pytest

from attendant.service.requests.planning import deadline
from attendant.service.settings import Settings


@pytest.mark.parametrize(
    ("asked", "settings", "expected"),
    [
        (None, {}, 160.0),
        (None, {"timeout_ms": 0}, None),
        (5000, {}, 105.0),
        (10**7, {}, 700.0),
        (10**7, {"max_timeout_ms": 2000}, 102.0),
        (10**7, {"max_timeout_ms": 0}, 10_100.0),
        (None, {"max_timeout_ms": 2000}, 160.0),
    ],
)
def test_a_clients_deadline_is_at_most_what_the_settings_allow(
    asked: int | None, settings: dict[str, int], expected: float | None
) -> None:
    assert deadline(asked, 100.0, Settings(**settings)) == expected  # type: ignore[arg-type]
