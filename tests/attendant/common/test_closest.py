from __future__ import annotations

from attendant.common.closest import closest


def test_the_most_similar_name_is_found() -> None:
    assert closest("trian", ["export", "train", "strain"]) == "train"


def test_a_name_like_no_other_has_no_closest() -> None:
    assert closest("xyz", ["train", "export"]) is None
    assert closest("train", []) is None


def test_more_similarity_can_be_asked_for() -> None:
    assert closest("lane", ["lanterns"]) == "lanterns"
    assert closest("lane", ["lanterns"], similarity=0.8) is None
