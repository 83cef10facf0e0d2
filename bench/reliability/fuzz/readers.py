"""Everything that reads a file from outside, with small whole files to begin from and the errors that it may raise.

A reader not in the list is not fuzzed: add it here.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from attendant.export import onnx_file
from attendant.export.manifest import BundleError, read_manifest
from attendant.model.checkpoint import read_config
from attendant.model.corpus.pairs import read_pairs, read_references
from attendant.model.errors import UserError
from attendant.model.importers.files import ctranslate2_file, marian_yaml, npz, pickles, text_models, tokenizer_json
from attendant.model.importers.files import sentencepiece as pieces
from attendant.model.importers.problems import Problems, read_json
from attendant.model.text.tokenizer import load
from attendant.service.settings import DEFAULT_BUNDLE
from bench.reliability.fuzz.reader import Reader
from bench.reliability.fuzz.text_readers import TEXTS
from bench.reliability.fuzz.whole_readers import WHOLE

YAML = b"""dim-emb: 16\ntype: transformer\nenc-depth: 2\ntied-embeddings-all: true\nvocabs:\n  - a.spm\n  - b.spm\n"""
CODES = b"#version: 0.2\na b\nab c</w>\n"
PAIRS = b"cat\tK AE T\ndog\tD AO G\n"


# What zipfile, zlib and numpy raise of a damaged archive; its caller makes a sentence of each.
NPZ_ERRORS = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


def _problems(read: Callable[[Path, Problems], object]) -> Callable[[Path], object]:
    return lambda path: read(path, Problems(path))


def _manifest() -> list[bytes]:
    return [(DEFAULT_BUNDLE / "manifest.json").read_bytes()]


def _tokenizers() -> list[bytes]:
    return [path.read_bytes() for path in sorted((DEFAULT_BUNDLE / "tokenizers").iterdir())]


def _graphs() -> list[bytes]:
    graph = DEFAULT_BUNDLE / "fp32" / "merge.onnx"
    return [graph.read_bytes(), (DEFAULT_BUNDLE / "int8" / "kernel_step.onnx").read_bytes()[:20_000]]


def _graph(path: Path) -> object:
    data = path.read_bytes()
    return onnx_file.external_locations(data), onnx_file.stored_weights(data)


def _npz() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, a=np.arange(6.0, dtype=np.float32).reshape(2, 3), b=np.zeros(3, np.int8))
        found.append(file.getvalue())
    return found


def _pickles() -> list[bytes]:
    found = []
    for new in (True, False):
        file = io.BytesIO()
        value = {"model": {"w": torch.ones(2, 3)}, "args": {"layers": 2}}
        torch.save(value, file, _use_new_zipfile_serialization=new)
        found.append(file.getvalue())
    return found


def _ctranslate2() -> list[bytes]:
    """Format 6 with one f32 and one int8 weight with its scale, and an alias."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    def array(name: str, shape: tuple[int, ...], kind: int, content: bytes) -> bytes:
        sizes = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
        return text(name) + sizes + struct.pack("<BI", kind, len(content)) + content

    arrays = [array("e/weight", (2, 3), 1, bytes(6)), array("e/weight_scale", (2,), 0, struct.pack("<2f", 1, 2))]
    arrays.append(array("f/bias", (3,), 0, bytes(12)))
    head = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<II", 7, len(arrays))
    return [head + b"".join(arrays) + struct.pack("<I", 1) + text("g/bias") + text("f/bias")]


def _sentencepiece() -> list[bytes]:
    """The message of a unigram and of a bpe model: pieces with scores and kinds, and the trainer's options."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    def piece(text: str, score: float, kind: int) -> bytes:
        content = field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind])
        return field(1, content)

    known = b"".join(
        [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("</s>", 0, 3), piece("▁a", -1, 1), piece("b", -2, 1)]
    )
    return [known + field(2, bytes([3 << 3, kind])) for kind in (1, 2)]


def _configs() -> list[bytes]:
    model = {"d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16}
    return [json.dumps({"format": 1, "model": model, "training": {"seed": 1}}).encode()]


READERS: dict[str, Reader] = {
    "manifest": Reader(lambda path: read_manifest(path.parent), _manifest, (BundleError,), "manifest.json"),
    "graph": Reader(_graph, _graphs, (onnx_file.NotOnnxError,)),
    "tokenizer": Reader(load, _tokenizers, (UserError,)),
    "run's options": Reader(lambda path: read_config(path.parent), _configs, (UserError,), "config.json"),
    "corpus": Reader(
        lambda path: list(read_pairs(path)), lambda: [PAIRS], (UserError,), words=(b"\t", b"\xef\xbb\xbf")
    ),
    "references": Reader(read_references, lambda: [PAIRS], (UserError,), words=(b"\t",)),
    "npz": Reader(npz.read, _npz, NPZ_ERRORS),
    "torch checkpoint": Reader(_problems(pickles.load), _pickles, (), words=(b"cos\nsystem\n", b"\x93", b"R")),
    "CTranslate2": Reader(ctranslate2_file.read, _ctranslate2, (ValueError, UnicodeDecodeError)),
    "SentencePiece": Reader(_problems(pieces.read), _sentencepiece, ()),
    "tokenizer.json": Reader(_problems(tokenizer_json.read), _tokenizers, ()),
    "JSON options": Reader(_problems(read_json), _configs, (UserError,)),
    "BPE codes": Reader(_problems(text_models.read_codes), lambda: [CODES], ()),
    "Marian's YAML": Reader(
        lambda path: marian_yaml.options(path.read_bytes().decode(errors="replace")), lambda: [YAML], (ValueError,)
    ),
    **TEXTS,
    **WHOLE,
}
