"""Pickled checkpoints: what they hold is read under every name that numpy gave its functions; what harms is refused."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attendant.model.importers.files import pickles
from attendant.model.importers.files.stored import stored_tensors
from attendant.model.importers.problems import Problems, Settings

HELD = {"array": np.arange(3, dtype=np.float32), "scalar": np.float64(2.5), "count": np.int64(-7), "big": np.int16(258)}
MARK, STOP, REDUCE, BUILD, TUPLE, LIST = b"(", b".", b"R", b"b", b"t", b"]"


def rename(path: Path, old: bytes, new: bytes) -> None:
    """Replace a module's name in the pickle of a checkpoint (names end with a newline, so lengths may differ)."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content.replace(old, new) if name.endswith("data.pkl") else content)


def write(path: Path, instructions: bytes, packing: int = zipfile.ZIP_STORED, **storages: bytes) -> Path:
    """A checkpoint in torch's format with a handmade pickle."""
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + instructions + STOP)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
        for name, content in storages.items():
            archive.writestr(f"archive/data/{name.removeprefix('s')}", content)
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def get(name: str) -> bytes:
    module, _, function = name.rpartition(".")
    return f"c{module}\n{function}\n".encode()


def several(*parts: bytes) -> bytes:
    return MARK + b"".join(parts) + TUPLE


def content(value: str) -> bytes:
    return get("_codecs.encode") + several(text(value), text("latin1")) + REDUCE


def dtype(kind: str) -> bytes:
    return get("numpy.dtype") + several(text(kind), b"\x89", b"\x88") + REDUCE + b"q\x01"


def array(kind: str) -> bytes:
    empty = several(get("numpy.ndarray"), several(number(0)), content("b"))
    state = several(number(1), several(number(1)), b"h\x01", b"\x89", content("a" * np.dtype(kind).itemsize))
    return get("numpy._core.multiarray._reconstruct") + empty + REDUCE + state + BUILD


def load(path: Path) -> tuple[Any, str]:
    problems = Problems(path)
    return pickles.load(path, problems), "\n".join(problems.found)


@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
def test_scalars_of_numpy_1_and_2_are_read_as_plain_numbers(tmp_path: Path, module: str) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(HELD, path)
    written = np.zeros(0).__reduce__()[0].__module__.removesuffix(".multiarray")
    assert f"{written}.multiarray\n".encode() in pickle.dumps(HELD, 2), "numpy pickles its arrays by another name now"
    rename(path, f"c{written}.multiarray\n".encode(), f"c{module}.multiarray\n".encode())
    found, problem = load(path)
    assert problem == ""
    assert {name: found[name] for name in ("scalar", "count", "big")} == {"scalar": 2.5, "count": -7, "big": 258}
    assert [type(found[name]) for name in ("scalar", "count")] == [float, int]


def test_no_array_of_numpy_is_ever_made(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(HELD, path)
    found, problem = load(path)
    assert problem == ""
    assert not isinstance(found["array"], np.ndarray)


@pytest.mark.parametrize("kind", ["S1", "U1", "V4", "O", "f8,f8"])
def test_dtypes_other_than_numbers_are_refused(tmp_path: Path, kind: str) -> None:
    enlarged = several(number(3), text("|"), b"N", b"N", b"N", number(2**20), number(1), number(0))
    body = several(dtype(kind), array("S1"), b"h\x01" + enlarged + BUILD)
    found, problem = load(write(tmp_path / "checkpoint.pt", body))
    assert found is None
    assert kind in problem
    assert "refused" in problem


def test_a_dtype_that_is_enlarged_after_its_array_was_made_reads_nothing_beyond_it(tmp_path: Path) -> None:
    enlarged = several(number(3), text("<"), b"N", b"N", b"N", number(2**20), number(1), number(0))
    body = several(dtype("f8"), array("f8"), b"h\x01" + enlarged + BUILD)
    found, problem = load(write(tmp_path / "checkpoint.pt", body))
    assert problem == ""
    assert not any(isinstance(value, np.ndarray | np.dtype) for value in found)


def nested(levels: int) -> bytes:
    """A list of two lists of two lists ..., of 2^levels elements in a few bytes."""
    return LIST + b"q\x05" + b"".join(LIST + MARK + b"h\x05h\x05e" + b"q\x05" for _ in range(levels))


@pytest.mark.parametrize("old", [False, True])
def test_what_a_pickle_holds_is_never_written_out(tmp_path: Path, old: bool) -> None:
    called = nested(18) + b")" + REDUCE
    path = tmp_path / "checkpoint.pt"
    if old:  # torch's format before 1.6: a few pickles, one after the other
        heads = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
        path.write_bytes(b"".join(pickle.dumps(head, 2) for head in heads) + b"\x80\x02" + called + STOP)
    else:
        write(path, called)
    found, problem = load(path)
    assert found is None
    assert "[[" not in problem
    assert "calls what is no function" in problem


def test_options_that_are_no_plain_values_are_named_by_their_type() -> None:
    class Foreign:
        def __repr__(self) -> str:
            raise AssertionError("it was written out")

    problems = Problems(Path("checkpoint.pt"))
    settings = Settings({"a": Foreign(), "b": [Foreign()]}, "its options", problems)
    for name in ("a", "b"):
        settings.size(name)
        settings.flag(name, False)
        settings.index(name, 5)
        settings.choice(name, {"x": "y"}, "x")
        settings.refuse_if(name, "no")
    assert "its options: a is a Foreign, not true or false" in problems.found
    assert "its options: b is a list, not an id below 5" in problems.found


def tensor(shape: tuple[int, ...], strides: tuple[int, ...], stored: int) -> bytes:
    """A f32 tensor over the storage 0 of `stored` elements."""
    storage = several(text("storage"), get("torch.FloatStorage"), text("0"), text("cpu"), number(stored)) + b"Q"
    sizes = [several(*map(number, numbers)) for numbers in (shape, strides)]
    hooks = get("collections.OrderedDict") + b")" + REDUCE
    return get("torch._utils._rebuild_tensor_v2") + several(storage, number(0), *sizes, b"\x89", hooks) + REDUCE


def test_a_tensor_with_more_elements_than_are_stored_is_refused_by_name(tmp_path: Path) -> None:
    body = b"}" + text("w") + tensor((2**14, 2**15), (0, 0), 1) + b"s"
    found, problem = load(write(tmp_path / "small.pt", body, s0=b"\0" * 4))
    assert problem == ""
    problems = Problems(Path("small.pt"))
    tensors = stored_tensors(found, "small.pt", problems, 1000)
    assert problems.found == ["small.pt: the weight w has 536,870,912 elements, of which 1 is stored"]
    assert "w" not in tensors


def test_one_storage_under_very_many_names_is_refused() -> None:
    stored = torch.zeros(100, 100)
    problems = Problems(Path("checkpoint.pt"))
    stored_tensors({str(i): stored for i in range(4)}, "checkpoint.pt", problems, 10**6)
    assert problems.found == []
    stored_tensors({str(i): stored for i in range(400)}, "checkpoint.pt", problems, 10**6)
    assert problems.found == ["checkpoint.pt: its weights describe 16,000,000 bytes, of which 40,000 are stored"]


def test_weights_that_the_file_is_too_small_for_are_refused() -> None:
    problems = Problems(Path("x.pt"))
    stored_tensors({"w": torch.zeros(1000)}, "x.pt", problems, 3999)
    assert problems.found == ["x.pt: its weights take 4,000 bytes, and the file has 3,999"]


def test_meta_and_sparse_tensors_are_refused_by_name(tmp_path: Path) -> None:
    odd = {"a": torch.zeros(2, 2, device="meta"), "b": torch.eye(3).to_sparse(), "c": torch.zeros(2, 2)}
    torch.save(odd, tmp_path / "x.pt")
    problems = Problems(tmp_path)
    tensors = pickles.load_tensors(tmp_path / "x.pt", problems)
    assert problems.found == [
        "x.pt: the weight a has no values (it is a meta tensor)",
        "x.pt: the weight b is a sparse tensor; save it with .to_dense()",
    ]
    assert list(tensors) == ["c"]


def test_an_archive_that_is_packed_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    body = b"}" + text("w") + tensor((2**20,), (1,), 2**20) + b"s"
    path = write(tmp_path / "packed.pt", body, zipfile.ZIP_DEFLATED, s0=b"\0" * 2**22)
    found, problem = load(path)
    assert found is None
    assert "packed.pt" in problem
    assert "unpacks to 4,194," in problem


def test_a_checkpoint_of_before_torch_1_6_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"w": torch.arange(3.0)}}, path, _use_new_zipfile_serialization=False)
    found, problem = load(path)
    assert problem == ""
    assert found["model"]["w"].tolist() == [0, 1, 2]
