"""A bundle is believed only if everything about it holds."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from attendant.export import bundle, manifest, onnx_file
from attendant.export.bundle import BundleError, read_bundle, stored_weights, write_bundle
from attendant.export.graphs.builder import WeightStore
from attendant.export.graphs.graphs import sizes_of
from attendant.export.graphs.variants import build_variant_graph
from attendant.export.graphs.weights import arrays_of
from attendant.export.make.convert import written_sizes
from attendant.export.signature import GRAPHS
from tests.support.exporting import edit_manifest as edit
from tests.support.small_models import make_model


def fill(directory: Path) -> dict[str, Any]:
    """A whole bundle of a small model, but for a true certificate."""
    model, store = make_model(), WeightStore()
    (directory / "fp32").mkdir()
    (directory / "tokenizers").mkdir()
    for side in ("source", "target"):
        (directory / "tokenizers" / f"{side}.json").write_text("{}", encoding="utf-8")
    for graph in GRAPHS:
        proto = build_variant_graph("fp32", graph, model.config, arrays_of(model), store, "weights.bin")
        (directory / "fp32" / f"{graph}.onnx").write_bytes(proto.SerializeToString())
    store.write(directory / "fp32" / "weights.bin")
    return {
        "name": "small",
        **written_sizes(model.config),
        "special_ids": {"pad": 0, "unk": 1, "bos": 2, "eos": 3},
        "limits": {"max_source_length": 63, "max_target_length": 64},
        "tokenizers": {"source": "tokenizers/source.json", "target": "tokenizers/target.json"},
        "variants": {"fp32": {"graphs": {g: f"fp32/{g}.onnx" for g in GRAPHS}, "tolerance": 1e-4}},
        "certificate": {},
        "produced_by": {"attendant": "test"},
    }


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles") / "good"
    write_bundle(directory, fill)
    return directory


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_good_bundle_reads(good: Path) -> None:
    found = read_bundle(good)
    assert found.sizes == sizes_of(make_model().config)
    assert found.variants["fp32"].graphs["step"] == good / "fp32" / "step.onnx"


def test_stored_weights_are_where_the_graph_says(good: Path) -> None:
    path = good / "fp32" / "step.onnx"
    wanted = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}
    found = stored_weights(path)
    assert found
    for name, stored in found.items():
        array = np.memmap(path.parent / stored.location, stored.kind, "r", stored.offset, stored.shape)
        np.testing.assert_array_equal(array, wanted[name])


def test_an_offset_that_is_no_number_is_refused_by_name(good: Path, tmp_path: Path) -> None:
    model = onnx.load(str(good / "fp32" / "step.onnx"), load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    for entry in tensor.external_data:
        entry.value = "abc" if entry.key == "offset" else entry.value
    (tmp_path / "step.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=r"step\.onnx is not an ONNX model: the offset of .* is 'abc'"):
        stored_weights(tmp_path / "step.onnx")


def test_graphs_share_their_weights(good: Path) -> None:
    weights = (good / "fp32" / "weights.bin").stat().st_size
    parameters = sum(array.nbytes for array in arrays_of(make_model()).values())
    assert weights <= 1.5 * parameters  # blocks of 32 columns may be padded
    for graph in GRAPHS:
        data = (good / "fp32" / f"{graph}.onnx").read_bytes()
        assert onnx_file.external_locations(data) == (set() if graph == "merge" else {"weights.bin"})


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda d: (d / "fp32/weights.bin").write_bytes(b"x"), r"weights\.bin has not the digest"),
        (lambda d: (d / "fp32/step.onnx").unlink(), r"step\.onnx is missing"),
        (lambda d: (d / "extra").write_text("x", encoding="utf-8"), r"extra is not listed"),
        (lambda d: (d / "link").symlink_to("/etc/passwd"), r"link is a link"),
        (lambda d: (d / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda d: (d / "manifest.json").write_text("{", encoding="utf-8"), r"manifest\.json cannot be read as JSON"),
        (lambda d: (d / "manifest.json").write_bytes(b"\xff"), r"manifest\.json cannot be read as JSON"),
        (
            lambda d: edit(d, lambda m: m.update(format=99)),
            r"has format 99, and this version reads 6; update attendant",
        ),
        (
            lambda d: edit(d, lambda m: m.update(format=2)),
            r"has format 2, .* export the model again with `attendant exp",
        ),
        (lambda d: edit(d, lambda m: m.update(format="1")), r"no whole number as its format"),
        (lambda d: edit(d, lambda m: m.update(name=3)), r"name is 3, not a text"),
        (lambda d: edit(d, lambda m: m["sizes"].update(heads="8")), r"sizes\.heads is '8', not a whole number"),
        (lambda d: edit(d, lambda m: m["sizes"].update(heads=True)), r"sizes\.heads is True, not a whole number"),
        (lambda d: edit(d, lambda m: m["sizes"].pop("heads")), r"sizes lacks the field 'heads'"),
        (lambda d: edit(d, lambda m: m.update(colour="red")), r"has a field 'colour'"),
        (lambda d: edit(d, lambda m: m["variants"].clear()), r"lists no variant"),
        (lambda d: edit(d, lambda m: m["variants"]["fp32"].update(measured={"drift": "low"})), r"drift is 'low', not"),
        (lambda d: edit(d, lambda m: m["files"].update({"../out": "0"})), r"'\.\./out', which is no plain path"),
        (lambda d: edit(d, lambda m: m["files"].update({"/etc/passwd": "0"})), r"no plain path inside"),
        (lambda d: edit(d, lambda m: m["tokenizers"].update(source="nowhere")), r"uses nowhere, which is not among"),
    ],
)
def test_a_damaged_bundle_is_refused_with_a_sentence_that_names_the_file(
    damage: Callable[[Path], object], sentence: str, copy: Path
) -> None:
    damage(copy)
    with pytest.raises(BundleError, match=sentence):
        read_bundle(copy)


def relist(directory: Path, name: str) -> None:
    """Make the manifest agree with a changed file, as one who tampers would."""
    edit(directory, lambda m: m["files"].update({name: bundle.digest(directory / name)}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda data: data[: len(data) // 2], r"step\.onnx is not a whole ONNX model"),
        (lambda _: b"GIF89a, and so on", r"step\.onnx is not a whole ONNX model"),
        (lambda _: b"", r"step\.onnx is not a whole ONNX model"),
        (lambda data: data.replace(b"weights.bin", b"/etc/passwd"), r"refers to '/etc/passwd' for its weights"),
        (lambda data: data.replace(b"weights.bin", b"../elsewher"), r"refers to '\.\./elsewher'"),
    ],
)
def test_a_graph_that_is_none_or_reaches_outside_is_refused(
    content: Callable[[bytes], bytes], sentence: str, copy: Path
) -> None:
    path = copy / "fp32" / "step.onnx"
    path.write_bytes(content(path.read_bytes()))
    relist(copy, "fp32/step.onnx")
    with pytest.raises(BundleError, match=sentence):
        read_bundle(copy)


def test_a_thousand_random_corruptions_are_refused_cleanly_or_harmless(good: Path, copy: Path) -> None:
    rng = random.Random(0)
    names = [*bundle.read_manifest(good)["files"], "manifest.json"]
    sentences = []
    for _ in range(1000):
        name = rng.choice([*names, *["manifest.json"] * len(names)])
        original = (good / name).read_bytes()
        (copy / name).write_bytes(corrupt(original, rng))
        if name.endswith(".onnx") and rng.random() < 0.5:
            relist(copy, name)
        try:
            read_bundle(copy)
        except BundleError as error:
            sentences.append(str(error))
        (copy / name).write_bytes(original)
        shutil.copyfile(good / "manifest.json", copy / "manifest.json")
    assert len(sentences) > 800
    assert all(str(copy) in sentence for sentence in sentences)


def corrupt(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:]
    return data[:at] + data[at + rng.randint(1, 16) :]


@pytest.mark.parametrize("name", ["config.json", "manifest.json", ""])
def test_force_replaces_nothing_but_a_bundle(name: str, tmp_path: Path) -> None:
    """A run has a config.json, a bulk run's output a manifest.json of another kind; and it may be a file."""
    place = tmp_path / "place"
    kept = place / name if name else place
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("{}", encoding="utf-8")
    with pytest.raises(BundleError, match="place is no bundle, and --force replaces bundles only"):
        write_bundle(place, fill, force=True)
    assert kept.read_text(encoding="utf-8") == "{}"


def test_force_keeps_a_bundle_that_something_was_added_to(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BundleError, match="--force replaces bundles only"):
        write_bundle(copy, fill, force=True)
    assert (copy / "notes.txt").exists()


def test_an_existing_bundle_is_replaced_only_by_force_and_only_by_a_whole_one(copy: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    with pytest.raises(BundleError, match="is there already; --force replaces it"):
        write_bundle(copy, fill)

    def fail(_: Path) -> dict[str, Any]:
        raise RuntimeError("verification failed")

    with pytest.raises(RuntimeError, match="verification failed"):
        write_bundle(copy, fail, force=True)
    assert (copy / "manifest.json").read_bytes() == before
    write_bundle(copy, fill, force=True)
    read_bundle(copy)
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_bundle_that_cannot_take_its_name_leaves_the_old_one_in_place(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rename = (copy / "manifest.json").read_bytes(), Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise PermissionError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        write_bundle(copy, fill, force=True)
    assert (copy / "manifest.json").read_bytes() == before
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_bundle_that_a_killed_export_had_put_aside_is_put_back(copy: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    copy.rename(copy.with_name(f".{copy.name}.old"))
    copy.with_name(f".{copy.name}.partial").mkdir()

    def fail(_: Path) -> dict[str, Any]:
        raise RuntimeError("verification failed")

    with pytest.raises(RuntimeError, match="verification failed"):
        write_bundle(copy, fail, force=True)
    assert (copy / "manifest.json").read_bytes() == before
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


@pytest.mark.parametrize("place", [".", "..", "empty/.."])
def test_a_directory_without_a_name_of_its_own_is_refused_in_a_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if place == "." else tmp_path)
    with pytest.raises(BundleError, match="has no name of its own to write a bundle under"):
        write_bundle(Path(place), fill, force=True)


def test_the_bundle_and_what_it_imports_is_standard_library_only() -> None:
    heavy = "{'numpy', 'onnx', 'torch', 'onnxruntime'} & set(sys.modules)"
    code = f"import sys, export.bundle; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_bundle_with_fields_of_a_newer_format_than_its_own_is_refused(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "SINCE", {"examples": manifest.OLDEST + 1})
    edit(copy, lambda m: m.update(examples=[]))
    with pytest.raises(BundleError, match=f"has format {manifest.OLDEST}, and fields of {manifest.OLDEST + 1}"):
        read_bundle(copy)
