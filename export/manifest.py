"""manifest.json of a bundle: its fields with their types, and the formats that this version reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attendant.common.regular import read_regular
from attendant.export.signature import GRAPHS, REQUIRED, Sizes

OLDEST, FORMAT = 6, 6  # formats that this version reads
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 64 * 2**20  # bytes


class BundleError(Exception):
    exit_code = 1


# Field: its type, or the fields inside it; (dict, X) is a table of any names, (list, X) a list.
MANIFEST_FIELDS: dict[str, Any] = {
    "format": int,
    "name": str,
    "sizes": dict.fromkeys((name for name in Sizes.__dataclass_fields__ if name != "head_size"), int),
    "head_size": int,
    "special_ids": dict.fromkeys(("pad", "unk", "bos", "eos"), int),
    "limits": dict.fromkeys(("max_source_length", "max_target_length"), int),
    "tokenizers": {"source": str, "target": str},
    "variants": (
        dict,
        {
            "graphs": (dict, str),
            "tolerance": float,
            "measured": (dict, float),
        },
    ),
    "files": (dict, str),
    "certificate": dict,
    "produced_by": (dict, str),
    "generation": dict,
    "languages": dict,
    "alignment": {"layer": int, "heads": (list, int), "method": str, "agreement": float},
    "examples": (list, str),
    "description": str,
}
# Fields that a manifest may lack.
OPTIONAL = ("measured", "generation", "languages", "alignment", "examples", "head_size", "description")
# Fields that came later than OLDEST, by the format that they came with. A new one raises FORMAT: readers of before then
# say "update", where they would not know the field.
SINCE: dict[str, int] = {}


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest with every field of its type; the files it names are not looked at."""
    path = directory / MANIFEST
    if not directory.is_dir():
        raise BundleError(f"{directory} is not a directory; a bundle is what `attendant export --out` writes.")
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise BundleError(f"{path} is larger than {LARGEST_MANIFEST // 2**20} MiB; it is not a bundle's manifest.")
        manifest = json.loads(read_regular(path).decode(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise BundleError(f"{path} is missing; a bundle is what `attendant export --out` writes.") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise BundleError(f"{path} has no whole number as its format; it is not a bundle's manifest.")
    if not OLDEST <= manifest["format"] <= FORMAT:
        hint = "update attendant" if manifest["format"] > FORMAT else "export the model again with `attendant export`"
        known = f"{OLDEST} to {FORMAT}" if OLDEST < FORMAT else str(FORMAT)
        raise BundleError(f"{path} has format {manifest['format']}, and this version reads {known}; {hint}.")
    _check_fields(manifest, MANIFEST_FIELDS, "", path)
    if format_of(manifest) > manifest["format"]:
        raise BundleError(f"{path} has format {manifest['format']}, and fields of {format_of(manifest)}.")
    for name, variant in manifest["variants"].items():
        _check_graph_names(name, variant["graphs"], path)
    if not manifest["variants"]:
        raise BundleError(f"{path} lists no variant.")
    return manifest


def format_of(manifest: dict[str, Any]) -> int:
    """The lowest format that has all its fields, so that older versions read what they can."""
    return max([OLDEST, *(number for name, number in SINCE.items() if name in manifest)])


def _check_graph_names(variant: str, graphs: dict[str, str], path: Path) -> None:
    for name in REQUIRED:
        if name not in graphs:
            raise BundleError(f"{path}: variant {variant} lacks the graph {name!r}.")
    for name in graphs:
        if name not in GRAPHS:
            raise BundleError(f"{path}: variant {variant} has a graph {name!r}, which format {FORMAT} does not know.")


def _check_fields(value: Any, fields: Any, where: str, path: Path) -> None:
    """The value has the type that MANIFEST_FIELDS asks for, all the way down."""
    at = where or "the manifest"
    if isinstance(fields, dict):
        _check_type(value, dict, at, path)
        for name in fields:
            if name not in value and name not in OPTIONAL:
                raise BundleError(f"{path}: {at} lacks the field {name!r}.")
        for name, inner in value.items():
            if name not in fields:
                raise BundleError(f"{path}: {at} has a field {name!r}, which format {FORMAT} does not know.")
            _check_fields(inner, fields[name], f"{where}.{name}".lstrip("."), path)
    elif isinstance(fields, tuple):  # every value is of one kind
        _check_type(value, fields[0], at, path)
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_fields(inner, fields[1], f"{where}.{name}".lstrip("."), path)
    else:
        _check_type(value, fields, at, path)


def _check_type(value: Any, kind: type, where: str, path: Path) -> None:
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or isinstance(value, bool):
        names = {int: "a whole number", float: "a number", str: "a text", dict: "a table", list: "a list"}
        raise BundleError(f"{path}: {where} is {value!r:.60}, not {names[kind]}.")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
