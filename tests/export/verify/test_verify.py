"""Export proves itself, and the proof can fail."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import attendant
from attendant.export.bundle import BundleError, read_bundle
from attendant.export.cli import LONGEST_DESCRIPTION
from attendant.export.graphs.packing import pack_f32
from attendant.export.graphs.parts import Matrix
from attendant.export.graphs.quantize import Int8Parts
from attendant.export.make import convert
from attendant.export.make.convert import VerificationError
from attendant.export.make.samples import Samples, read_samples
from attendant.export.verify.torch_checks import check_origin
from attendant.export.verify.verify import verify
from attendant.model.checkpoint import TrainedModel, load_trained
from attendant.model.config import build
from attendant.model.training.prepare import Plan
from attendant.model.training.train import train
from tests.support.exporting import change_weights

SENTENCE = "Turns a word around."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learnt a little, so that its answers are not all alike."""
    directory = tmp_path_factory.mktemp("run")
    words = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmnopqr"]
    tsv = directory / "train.tsv"
    tsv.write_text("".join(f"{word}\t{' '.join(word[::-1].upper())}\n" for word in words), encoding="utf-8")
    model, training = build("tiny", {"steps": 60, "validate_every": 60, "max_length": 24})
    train(Plan(data=tsv, valid=tsv, out=directory / "run", model=model, train=training, target_tokenizer="words"))
    return directory / "run"


@pytest.fixture(scope="module")
def trained(run: Path) -> TrainedModel:
    return load_trained(run)


@pytest.fixture(scope="module")
def good(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles") / "good"
    about = ["--description", SENTENCE, "--example", "afk", "--example", "bgl"]
    assert attendant.main(["export", str(run), "--out", str(out), "--name", "small", "--fp16", *about]) == 0
    return out


@pytest.fixture(scope="module")
def samples(run: Path, trained: TrainedModel) -> Samples:
    """The run's, with few held-out inputs."""
    found = read_samples(run, trained)
    return Samples(trained, found.texts[:4], found.references[:4])


def test_an_exported_bundle_verifies_with_and_without_its_checkpoint(
    good: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(read_bundle(good).variants) == ["fp32", "int8", "fp16"]
    assert attendant.main(["verify", str(good), "--checkpoint", str(run)]) == 0
    assert "nothing is off, against torch on 200 held-out inputs" in capsys.readouterr().out
    assert attendant.main(["verify", str(good)]) == 0
    assert attendant.main(["verify", str(good), "--samples", "samples.tsv"]) == 2  # of which nothing would be read


def test_a_sentence_and_examples_are_the_users_if_the_model_reads_them(good: Path, samples: Samples) -> None:
    bundle = read_bundle(good)
    assert (bundle.description, bundle.examples) == (SENTENCE, ("afk", "bgl"))
    assert list(check_origin(bundle, samples)) == []
    unread = dataclasses.replace(bundle, examples=("afk", "a7k"))
    assert list(check_origin(unread, samples)) == ["facts: the example 'a7k' has what the model's vocabulary lacks"]


@pytest.mark.parametrize("sentence", ["", "x" * (LONGEST_DESCRIPTION + 1)])
def test_a_sentence_that_is_empty_or_endless_is_wrong_usage(sentence: str, run: Path, tmp_path: Path) -> None:
    flags = ["export", str(run), "--out", str(tmp_path / "bundle"), "--description", sentence]
    assert attendant.main(flags) == 2
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_verifies_where_only_the_service_is_installed(good: Path) -> None:
    code = (
        "import sys\nfor name in ('torch', 'onnx', 'safetensors', 'sacrebleu'): sys.modules[name] = None\n"
        f"import attendant\nsys.exit(attendant.main(['verify', {str(good)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nothing is off" in done.stdout


def test_the_number_of_threads_of_an_export_can_be_given(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, before = [], torch.get_num_threads()

    def prove(*_: object) -> list[str]:
        used.append(torch.get_num_threads())
        return []

    monkeypatch.setattr(convert, "verify", prove)
    arguments = ["export", str(run), "--out", str(tmp_path / "bundle"), "--precision", "fp32", "--threads", "1"]
    assert attendant.main(arguments) == 0
    assert used == [1]
    assert torch.get_num_threads() == before


def test_the_commands_say_in_a_sentence_why_they_fail(
    run: Path, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(good, tmp_path / "bundle")
    (tmp_path / "bundle" / "fp32" / "weights.bin").write_bytes(b"")
    assert attendant.main(["verify", str(tmp_path / "bundle")]) == 1
    assert "weights.bin has not the digest" in capsys.readouterr().err
    assert attendant.main(["export", str(run), "--out", str(good)]) == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert attendant.main(["export"]) == 2


def tampered(good: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> list[Path]:
    """A copy of the graphs with some weights changed and kept inside."""
    shutil.copytree(good, tmp_path / "copy")
    paths = [tmp_path / "copy" / "fp32" / f"{name}.onnx" for name in ("encoder", "step", "full")]
    for path in paths:
        change_weights(path, path, change)
    return paths


def problems_of(good: Path, paths: list[Path], samples: Samples) -> str:
    """What is wrong with the bundle with some of its graphs, in a folder of their variant, replaced."""
    bundle = read_bundle(good)
    for path in paths:
        bundle.variants[path.parent.name].graphs[path.stem] = path
    only = {name: variant for name, variant in bundle.variants.items() if name in {p.parent.name for p in paths}}
    return "\n".join(verify(dataclasses.replace(bundle, variants=only), samples))


def test_one_perturbed_weight_is_named(good: Path, samples: Samples, tmp_path: Path) -> None:
    def perturb(arrays: dict[str, Any]) -> None:
        if "decoder.1.feed_forward.widen.weight packed" in arrays:
            arrays["decoder.1.feed_forward.widen.weight packed"][0, 3, 5] += 0.5

    problems = problems_of(good, tampered(good, tmp_path, perturb), samples)
    assert "weight decoder.1.feed_forward.widen.weight packed is not the checkpoint's: worst at [0, 3, 5]" in problems
    assert "logprobs is off by more than" in problems
    assert "logprobs token by token is off" in problems
    assert "certificate: log-probabilities drift" in problems


def unpack_f32(packed: Any, columns: int) -> Any:
    """The inverse of `pack_f32`."""
    return packed.transpose(1, 0, 2).reshape(packed.shape[1], -1)[:, :columns]


def test_two_swapped_heads_are_named(good: Path, samples: Samples, tmp_path: Path) -> None:
    """Swapped everywhere, heads give the same log-probabilities; only the attention shows it."""
    config = samples.trained.config
    head, d_model = config.d_model // config.heads, config.d_model
    order = np.r_[head : 2 * head, 0:head, 2 * head : d_model]

    def swap(arrays: dict[str, Any]) -> None:
        name = "encoder.0.self_attention"
        if f"{name}.project_in.weight packed" in arrays:
            columns = np.concatenate([order + part * d_model for part in range(3)])
            into, out = f"{name}.project_in.weight packed", f"{name}.project_out.weight packed"
            arrays[into] = pack_f32(unpack_f32(arrays[into], 3 * d_model)[:, columns])
            arrays[f"{name}.project_in.bias"] = arrays[f"{name}.project_in.bias"][columns]
            arrays[out] = pack_f32(unpack_f32(arrays[out], d_model)[order])

    problems = problems_of(good, tampered(good, tmp_path, swap), samples)
    assert "heads 0 and 1 of layer 0 are swapped" in problems
    assert "logprobs is off" not in problems


@pytest.mark.parametrize("graph", ["encoder", "step", "full"])
def test_a_frozen_axis_is_named(graph: str, good: Path, samples: Samples, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "copy")
    path = tmp_path / "copy" / "fp32" / f"{graph}.onnx"
    model = onnx.load(str(path), load_external_data=False)
    frozen = model.graph.input[0]
    frozen.type.tensor_type.shape.dim[0].dim_value = 2
    path.write_bytes(model.SerializeToString())
    problems = problems_of(good, [path], samples)
    assert f"fp32 {graph}: axis 0 of input {frozen.name} is 2, not {'rows' if graph == 'step' else 'batch'}" in problems


def test_a_length_frozen_inside_a_graph_is_found(good: Path, samples: Samples, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "copy")
    path = tmp_path / "copy" / "fp32" / "full.onnx"
    model = onnx.load(str(path), load_external_data=False)
    shapes = [node.input[1] for node in model.graph.node if node.op_type == "Reshape"]
    constant = next(t for t in model.graph.initializer if t.name in shapes and t.dims == [4])  # (B, T, H, d)
    shape = numpy_helper.to_array(constant).copy()
    shape[1] = 5
    constant.CopyFrom(numpy_helper.from_array(shape, constant.name))
    path.write_bytes(model.SerializeToString())
    assert "values: the check cannot run" in problems_of(good, [path], samples)


def test_nothing_is_written_if_the_proof_fails(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "verify", lambda *_: ["fp32 step: something is off"])
    with pytest.raises(VerificationError, match="something is off"):
        convert.convert(run, tmp_path / "out", "small")
    assert list(tmp_path.iterdir()) == []


def test_int8_graphs_whose_builder_forgets_the_decoders_output_biases_are_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of the builder, which a comparison with what it builds cannot see, and a certificate hardly."""
    matrix = Int8Parts.matrix

    def forgetful(self: Int8Parts, name: str, *part: Any) -> Matrix:
        found = matrix(self, name, *part)
        forgets = name.startswith("decoder.") and name.endswith(("project_out", "narrow"))
        return dataclasses.replace(found, bias=0 * found.bias) if forgets and found.bias is not None else found

    monkeypatch.setattr(Int8Parts, "matrix", forgetful)
    with pytest.raises(VerificationError) as caught:
        convert.convert(run, tmp_path / "out", "small", variants=("int8",))
    *problems, advice = str(caught.value).splitlines()[1:]
    assert "--precision fp32" in advice
    assert any(problem.startswith("int8 levels token by token are off") for problem in problems)
    assert any("int8 definitions: levels token by token are off" in problem for problem in problems)


def test_an_existing_bundle_stays_unless_forced(good: Path, run: Path) -> None:
    with pytest.raises(BundleError, match="--force"):
        convert.convert(run, good, "small")


def test_exporting_twice_gives_the_same_bytes(
    good: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "verify", lambda *_: [])  # it writes nothing
    about = {"description": SENTENCE, "examples": ["afk", "bgl"]}
    convert.convert(run, tmp_path / "again", "small", variants=("fp32", "int8", "fp16"), about=about)
    for path in sorted(p for p in good.rglob("*") if p.is_file()):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(good)).read_bytes()
