"""Names and revisions become parts of paths and of requests."""

from __future__ import annotations

import pytest

from attendant.hub.errors import HubUsageError
from attendant.hub.names import check_name, check_revision, is_name, short_name


@pytest.mark.parametrize("name", ["Helsinki-NLP/opus-mt-en-de", "facebook/m2m100_418M", "a/b", "google/t5-v1.1_small"])
def test_a_name_is_owner_and_name(name: str) -> None:
    assert check_name(name) == name
    assert short_name(name) == name.split("/")[1]


@pytest.mark.parametrize(
    "name",
    ["t5-small", "", "a/b/c", "/etc/passwd", "../x", "a/..", "a/b..c", "a--b/c", "a/-b", "a/b c", "ä/b", "a/" * 99],
)
def test_anything_else_is_none(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(HubUsageError, match="is no name of a model on Hugging Face, which is OWNER/NAME") as caught:
        check_name(name)
    assert caught.value.exit_code == 2


def test_a_revision_is_a_text_without_spaces() -> None:
    assert check_revision("refs/pr/1") == "refs/pr/1"
    for bad in ("", "a b", "a\n", "x" * 999):
        with pytest.raises(HubUsageError, match="--revision takes a branch, a tag or a commit"):
            check_revision(bad)
