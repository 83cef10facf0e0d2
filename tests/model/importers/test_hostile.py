"""Files of every format that are damaged, or made to do harm: each is refused in a sentence, and nothing is written."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from attendant import main
from tests.model.importers import test_fairseq as fairseq
from tests.model.importers import test_marian_npz as npz
from tests.model.importers import test_opennmt as opennmt
from tests.model.importers import test_torch as torch_files
from tests.model.importers.test_m2m_bart import SHAPE, make_m2m, make_mbart, save, write_bytes
from tests.model.importers.test_marian import make_marian
from tests.support.foreign import LENGTH, OTHER, WORDS, train_spm

GARBAGE = [b"", b"\xff\x00\x81" * 50, b"x" * 40]
NO_TABLES = [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"5", b"null"]
HUGE = [10**9, 10**12, 10**30, -1, 0, 1.5, "x", [], {}, float("inf")]
COUNTS = ["encoder_layers", "decoder_layers", "d_model", "encoder_ffn_dim", "decoder_attention_heads", "vocab_size"]
COUNTS += ["max_position_embeddings", "activation_function", "eos_token_id", "scale_embedding", "model_type"]


def make_bart(path: Path) -> None:
    path.mkdir()
    ids = write_bytes(path)
    config = transformers.BartConfig(vocab_size=len(ids), **SHAPE)
    save(path, transformers.BartForConditionalGeneration(config))


def make_fairseq(path: Path) -> None:
    path.mkdir()
    pieces = [*WORDS, *OTHER]
    oracle = fairseq.make_oracle((len(pieces) + 4,) * 2, True, fairseq.sinusoids(LENGTH))
    torch.save({"args": fairseq.options(True), "model": fairseq.fairseq_weights(oracle)}, path / "checkpoint.pt")
    fairseq.write_dictionaries(path, pieces)


def make_torch(path: Path) -> None:
    path.mkdir()
    torch_files.make_files(path)


def make_npz(path: Path) -> None:
    path.mkdir()
    oracle = make_marian(path / "hf")
    ids = json.loads((path / "hf" / "vocab.json").read_text(encoding="utf-8"))
    (path / "vocab.json").write_text(json.dumps({token: i for token, i in ids.items() if token != "<pad>"}))
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(path / "hf" / name, path / name)
    shutil.rmtree(path / "hf")
    npz.write(path, npz.npz_arrays(oracle, {}), ["vocab.json"])


def make_ctranslate2(path: Path) -> None:
    spm = train_spm(path.with_name("sentencepiece.model"), WORDS)
    opennmt.save(path, spm, *opennmt.CASES[0][:1], **opennmt.CASES[0][1])
    spm.rename(path / "sentencepiece.model")


# Format: how its files are made, the arguments after `import FORMAT`, and its files of weights and of text.
Maker = Callable[[Path], Any]
FORMATS: dict[str, tuple[Maker, str, list[str]]] = {
    "marian": (make_marian, "marian DIR", ["model.safetensors", "source.spm", "target.spm"]),
    "m2m": (make_m2m, "m2m DIR", ["model.safetensors", "sentencepiece.bpe.model"]),
    "bart": (make_bart, "bart DIR", ["model.safetensors", "merges.txt"]),
    "mbart": (
        lambda path: make_mbart(path, "MBart50Tokenizer"),
        "bart DIR",
        ["model.safetensors", "sentencepiece.bpe.model"],
    ),
    "fairseq": (
        make_fairseq,
        "fairseq DIR/checkpoint.pt --dict-source DIR/dict.txt --dict-target DIR/dict.txt",
        ["checkpoint.pt", "dict.txt"],
    ),
    "torch": (make_torch, "torch DIR/model.pt --map DIR/map.json", ["model.pt"]),
    "marian-npz": (make_npz, "marian-npz DIR/model.npz", ["model.npz", "vocab.json"]),
    "ctranslate2": (
        make_ctranslate2,
        "ctranslate2 DIR --sentencepiece DIR/sentencepiece.model",
        ["model.bin", "sentencepiece.model"],
    ),
}


class Case:
    """One format's files, which a test changes one at a time."""

    def __init__(self, name: str, whole: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.name, self.whole, self.capsys, self.out = name, whole, capsys, work / "run"
        self.path = work / "in"
        shutil.copytree(whole, self.path)
        self.arguments = ["import", *FORMATS[name][1].replace("DIR", str(self.path)).split(), "--out", str(self.out)]

    def refused(self, why: str = "") -> str:
        """What is said; the file is then whole again."""
        assert main(self.arguments) == 1
        said = self.capsys.readouterr().err
        assert "cannot be imported, and nothing was written:\n" in said
        assert why in said
        assert [path.name for path in self.path.parent.iterdir()] == ["in"]
        shutil.rmtree(self.path)
        shutil.copytree(self.whole, self.path)
        return said

    def tables(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for path in sorted(self.path.glob("*.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(content, dict):
                yield path, content


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, (make, _, _) in FORMATS.items():
        found[name] = tmp_path_factory.mktemp(name) / "whole"
        make(found[name])
    return found


@pytest.fixture(params=FORMATS)
def case(
    request: pytest.FixtureRequest,
    directories: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Case:
    return Case(request.param, directories[request.param], tmp_path, capsys)


def of(*formats: str) -> pytest.MarkDecorator:
    """A test of these formats alone."""
    return pytest.mark.parametrize("case", formats, indirect=True)


def test_the_whole_files_are_imported(case: Case) -> None:
    assert main(case.arguments) == 0
    assert case.out.is_dir()


def test_truncated_and_meaningless_files_are_refused(case: Case) -> None:
    for name in FORMATS[case.name][2]:
        path = case.path / name
        whole = path.read_bytes()
        cuts = [whole[: len(whole) // 3], whole[: len(whole) * 2 // 3]] if path.suffix != ".txt" else []
        for content in [*GARBAGE, *cuts]:
            path.write_bytes(content)
            case.refused()


def test_missing_files_and_directories_in_their_place_are_refused(case: Case) -> None:
    for name in FORMATS[case.name][2]:
        (case.path / name).unlink()
        case.refused()
        (case.path / name).unlink()
        (case.path / name).mkdir()
        case.refused()


def test_a_file_in_place_of_the_directory_and_the_other_way_round_is_refused(case: Case) -> None:
    given = Path(case.arguments[2])
    if given == case.path:
        shutil.rmtree(given)
        given.write_text("no directory")
        assert main(case.arguments) == 1
        assert "it is not a directory; name the one that holds" in case.capsys.readouterr().err
    else:
        given.unlink()
        given.mkdir()
        assert main(case.arguments) == 1
        said = case.capsys.readouterr().err
        assert "it is a directory" in said or "it is not a file" in said
    assert not case.out.exists()


@of(*(name for name in FORMATS if name != "fairseq"))  # which has no JSON
def test_json_that_is_deep_or_no_table_is_refused(case: Case) -> None:
    tables = list(case.tables())
    assert tables
    for path, _ in tables:
        for content in NO_TABLES if path.name != "generation_config.json" else NO_TABLES[:2]:
            path.write_bytes(content)
            case.refused(path.name)


@of("marian", "m2m", "bart", "mbart")  # the others' sizes are those of their weights
def test_counts_out_of_all_range_are_refused_before_anything_is_made_of_them(case: Case) -> None:
    path = case.path / "config.json"
    config = json.loads(path.read_text())
    for name in COUNTS:
        for value in HUGE:
            if (name, value) not in (("eos_token_id", 0), ("scale_embedding", 0)):
                path.write_text(json.dumps(config | {name: value}))
                case.refused(name)


@of("marian", "m2m", "bart", "torch", "marian-npz")  # the others have no table of ids
def test_ids_that_are_no_numbers_or_given_twice_are_refused(case: Case) -> None:
    tables = [each for each in case.tables() if "vocab" in each[0].name or each[0].name == "target.json"]
    assert tables
    for path, content in tables:
        token, other = list(content)[5:7]
        for value in (1.5, "5", None, True, [1], -1, 10**12, content[other]):
            path.write_text(json.dumps(content | {token: value}))
            said = case.refused()
            assert path.name in said or repr(token) in said


def weights_of(case: Case) -> tuple[dict[str, Any], Callable[[dict[str, Any]], None]]:
    """Matrices by name, as a format stores them, and how to store them again."""
    path = case.path / FORMATS[case.name][2][0]
    if path.suffix == ".safetensors":
        return load_file(path), lambda arrays: save_file(arrays, path)
    if path.suffix == ".npz":
        return dict(np.load(path)), lambda arrays: np.savez(path, **arrays)
    held = torch.load(path, weights_only=False)
    if "model" in held:
        return dict(held["model"]), lambda arrays: torch.save(held | {"model": arrays}, path)
    return dict(held), lambda arrays: torch.save(arrays, path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(case: Case, value: float) -> None:
    if case.name == "ctranslate2":
        path = case.path / "model.bin"
        content = path.read_bytes()
        at = (
            content.index(b"decoder/layer_0/ffn/linear_0/weight\0") + 36 + 1 + 8 + 1 + 4
        )  # name, rank, shape, type, size
        path.write_bytes(content[:at] + struct.pack("<f", value) + content[at + 4 :])
        case.refused("the weight decoder/layer_0/ffn/linear_0/weight holds infinities")
        return
    arrays, store = weights_of(case)
    name = next(
        name for name in sorted(arrays) if (len(arrays[name].shape) == 2 and ".0." in name) or "_l1_ffn_W1" in name
    )
    arrays[name] = arrays[name] + 0
    arrays[name][0, 0] = value
    store(arrays)
    case.refused(f"the weight {name} holds infinities or what is not a number")
