"""The manifest's format is raised with its fields, and no higher than a bundle's fields need."""

from __future__ import annotations

import hashlib

import pytest

from attendant.export import manifest
from attendant.export.signature import GRAPHS, REQUIRED

# The fields of every format, as a digest. A change of the fields needs a new format, for which a line is added here.
FIELDS = {3: "f6dddcfd4e2599cb", 4: "4114672d8d65663d", 5: "edc153c2001b8bff", 6: "edc153c2001b8bff"}


def fingerprint() -> str:
    said = repr((manifest.MANIFEST_FIELDS, manifest.OPTIONAL, tuple(GRAPHS), REQUIRED))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def test_the_format_is_raised_with_its_fields() -> None:
    """Or an older version would say that it does not know a field, where it must say "update"."""
    assert FIELDS[manifest.FORMAT] == fingerprint(), "raise FORMAT, list the field in SINCE, and add its line here"
    assert max([manifest.OLDEST, *manifest.SINCE.values()]) == manifest.FORMAT == max(FIELDS)


def test_a_bundle_without_the_newest_fields_keeps_the_format_that_older_versions_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifest, "SINCE", {"examples": manifest.OLDEST + 1})
    assert manifest.format_of({"name": "g2p"}) == manifest.OLDEST
    assert manifest.format_of({"name": "g2p", "examples": []}) == manifest.OLDEST + 1
