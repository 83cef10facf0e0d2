"""Readers of whole directories: a bundle that is loaded, weights that the kernels compute with, imports end to end.

One file of a directory is changed, the others are whole.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from attendant.export.bundle import BundleError, read_bundle
from attendant.export.manifest import MANIFEST
from attendant.model.errors import UserError
from attendant.model.importers.cli import import_model
from attendant.service.engine.engine import Engine, EngineSettings
from attendant.service.errors import StartError
from attendant.service.settings import DEFAULT_BUNDLE
from bench.reliability.fuzz.reader import Reader

PIECE = 2**14  # bytes of weights that change at once
WEIGHTS = Path("int8/weights.bin")
IMPORTED = (  # formats, and the file of each that is changed
    *(("marian", "config.json"), ("marian", "model.safetensors"), ("marian", "source.spm"), ("marian", "vocab.json")),
    *(("m2m", "sentencepiece.bpe.model"), ("m2m", "tokenizer_config.json"), ("bart", "merges.txt")),
    *(("bart", "config.json"), ("mbart", "sentencepiece.bpe.model"), ("fairseq", "checkpoint.pt")),
    *(("fairseq", "dict.txt"), ("torch", "model.pt"), ("torch", "map.json"), ("marian-npz", "model.npz")),
    *(("marian-npz", "vocab.json"), ("ctranslate2", "model.bin"), ("ctranslate2", "config.json")),
)
SETTINGS = EngineSettings(precision="int8", threads=1, lanes=1, max_rows=8)


def _bundle(directory: Path) -> None:
    shutil.copytree(DEFAULT_BUNDLE, directory / "bundle", dirs_exist_ok=True)


def _with_its_digest(name: str) -> Callable[[Path], None]:
    """Loads the bundle with this file changed and its digest as the file now has it: only its content speaks."""

    def read(path: Path) -> None:
        bundle = path.parent / "bundle"
        (bundle / name).write_bytes(path.read_bytes())
        if name != MANIFEST:
            manifest = json.loads((DEFAULT_BUNDLE / MANIFEST).read_text(encoding="utf-8"))
            manifest["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
            (bundle / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        Engine(read_bundle(bundle, weights=False), SETTINGS).close()

    return read


def _damaged_weights(path: Path) -> None:
    """Decodes the certificate's samples with a piece of the weights changed, or with the rest of them cut off.

    The digests are not looked at: what is tried is the kernel library, which packs and reads them.
    """
    data, weights = path.read_bytes(), path.parent / "bundle" / WEIGHTS
    drawn = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
    whole = bytearray((DEFAULT_BUNDLE / WEIGHTS).read_bytes())
    place = drawn % len(whole)
    whole[place : place + len(data)] = data
    if drawn % 16 == 0:
        del whole[place:]
    weights.unlink()  # the last ones may be mapped still
    weights.write_bytes(whole)
    bundle = replace(read_bundle(path.parent / "bundle", weights=False), weights_checked=True)
    Engine(bundle, SETTINGS).close()


def _pieces() -> list[bytes]:
    whole = (DEFAULT_BUNDLE / WEIGHTS).read_bytes()
    return [whole[:PIECE], b"\xff" * PIECE, b"\0\0\xc0\x7f" * 16, b"\0" * PIECE]


def _of_bundle(name: str) -> Reader:
    return Reader(
        _with_its_digest(name),
        lambda: [(DEFAULT_BUNDLE / name).read_bytes()],
        (BundleError, StartError),
        prepare=_bundle,
        share=0.02,
        acts=("ctypes.", "os.putenv"),
        writes=True,
    )


@cache
def _made(name: str) -> Path:
    """A small model in this format, in a directory that is removed when the process ends."""
    from tests.model.importers.test_hostile import FORMATS

    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    FORMATS[name][0](Path(kept.name) / "whole")
    return Path(kept.name) / "whole"


def _importer(name: str, changed: str) -> Reader:
    """An import of a small model of this format, with this file of it changed."""

    def read(path: Path) -> None:
        from tests.model.importers.test_hostile import FORMATS

        given, out = path.parent / "whole", path.parent / "run"
        (given / changed).write_bytes(path.read_bytes())
        arguments = FORMATS[name][1].replace("DIR", str(given)).split()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                import_model(ArgumentParser(), [*arguments, "--out", str(out)])
        except UserError:
            if [*path.parent.glob("*run*")]:
                raise AssertionError("it was refused, and something was written") from None
            raise
        shutil.rmtree(out)

    return Reader(
        read,
        lambda: [(_made(name) / changed).read_bytes()],
        (UserError,),
        prepare=lambda directory: shutil.copytree(_made(name), directory / "whole", dirs_exist_ok=True),
        share=0.015,
        writes=True,
    )


WHOLE: dict[str, Reader] = {
    **{f"bundle: {name}": _of_bundle(name) for name in (MANIFEST, "tokenizers/source.json", "int8/merge.onnx")},
    "packed weights": Reader(
        _damaged_weights,
        _pieces,
        (BundleError, StartError),
        prepare=_bundle,
        share=0.05,
        acts=("ctypes.", "os.putenv"),
        writes=True,
    ),
    **{f"import {name}: {changed}": _importer(name, changed) for name, changed in IMPORTED},
}
