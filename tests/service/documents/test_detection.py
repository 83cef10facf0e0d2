"""Which language a text is in."""

from __future__ import annotations

import pytest

from attendant.service.documents.detection import detect


@pytest.mark.parametrize("text", ["Das Haus ist klein und rot.", "Das Haus ist klein \ud800 und rot."])
def test_a_text_has_its_language_also_with_a_lone_surrogate(text: str) -> None:
    assert detect(text, ["de", "en"])[0].language == "de"
