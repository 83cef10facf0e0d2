"""Weights have the digests of the manifest when an engine is loaded; those that it does not load are not read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attendant.export import bundle as bundles
from attendant.export.bundle import BundleError, check_weights, read_bundle
from attendant.service.engine.engine import Engine, EngineSettings
from tests.support.engines import make_bundle
from tests.support.small_models import make_model

INT8 = EngineSettings(provider="cpu", precision="int8", threads=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle") / "small"
    make_bundle(make_model(seed=3), directory, ("fp32", "int8"))
    return directory


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """Whose files a test may change."""
    return Path(shutil.copytree(made, tmp_path / "small"))


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [change, cut, lambda path: path.write_bytes(b"")])
def test_an_engine_refuses_changed_weights_whatever_else_fails_on_them(directory: Path, damage: object) -> None:
    damage(directory / "int8" / "weights.bin")  # type: ignore[operator]
    with pytest.raises(BundleError, match=r"int8/weights\.bin has not the digest"):
        Engine(read_bundle(directory, weights=False), INT8)


def test_the_weights_of_other_variants_are_not_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    digest = bundles.digest

    def noted(path: Path) -> str:
        read.append(path.relative_to(directory))
        return digest(path)

    monkeypatch.setattr(bundles, "digest", noted)
    Engine(read_bundle(directory, weights=False), INT8).close()
    weights = [path for path in read if path.suffix == ".bin"]
    assert weights == [Path("int8/weights.bin")]
    assert Path("fp32/step.onnx") in read  # graphs are code: all are checked before anything is loaded


def test_a_bundle_that_was_read_whole_is_not_read_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_bundle(made)
    monkeypatch.setattr(bundles, "digest", lambda _: pytest.fail("read again"))
    Engine(found, INT8).close()


def test_a_missing_file_is_found_at_once(directory: Path) -> None:
    (directory / "fp32" / "weights.bin").unlink()
    with pytest.raises(BundleError, match=r"weights\.bin is missing"):
        read_bundle(directory, weights=False)


def test_a_graph_that_was_changed_is_found_before_weights_are(directory: Path) -> None:
    change(directory / "int8" / "step.onnx")
    with pytest.raises(BundleError, match=r"step\.onnx has not the digest"):
        read_bundle(directory, weights=False)


def test_the_weights_of_one_variant_can_be_checked_alone(directory: Path) -> None:
    change(directory / "fp32" / "weights.bin")
    found = read_bundle(directory, weights=False)
    check_weights(found, "int8")
    with pytest.raises(BundleError, match=r"fp32/weights\.bin has not the digest"):
        check_weights(found, "fp32")
