"""What a load needs is told before it begins."""

from __future__ import annotations

import logging

import pytest

from attendant.export.bundle import read_bundle
from attendant.service.memory import MemoryAccount
from attendant.service.models.needs import note_need
from attendant.service.settings import DEFAULT_BUNDLE


@pytest.mark.parametrize(("limit", "level"), [(10**9, "INFO"), (10**6, "WARNING")])
def test_the_log_has_what_is_needed_and_what_is_left(limit: int, level: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "attendant"):
        needed = note_need(read_bundle(DEFAULT_BUNDLE), "int8", "g2p", MemoryAccount(limit))
    (record,) = caplog.records
    assert record.levelname == level
    assert f"loading g2p: about {needed // 10**6} MB" in record.getMessage()
    assert f"of {limit // 10**6} MB" in record.getMessage()
    assert needed > 10**6
