"""The command `import`: one reader per format, each with its own flags."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from attendant.hub.cache import cache_directory
from attendant.hub.download import downloaded
from attendant.hub.names import MAIN, check_revision, is_name
from attendant.model.errors import ConfigError, UserError
from attendant.model.files import check_writable

# Format: what PATH is, and the flags that its reader takes.
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "marian": ("a directory of Hugging Face's Marian (OPUS-MT)", ("target_language",)),
    "m2m": (
        "a directory of Hugging Face's M2M100 (M2M-100, NLLB, SMaLL-100)",
        ("source_language", "target_language", "small100"),
    ),
    "bart": ("a directory of Hugging Face's BART, mBART or mBART-50", ("source_language", "target_language")),
    "blenderbot": ("a directory of Hugging Face's Blenderbot", ()),
    "pegasus": ("a directory of Hugging Face's Pegasus", ()),
    "t5": ("a directory of Hugging Face's T5 (T5, Flan-T5, mT5, ByT5, MADLAD-400)", ("target_language",)),
    "fairseq": ("a checkpoint of fairseq's transformer", ("dict_source", "dict_target", "bpe_codes", "sentencepiece")),
    "marian-npz": (
        "weights of Marian (.npz), with decoder.yml and vocabularies beside them",
        (
            "source_vocabulary",
            "target_vocabulary",
            "sentencepiece",
            "source_sentencepiece",
            "target_sentencepiece",
            "bpe_codes",
            "target_language",
        ),
    ),
    "torch": ("a state dict of a plain nn.Transformer", ("map",)),
    "ctranslate2": (
        "a directory of CTranslate2",
        ("sentencepiece", "source_sentencepiece", "target_sentencepiece", "bpe_codes", "target_language"),
    ),
}
REQUIRED = {"fairseq": ("dict_source", "dict_target"), "torch": ("map",)}
FLAGS: dict[str, tuple[Any, str, str]] = {
    "source_language": (str, "CODE", "the language of sources, where the model has several"),
    "target_language": (str, "CODE", "the language to write, where the model has several"),
    "small100": (str, "yes|no", "whether it is a SMaLL-100; else by the names of its files"),
    "source_vocabulary": (Path, "FILE", "the vocabulary of the source side, where decoder.yml does not name it"),
    "target_vocabulary": (Path, "FILE", "the vocabulary of the target side"),
    "dict_source": (Path, "TXT", "the dictionary of the source side"),
    "dict_target": (Path, "TXT", "the dictionary of the target side"),
    "bpe_codes": (Path, "FILE", "codes of subword-nmt or fastBPE; without them, tokens are separated by spaces"),
    "map": (Path, "JSON", "which weight is which, the heads, the special ids, the vocabularies"),
    "sentencepiece": (Path, "FILE", "a SentencePiece model for both sides"),
    "source_sentencepiece": (Path, "FILE", "for the source side"),
    "target_sentencepiece": (Path, "FILE", "for the target side"),
}
FILES = (".npz", ".pt", ".pth", ".bin", ".ckpt", ".tar", ".th")  # a path with one is never a model's name
SHOWN = 5


def import_model(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "format",
        nargs="?",
        choices=FORMATS,
        metavar="FORMAT",
        help="found by the files where it is not given; "
        + "; ".join(f"{name}: {about}" for name, (about, _) in FORMATS.items()),
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="the model: its files, or its name on Hugging Face, OWNER/NAME"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="a new directory, for attendant export")
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="TSV",
        help=("lines of source<TAB>target: tokenizers are compared on them, and export proves and measures with them"),
    )
    parser.add_argument("--revision", metavar="R", help="of a model by name: a branch, a tag or a commit")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="of a model by name: where it is downloaded to")
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="keep so many positions, which bound sources and targets (default: all that the model has; T5, whose are "
        "relative, takes any number)",
    )
    for name, (kind, metavar, about) in FLAGS.items():
        users = ", ".join(name_of for name_of, (_, flags) in FORMATS.items() if name in flags)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=f"{about} ({users})")
    options = parser.parse_args(arguments)
    name = options.path.as_posix()
    if options.path.exists() or options.path.suffix in FILES or not is_name(name):
        _import(options)
        return
    check_free(options.out)
    revision = check_revision(options.revision or MAIN)
    with downloaded(cache_directory(options.cache_dir), name, revision, print) as options.path:
        _import(options)


def _import(options: Namespace) -> None:
    given = {name: getattr(options, name) for name in FLAGS if getattr(options, name) is not None}
    if options.format is None:
        from attendant.model.importers.detect import find_format

        options.format = find_format(options.path, set(given))
    for name in given.keys() - set(FORMATS[options.format][1]):
        raise ConfigError(f"--{name.replace('_', '-')} is not for the format {options.format}.")
    for name in REQUIRED.get(options.format, ()):
        if name not in given:
            raise ConfigError(f"the format {options.format} needs --{name.replace('_', '-')}.")
    check_free(options.out)

    from attendant.model.corpus.pairs import read_pairs

    pairs = list(read_pairs(options.samples)) if options.samples else []
    reader = importlib.import_module(f"attendant.model.importers.formats.{options.format.replace('-', '_')}")
    model = reader.read(options.path, **given)
    if options.max_length is not None:
        model.keep_positions(options.max_length)
    notes = [*model.notes, *_loss(model, pairs), *_compare(model, pairs)]
    model.write(options.out, options.samples)
    count = sum(weight.numel() for weight in model.weights.values())
    print(f"{options.out}: {options.format}, {count / 1e6:.1f} M parameters, {model.config.max_length} positions")
    for note in notes:
        print(f"  {note}")
    print(f"  next: attendant export {options.out} --out BUNDLE{'' if options.samples else ' --samples TSV'}")


def check_free(out: Path) -> None:
    """UserError, before any work is done, if the run cannot be written."""
    if out.exists():
        raise UserError(f"{out} is there already; name a new directory, or remove it first.")
    check_writable(out, beside=True)


def _loss(model: Any, pairs: list[tuple[str, str]]) -> list[str]:
    """A note on the model's loss on the samples: one that ignores its source, or was imported wrongly, shows there."""
    from attendant.model.importers.loss import MOST_PAIRS, bits_per_token

    found = bits_per_token(model, pairs) if pairs else None
    if found is None:
        return []
    return [f"its loss on {min(len(pairs), MOST_PAIRS)} samples is {found:.2f} (cross-entropy, bits a token)"]


def _compare(model: Any, pairs: list[tuple[str, str]]) -> list[str]:
    """Notes on the samples that the imported tokenizers split differently from SentencePiece itself."""
    from attendant.model.importers.files.sentencepiece import differences

    notes = []
    sides = {"source": (model.source, [a for a, _ in pairs]), "target": (model.target, [b for _, b in pairs])}
    for side, path in model.spm.items() if pairs else ():
        backend, texts = sides[side]
        found = differences(path, backend, texts)
        if found is None:
            return ["the tokenizers were not compared: run pip install sentencepiece"]
        notes.append(f"{path.name}: {len(found)} of {len(texts)} samples are cut otherwise than by SentencePiece")
        notes += [f"  {text!r:.100}" for text in found[:SHOWN]]
    return notes
