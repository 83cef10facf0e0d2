"""The bundles under a directory: what counts as one, under which name, and what is known of it unloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from attendant.service.errors import StartError
from attendant.service.models.bundles import LONGEST_NAME, find_bundles
from tests.support.several import write_manifest


def names(directory: Path) -> list[str]:
    return [bundle.name for bundle in find_bundles(directory)]


def test_every_direct_directory_with_a_manifest_is_a_bundle_of_its_name(tmp_path: Path) -> None:
    for name in ("b", "a", "a b", 'a "quoted" \\ é'):
        write_manifest(tmp_path / name)
    (tmp_path / "empty").mkdir()
    write_manifest(tmp_path / "empty" / "deeper")
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert names(tmp_path) == ["a", 'a "quoted" \\ é', "a b", "b"]


def test_what_export_has_not_finished_is_left_out(tmp_path: Path) -> None:
    for name in ("a", ".a.partial", ".a.old"):
        write_manifest(tmp_path / name)
    assert names(tmp_path) == ["a"]


def test_links_are_followed_and_those_that_lead_nowhere_left_out(tmp_path: Path) -> None:
    write_manifest(tmp_path / "elsewhere" / "v2")
    models = tmp_path / "models"
    models.mkdir()
    for name, target in (
        ("current", tmp_path / "elsewhere" / "v2"),
        ("gone", tmp_path / "nothing"),
        ("loop", models / "loop"),
        ("above", models),
    ):
        (models / name).symlink_to(target)
    assert names(models) == ["current"]


@pytest.mark.parametrize("name", ["x" * (LONGEST_NAME + 1), "a\nb", "tab\there", "\x7f", "\udcff"])
def test_a_name_that_is_too_long_or_cannot_be_printed_is_left_out_and_logged(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_manifest(tmp_path / "a")
    write_manifest(tmp_path / name)
    assert names(tmp_path) == ["a"]
    assert f"{name!a} is left out: a model's name has at most 100 characters" in caplog.text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "has no whole number as its format"),
        ('{"format": 99}', "update attendant"),
    ],
)
def test_a_manifest_that_is_refused_is_told_beside_the_others(content: str, sentence: str, tmp_path: Path) -> None:
    write_manifest(tmp_path / "a")
    write_manifest(tmp_path / "b")
    (tmp_path / "b" / "manifest.json").write_text(content, encoding="utf-8")
    good, bad = find_bundles(tmp_path)
    assert good.problem is None
    assert sentence in (bad.problem or "")


def test_hostile_fields_of_a_manifest_are_no_more_than_a_refusal(tmp_path: Path) -> None:
    graphs = dict.fromkeys(("encoder", "step", "full", "merge"), "\x00/x")
    write_manifest(tmp_path / "paths", variants={"fp32": {"graphs": graphs, "tolerance": 1.0}})
    write_manifest(tmp_path / "codes", languages={"source_prefix": [["x"]], "target_prefix": 3})
    codes, paths = find_bundles(tmp_path)
    assert "languages.source_prefix" in (codes.problem or "")
    assert "cannot be read" in (paths.problem or "")


def test_another_manifest_is_another_digest(tmp_path: Path) -> None:
    (first,) = find_bundles(write_manifest(tmp_path / "a").parent)
    assert find_bundles(tmp_path) == [first]
    write_manifest(tmp_path / "a", version="2")
    assert find_bundles(tmp_path)[0].digest != first.digest


def test_the_weights_are_those_of_the_variant_that_is_to_be_loaded(tmp_path: Path) -> None:
    directory = write_manifest(tmp_path / "a", weights=400)
    (directory / "int8").mkdir()
    (directory / "int8" / "weights.bin").write_bytes(b"x" * 100)
    graphs = {name: ("{}/" + name) for name in ("encoder", "step", "full", "merge")}
    variants = {
        variant: {
            "graphs": {name: path.format(variant) for name, path in graphs.items()},
            "tolerance": 1.0,
        }
        for variant in ("fp32", "int8")
    }
    write_manifest(directory, weights=400, variants=variants)
    for precision, size in (("auto", 100), ("int8", 100), ("fp32", 400)):
        assert find_bundles(tmp_path, precision)[0].weight_bytes == size


@pytest.mark.parametrize("make", [True, False])
def test_a_directory_without_a_bundle_is_a_sentence(make: bool, tmp_path: Path) -> None:
    directory = tmp_path / "models"
    if make:
        directory.mkdir()
    sentence = "there is no bundle in .+; --models takes a directory" if make else "cannot be read: No such file"
    with pytest.raises(StartError, match=sentence):
        find_bundles(directory)
