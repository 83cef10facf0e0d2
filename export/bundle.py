"""The bundle: the one thing that passes from export to service. Standard library only.

    manifest.json               what the model is, its variants, a digest of every file, the certificate
    tokenizers/source.json      and target.json
    VARIANT/encoder.onnx        and step.onnx, full.onnx, merge.onnx, as export/signature.py describes them;
                                kernel_encoder.onnx and kernel_step.onnx, of our own operators, for the CPU
    VARIANT/weights.bin         the weights that they share

`read_bundle` trusts nothing: every file is there, is listed and has its digest; no path leaves the directory; every
graph is an ONNX file whose weights are in the bundle; every field of the manifest has its type. The service, which
loads one variant, has the digests of weights checked by `check_weights`, of that variant alone, while it loads.

    BundleError          a sentence that names the file
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from attendant.common.regular import open_regular
from attendant.export import onnx_file
from attendant.export.manifest import MANIFEST, BundleError, format_of, read_manifest
from attendant.export.onnx_edit import OnnxGraph
from attendant.export.signature import LEAST_WIDTH, Sizes, Value, inputs, outputs, padded_width

__all__ = [
    "LEAST_WIDTH",
    "MANIFEST",
    "Bundle",
    "BundleError",
    "OnnxGraph",
    "Sizes",
    "Value",
    "Variant",
    "check_unchanged",
    "check_weights",
    "digest_of",
    "external_files",
    "inputs",
    "outputs",
    "padded_width",
    "read_bundle",
    "read_manifest",
    "stored_in",
    "stored_weights",
    "write_bundle",
]


@dataclass(frozen=True)
class Variant:
    """One precision of the model: its graphs and how far its log-probabilities may be from torch's."""

    name: str
    graphs: dict[str, Path]
    tolerance: float
    measured: dict[str, float] = field(default_factory=dict)  # drift and rates on held-out inputs, at export


@dataclass(frozen=True)
class Bundle:
    directory: Path
    name: str
    sizes: Sizes
    special_ids: dict[str, int]
    limits: dict[str, int]
    tokenizers: dict[str, Path]
    variants: dict[str, Variant]
    certificate: dict[str, Any]
    produced_by: dict[str, str]
    generation: dict[str, Any] = field(default_factory=dict)  # an imported model's defaults for requests
    languages: dict[str, Any] = field(default_factory=dict)  # and its language codes, as ids
    alignment: dict[str, Any] = field(default_factory=dict)  # the cross-attention that aligns source and target best
    files: dict[str, str] = field(default_factory=dict)  # every file's digest, by its path in the directory
    examples: tuple[str, ...] | None = None  # sources to try; None: those of the certificate
    description: str | None = None  # a sentence on what the model does
    weights_checked: bool = True  # else the digests of weights are for `check_weights`


def read_bundle(directory: Path, weights: bool = True) -> Bundle:
    """The bundle in a directory, or a BundleError that says what is wrong with it.

    Without `weights`, their digests are left to `check_weights`.
    """
    manifest = read_manifest(directory)
    variants_of = manifest["variants"].values()
    _check_files(directory, manifest["files"], () if weights else _weight_files(variants_of, manifest["files"]))
    used = [*manifest["tokenizers"].values()]
    for variant in manifest["variants"].values():
        used += variant["graphs"].values()
    for name in used:
        if name not in manifest["files"]:
            raise BundleError(f"{directory / MANIFEST} uses {name}, which is not among its files.")
    variants = {}
    for name, variant in manifest["variants"].items():
        graphs = {graph: directory / path for graph, path in variant["graphs"].items()}
        for path in graphs.values():
            _check_graph(path, directory, manifest["files"])
        variants[name] = Variant(name, graphs, variant["tolerance"], variant.get("measured", {}))
    return Bundle(
        directory=directory,
        name=manifest["name"],
        sizes=Sizes(**manifest["sizes"], head_size=manifest.get("head_size", 0)),
        special_ids=manifest["special_ids"],
        limits=manifest["limits"],
        tokenizers={side: directory / path for side, path in manifest["tokenizers"].items()},
        variants=variants,
        certificate=manifest["certificate"],
        produced_by=manifest["produced_by"],
        generation=manifest.get("generation", {}),
        languages=manifest.get("languages", {}),
        alignment=manifest.get("alignment", {}),
        files=manifest["files"],
        examples=tuple(manifest["examples"]) if "examples" in manifest else None,
        description=manifest.get("description"),
        weights_checked=weights,
    )


def check_weights(bundle: Bundle, variant: str) -> None:
    """BundleError if a variant's weights have not the digest that the manifest lists."""
    graphs = {name: name_in(bundle, path) for name, path in bundle.variants[variant].graphs.items()}
    for name in _weight_files([{"graphs": graphs}], bundle.files):
        _check_digest(bundle.directory / name, bundle.files[name])


def _weight_files(variants: Iterable[dict[str, Any]], listed: Collection[str]) -> set[str]:
    """The files that lie beside some variants' graphs."""
    graphs = {path for variant in variants for path in variant["graphs"].values()}
    folders = {PurePosixPath(path).parent for path in graphs}
    return {name for name in listed if PurePosixPath(name).parent in folders and name not in graphs}


def check_unchanged(bundle: Bundle) -> None:
    """BundleError if the directory holds another bundle than the one that was read: files opened since may be mixed."""
    if bundle.files and read_manifest(bundle.directory)["files"] != bundle.files:
        raise BundleError(f"{bundle.directory} was replaced while it was being loaded; load it again.")


def digest_of(bundle: Bundle, path: Path) -> str | None:
    """The digest that the manifest lists for a file; None for one that is not of the bundle."""
    return bundle.files.get(name_in(bundle, path))


def name_in(bundle: Bundle, path: Path) -> str:
    """A file's name in the manifest."""
    return path.relative_to(bundle.directory).as_posix()


def write_bundle(
    directory: Path,
    fill: Callable[[Path], dict[str, Any]],
    prove: Callable[[Bundle], Collection[str]] = lambda _: (),
    force: bool = False,
) -> None:
    """Fill a temporary directory beside, and rename it to `directory` only if it reads as a bundle and `prove` passes.

    `fill` writes every file but the manifest and returns the manifest without `format` and `files`. `prove` returns the
    variants to leave out, or raises.
    """
    if directory.name in ("", ".."):
        raise BundleError(f"{directory} has no name of its own to write a bundle under; name a directory in it.")
    beside, old = directory.with_name(f".{directory.name}.partial"), directory.with_name(f".{directory.name}.old")
    _put_back(old, directory)
    if directory.exists() and not force:
        raise BundleError(f"{directory} is there already; --force replaces it.")
    if directory.exists() and not _is_replaceable(directory):
        raise BundleError(f"{directory} is no bundle, and --force replaces bundles only; name another directory.")
    for leftover in (beside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        content = fill(beside)
        _write_manifest(beside, content)
        if left_out := prove(read_bundle(beside)):
            for variant in left_out:
                shutil.rmtree(beside / variant)
                del content["variants"][variant]
            _write_manifest(beside, content)
            read_bundle(beside)
        if directory.exists():
            directory.rename(old)
        beside.rename(directory)
    finally:
        _put_back(old, directory)
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write_manifest(directory: Path, content: dict[str, Any]) -> None:
    (directory / MANIFEST).unlink(missing_ok=True)
    files = {name: digest(directory / name) for name in _files_in(directory)}
    text = json.dumps(
        {"format": format_of(content), **content, "files": files}, indent=1, ensure_ascii=False, allow_nan=False
    )
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _put_back(old: Path, directory: Path) -> None:
    """Undo an interrupted replacement: rename the old bundle back if nothing has its name."""
    if old.exists() and not directory.exists():
        old.rename(directory)


def _is_replaceable(path: Path) -> bool:
    """Whether it is an empty directory, or a bundle, perhaps damaged, without files that its manifest does not list."""
    if not path.is_dir():
        return False
    held = _files_in(path)
    if not held:
        return not any(path.iterdir())
    try:
        listed = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        return set(held) <= {MANIFEST, *listed}
    except (OSError, ValueError, TypeError, KeyError):
        return False


def stored_weights(graph: Path) -> dict[str, onnx_file.Stored]:
    """Where a graph's weights lie in the files beside it, by name."""
    try:
        return onnx_file.stored_weights(graph.read_bytes())
    except onnx_file.NotOnnxError as error:
        raise BundleError(f"{graph} is not an ONNX model: {error}.") from None


def stored_in(graph: bytes) -> dict[str, onnx_file.Stored]:
    """Where the weights lie of a graph that was read already."""
    return onnx_file.stored_weights(graph)


def external_files(graph: Path) -> set[str]:
    """The files beside a graph that hold its weights, by name."""
    return onnx_file.external_locations(graph.read_bytes())


def digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_files(directory: Path, listed: dict[str, str], later: Collection[str]) -> None:
    """Every listed file is there, inside, and has its digest, except those of `later`; nothing else is there."""
    for name in listed:
        _check_path(name, directory)
    present = set(_files_in(directory)) - {MANIFEST}
    for name in sorted(present - set(listed)):
        raise BundleError(f"{directory / name} is not listed in {MANIFEST}; take it out of the bundle.")
    for name, expected in sorted(listed.items()):
        path = directory / name
        if name not in present:
            raise BundleError(f"{path} is missing; {MANIFEST} lists it.")
        if name not in later:
            _check_digest(path, expected)


def _check_digest(path: Path, expected: str) -> None:
    try:
        found = digest(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from None
    if found != expected:
        raise BundleError(f"{path} has not the digest that {MANIFEST} lists; the file was changed or cut short.")


def _check_path(name: str, directory: Path) -> None:
    parts = PurePosixPath(name).parts
    outside = not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name
    if outside or str(PurePosixPath(name)) != name:
        raise BundleError(f"{directory / MANIFEST} lists {name!r}, which is no plain path inside the bundle.")


def _files_in(directory: Path) -> list[str]:
    """Paths of all files, relative; a link is refused, since it may lead outside."""
    found = []
    for folder, folders, names in os.walk(directory):
        for name in [*folders, *names]:
            path = Path(folder) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise BundleError(f"{path} is a link or a special file; a bundle holds plain files only.")
        found += [(Path(folder) / name).relative_to(directory).as_posix() for name in names]
    return sorted(found)


def _check_graph(path: Path, directory: Path, listed: dict[str, str]) -> None:
    """The file is an ONNX model, and the weights that it keeps elsewhere are files of the bundle."""
    try:
        locations = onnx_file.external_locations(path.read_bytes())
    except onnx_file.NotOnnxError as error:
        raise BundleError(f"{path} is not a whole ONNX model: {error}.") from None
    for location in locations:
        name = (path.parent.relative_to(directory) / location).as_posix()
        if ".." in PurePosixPath(location).parts or location.startswith("/") or name not in listed:
            raise BundleError(f"{path} refers to {location!r} for its weights, which is not a file of the bundle.")
