"""What a bundle is and where it would run, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from attendant.cli import Parser
from attendant.common import hardware
from attendant.export.bundle import Bundle, BundleError, Variant
from attendant.service.commands import info as room
from attendant.service.commands.info import (
    describe_bundle,
    describe_kernels,
    describe_lanes,
    describe_machine,
    info,
    text_of,
)
from attendant.service.engine import resources
from attendant.service.errors import StartError
from tests.support.fake_engine import make_bundle

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """Two variants whose graphs and weights have known sizes."""
    made = make_bundle(tmp_path / "bundle")
    variants = {}
    for name, size in (("fp32", 4000), ("int8", 1000)):
        folder = made.directory / name
        folder.mkdir()
        graphs = {graph: folder / f"{graph}.onnx" for graph in ("encoder", "step", "full")}
        for path in graphs.values():
            path.write_bytes(b"x" * 100)
        (folder / "weights.bin").write_bytes(b"x" * size)
        variants[name] = Variant(name, graphs, 1e-4, {})
    certificate = {"torch": "2.0", "beam_size": 4, "samples": [{}, {}]}
    return dataclasses.replace(made, variants=variants, certificate=certificate)


@pytest.fixture
def read(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were read, each of them giving the bundle."""
    asked: list[Path] = []
    monkeypatch.setattr(room, "read_bundle", lambda path: asked.append(path) or bundle)
    return asked


def with_choices(bundle: Bundle, machine: dict[str, Any]) -> dict[str, Any]:
    return {**machine, **describe_lanes(bundle, machine), **describe_kernels(bundle, machine)}


def test_a_variant_weighs_its_graphs_and_its_weights(bundle: Bundle) -> None:
    variants = describe_bundle(bundle)["variants"]
    assert variants["fp32"]["bytes"] == 4300
    assert variants["int8"]["bytes"] == 1300


def test_the_whole_bundle_weighs_all_its_files(bundle: Bundle) -> None:
    tokenizers = sum(path.stat().st_size for path in bundle.tokenizers.values())
    assert describe_bundle(bundle)["bytes"] == 4300 + 1300 + tokenizers


def test_the_samples_of_the_certificate_are_counted(bundle: Bundle) -> None:
    assert describe_bundle(bundle)["certificate"] == {"samples": 2, "torch": "2.0", "beam_size": 4}
    without = dataclasses.replace(bundle, certificate={})
    assert describe_bundle(without)["certificate"]["samples"] == 0


@pytest.mark.parametrize(
    ("providers", "precisions", "provider", "precision"),
    [
        ([CPU], ["fp32", "int8"], "cpu", "int8"),
        ([CPU], ["fp32"], "cpu", "fp32"),
        ([CUDA, CPU], ["fp32", "int8"], "cuda", "fp32"),
        ([CUDA, CPU], ["fp32", "int8", "fp16"], "cuda", "fp16"),
        ([CPU], ["odd"], "cpu", "odd"),
    ],
)
def test_the_fastest_that_is_there_would_run(
    providers: list[str], precisions: list[str], provider: str, precision: str
) -> None:
    found = describe_machine(precisions, providers)
    assert (found["provider"], found["precision"]) == (provider, precision)


def test_the_machine_is_described_by_the_containers_limits(tmp_path: Path) -> None:
    for path, text in (
        ("proc/self/cgroup", "0::/\n"),
        ("sys/fs/cgroup/cpu.max", "150000 100000"),
        ("sys/fs/cgroup/memory.max", "1000000"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    found = describe_machine(["fp32"], [CPU], tmp_path)
    assert found["cpu_quota"] == 1.5
    assert found["cpus"] == found["threads"] == 1
    assert found["memory_limit"] == 1_000_000


def test_the_command_prints_json_that_programs_can_read(
    read: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    info(Parser(prog="attendant info"), ["--json", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert read == [tmp_path]
    assert found["bundle"]["name"] == "fake"
    assert found["machine"]["cpus"] == hardware.available_cpus()


def test_the_text_names_every_variant_and_the_choice(bundle: Bundle) -> None:
    machine = describe_machine(list(bundle.variants), [CPU])
    text = text_of({"bundle": describe_bundle(bundle), "machine": with_choices(bundle, machine)})
    for part in ("fake: ", "2 + 2 layers", "fp32 ", "int8 ", "2 samples of torch 2.0", "would run     int8 on cpu"):
        assert part in text


def test_the_text_says_that_a_cuda_device_may_not_answer(bundle: Bundle) -> None:
    machine = describe_machine(["fp32"], [CUDA, CPU])
    text = text_of({"bundle": describe_bundle(bundle), "machine": with_choices(bundle, machine)})
    assert "fp32 on cuda, if its device answers; else on cpu" in text


def test_the_text_says_which_kernels_are_used_or_why_none_are(bundle: Bundle) -> None:
    machine = with_choices(bundle, describe_machine(["int8"], [CPU]))
    described = describe_bundle(bundle)
    used = text_of({"bundle": described, "machine": {**machine, "kernels": "avx2"}})
    assert used.endswith("kernels       avx2")
    missing = {**machine, "kernels": None, "kernels_reason": "The kernels are not compiled."}
    text = text_of({"bundle": described, "machine": missing})
    assert text.endswith("kernels       none, so the portable graphs are used. The kernels are not compiled.")


def test_the_lanes_of_this_machine_are_told_and_why_memory_allows_no_more(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {**describe_machine(["int8"], [CPU]), "threads": 2, "memory_limit": 10**9}
    assert describe_lanes(bundle, machine) == {"lanes": 2, "lanes_reason": None}
    small = {**machine, "memory_limit": 8 * 1299}
    lanes = describe_lanes(bundle, small)
    assert lanes["lanes"] == 1
    text = text_of({"bundle": describe_bundle(bundle), "machine": with_choices(bundle, small)})
    assert "2 threads, 1 lane\n" in text
    assert "1 lane, since the memory limit of 0 MB is under 8 times the weights' 0 MB" in text
    monkeypatch.setattr(resources, "memory_limit", lambda: 1)
    assert describe_lanes(bundle, small)["lanes"] == 0


def test_without_a_name_the_embedded_model_is_described(
    read: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(room, "DEFAULT_BUNDLE", tmp_path)
    info(Parser(prog="attendant info"), [])
    assert read == [tmp_path]
    assert "would run" in capsys.readouterr().out


def test_an_installation_without_a_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "DEFAULT_BUNDLE", tmp_path / "none")
    with pytest.raises(StartError, match="there is no embedded model in this installation; name a bundle"):
        info(Parser(prog="attendant info"), [])


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json is missing"):
        info(Parser(prog="attendant info"), [str(tmp_path)])
