"""The bundles under a directory: what is known of each before it is loaded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendant.common.regular import read_regular
from attendant.export.bundle import MANIFEST, BundleError, read_manifest
from attendant.service.errors import StartError
from attendant.service.text.glossary import digest_of
from attendant.service.text.languages import Languages, read_languages

LONGEST_NAME = 100  # characters of a model's name

log = logging.getLogger("attendant")


@dataclass(frozen=True, kw_only=True)
class FoundBundle:
    name: str  # the directory's name; requests select the model by it
    directory: Path
    digest: str = ""  # SHA-256 of the manifest, which lists the digest of every file, and of the glossaries beside it
    problem: str | None = None  # why it cannot be served, as a sentence
    sizes: Mapping[str, int] = field(default_factory=dict)
    languages: Languages = field(default_factory=Languages)
    weight_bytes: int = 0  # on disk, of the variant that is to be loaded


def find_bundles(directory: Path, precision: str = "auto") -> list[FoundBundle]:
    """Every direct subdirectory with a manifest, by name; StartError if there is none.

    Hidden directories are left out: `attendant export` writes there until a bundle is whole.
    """
    try:
        entries = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise StartError(f"{directory} cannot be read: {error.strerror}; see --models.") from None
    found = [_read(path, precision) for path in entries if _named_well(path) and _has_manifest(path)]
    if not found:
        raise StartError(
            f"there is no bundle in {directory}; --models takes a directory with a directory for each bundle."
        )
    return found


def _named_well(path: Path) -> bool:
    """Whether the name can be a metric label and part of an error message; logs an error if not."""
    if len(path.name) <= LONGEST_NAME and path.name.isprintable():
        return True
    log.error(
        "%s is left out: a model's name has at most %d characters, all of them printable",
        ascii(path.name),
        LONGEST_NAME,
    )
    return False


def _has_manifest(path: Path) -> bool:
    """Whether this is a directory with a manifest; also if permission is denied, which is reported later."""
    if not path.is_dir():
        return False
    try:
        (path / MANIFEST).stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _read(directory: Path, precision: str) -> FoundBundle:
    try:
        manifest = read_manifest(directory)
        digest = hashlib.sha256(read_regular(directory / MANIFEST)).hexdigest() + digest_of(directory)
        weight_bytes = _weight_bytes(directory, manifest, precision)
        sizes, longest = manifest["sizes"], min(manifest["limits"].values()) - 2
        languages = read_languages(manifest.get("languages", {}), sizes["source_vocab"], sizes["target_vocab"], longest)
    except (BundleError, StartError, OSError, ValueError) as error:
        refused = isinstance(error, BundleError | StartError)
        sentence = str(error) if refused else f"{directory} cannot be read: {error}."
        return FoundBundle(name=directory.name, directory=directory, problem=sentence)
    return FoundBundle(
        name=directory.name,
        directory=directory,
        digest=digest,
        sizes=sizes,
        languages=languages,
        weight_bytes=weight_bytes,
    )


def bundle_weight_bytes(directory: Path, precision: str) -> int:
    """Bytes on disk of the variant that a load would take, before it does."""
    return _weight_bytes(directory, read_manifest(directory), precision)


def _weight_bytes(directory: Path, manifest: Mapping[str, Any], precision: str) -> int:
    """Bytes of the variant `precision`, else of int8, of fp32, or of the first one."""
    variants = manifest["variants"]
    name = next((name for name in (precision, "int8", "fp32") if name in variants), next(iter(variants)))
    folders = {(directory / path).parent for path in variants[name]["graphs"].values()}
    return sum(path.stat().st_size for folder in folders for path in folder.iterdir())
