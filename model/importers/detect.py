"""Which format a model's files are in, found by what lies at its path."""

from __future__ import annotations

from pathlib import Path

from attendant.hub.kinds import FORMATS
from attendant.model.errors import UserError
from attendant.model.importers.families.huggingface import CONFIG, refuse_kind
from attendant.model.importers.files import pickles
from attendant.model.importers.problems import Problems, read_json

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".th")


def find_format(path: Path, given: set[str]) -> str:
    """The format of the files at a path; `given` are flags, which may say more. UserError where nothing fits."""
    if path.is_dir():
        return _of_directory(path)
    if not path.exists():
        raise UserError(f"{path} is not there; attendant import takes a model's file or directory.")
    if path.suffix == ".npz":
        return "marian-npz"
    if path.suffix not in PICKLES:
        raise UserError(f"{path} is in no format that is known by its name; put the format before it.")
    if "map" in given:
        return "torch"
    return "fairseq" if "dict_source" in given or _is_fairseq(path) else "torch"


def _of_directory(path: Path) -> str:
    if (path / CONFIG).exists() and not (path / "model.bin").exists():
        problems = Problems(path)
        kind = read_json(path / CONFIG, problems).get("model_type")
        problems.raise_if_any()
        if not isinstance(kind, str) or kind not in FORMATS:
            refuse_kind(kind, tuple(FORMATS), problems)
        return FORMATS[kind]
    if (path / "model.bin").exists():
        return "ctranslate2"
    files = sorted(file.name for file in path.iterdir() if file.suffix in (".npz", *PICKLES))
    hint = f"; name the file: {path / files[0]}" if files else ""
    raise UserError(f"{path} has neither {CONFIG} nor model.bin{hint}.")


def _is_fairseq(path: Path) -> bool:
    """Whether a checkpoint holds weights with their options. What cannot be read is left to the reader to refuse."""
    held = pickles.table(pickles.load(path, Problems(path))) or {}
    return "model" in held and bool({"args", "cfg"} & held.keys())
