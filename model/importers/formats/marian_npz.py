"""Marian's own files: the weights with their options (.npz), the decoder's options (.yml), vocabularies (.spm, .yml).

Matrices are stored as (in, out). There are no padding and start tokens: a target begins with a zero vector. Marian's
GELU is x sigmoid(1.702 x).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendant.model.importers.families.marian_names import take_layers, take_tables
from attendant.model.importers.families.marian_options import read_options
from attendant.model.importers.families.opus_languages import language_notes, language_tokens, languages_by_token
from attendant.model.importers.families.sinusoids import fairseq_sinusoids
from attendant.model.importers.families.vocabulary import Vocabulary, add_template, arrange_both, tokens_by_id
from attendant.model.importers.files import marian_yaml, npz, text_models
from attendant.model.importers.files.sentencepiece import CONTROL, SentencePiece
from attendant.model.importers.imported import (
    ImportedModel,
    fold_sigmoid_gelu,
    is_default,
    with_embeddings,
    with_positions,
)
from attendant.model.importers.problems import Problems, Settings, Tensors, first_line, read_json

OPTIONS = "special:model.yml"  # the array that holds the options as text
POSITIONS = 512  # rows of a table of sinusoids, which in Marian have no limit
SIDES = ("source", "target")


def read(
    path: Path,
    source_vocabulary: Path | None = None,
    target_vocabulary: Path | None = None,
    sentencepiece: Path | None = None,
    source_sentencepiece: Path | None = None,
    target_sentencepiece: Path | None = None,
    bpe_codes: Path | None = None,
    target_language: str | None = None,
) -> ImportedModel:
    problems = Problems(path)
    arrays = _arrays(path, problems)
    decoder = _decoder_options(path, problems)
    problems.raise_if_any()
    s = Settings(_model_options(arrays, problems), OPTIONS, problems)
    tensors = Tensors({name: _tensor(array) for name, array in arrays.items() if name != OPTIONS}, problems)
    files = _vocabulary_files(path, decoder, (source_vocabulary, target_vocabulary), problems)
    given = (source_sentencepiece or sentencepiece, target_sentencepiece or sentencepiece)
    spm = [_text_file(path, file, side, own, bpe_codes) for file, side, own in zip(files, SIDES, given, strict=True)]
    texts = [text_models.choose(file, bpe_codes, problems) for file in spm]

    config, norms = read_options(s, learned_positions="Wpos" in tensors)
    problems.raise_if_any()
    weights = take_layers(tensors, config, norms)
    if s.values.get("transformer-ffn-activation") == "gelu":
        fold_sigmoid_gelu(weights)
    tables, bias = take_tables(s, tensors, config.d_model)
    sizes = [1, 1] if tables is None else [len(table) for table in tables[:2]]
    positions = tensors.get("Wpos", -1, config.d_model) if "Wpos" in tensors else None
    tensors.refuse_leftovers()
    vocabularies = [_vocabulary(f, t, n, problems) for f, t, n in zip(files, texts, sizes, strict=True)]
    problems.raise_if_any()

    sides = [problems.required(text) for text in texts]
    layouts = arrange_both(vocabularies, sides)
    codes = vocabularies[0].languages
    languages = languages_by_token(vocabularies[0], layouts[0], target_language, problems)
    problems.raise_if_any()
    config = with_embeddings(config, weights, problems.required(tables), layouts, bias)
    table = fairseq_sinusoids(POSITIONS, config.d_model, 0) if positions is None else positions
    config = with_positions(config, weights, table, table)
    source, target = (text.backend(layout.names) for text, layout in zip(sides, layouts, strict=True))
    if target_language is not None:
        add_template(source, [layouts[0].id_of(codes[target_language])])
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        {"format": "marian-npz", "weights": path.name, "name": path.stem, "version": s.values.get("version")},
        _generation(decoder),
        languages,
        [*_notes(decoder), *language_notes(codes, target_language)],
        {side: file for side, file in zip(SIDES, spm, strict=True) if file},
    )
    model.notes += text_models.hints(texts[0], vocabularies[0].tokens)
    model.check(problems)
    problems.raise_if_any()
    return model


def _arrays(path: Path, problems: Problems) -> dict[str, np.ndarray]:
    if path.is_dir():
        problems.add("it is a directory; name the .npz file")
    elif path.suffix == ".bin":
        problems.add("it is in Marian's binary format, which is packed for one kind of processor; name the .npz file")
    else:
        try:
            return npz.read(path)
        except OSError as error:
            problems.add(f"it cannot be read: {error.strerror or error}")
        except Exception as error:  # zipfile and numpy raise many kinds
            problems.add(f"it is no whole .npz of plain arrays: {first_line(error)}")
    return {}


def _tensor(array: np.ndarray) -> Tensor:
    """An array as a tensor; one that is not floating point becomes int8, which `Tensors.get` refuses."""
    native = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(native) if native.dtype.kind == "f" else torch.zeros(native.shape, dtype=torch.int8)


def _model_options(arrays: dict[str, np.ndarray], problems: Problems) -> dict[str, Any]:
    if OPTIONS not in arrays:
        problems.add(f"it holds no {OPTIONS}, the options that Marian stores with the weights")
        problems.raise_if_any()
    try:
        return marian_yaml.options(arrays[OPTIONS].tobytes().rstrip(b"\0").decode("utf-8"))
    except ValueError as error:
        problems.add(f"{OPTIONS} cannot be read: {error}")
        problems.raise_if_any()
        raise AssertionError from None


def _decoder_options(path: Path, problems: Problems) -> dict[str, Any]:
    """Of WEIGHTS.decoder.yml, which Marian writes beside the weights, or of OPUS-MT's decoder.yml; else empty."""
    for name in (f"{path.name}.decoder.yml", "decoder.yml"):
        file = path.parent / name
        if file.exists():
            lines = text_models.read_lines(file, problems)
            try:
                return marian_yaml.options("\n".join(lines or []))
            except ValueError as error:
                problems.add(f"{name} cannot be read: {error}")
                return {}
    return {}


def _vocabulary_files(
    path: Path, decoder: dict[str, Any], given: tuple[Path | None, Path | None], problems: Problems
) -> list[Path]:
    """As given, else those that the decoder's options name, looked for beside the weights, not at the path named."""
    listed = decoder.get("vocabs")
    names = [path.parent / Path(str(name)).name for name in listed] if isinstance(listed, list) else []
    if len(names) > 2:
        problems.add(f"it has {len(names)} vocabularies, so several sources; one source is supported")
    found = [own or (names[min(i, len(names) - 1)] if names else None) for i, own in enumerate(given)]
    if None in found:
        problems.add(
            "no file names its vocabularies: put the decoder.yml that lists them beside it, "
            "or give --source-vocabulary and --target-vocabulary"
        )
    problems.raise_if_any()
    return [file for file in found if file is not None]


def _text_file(path: Path, vocabulary: Path, side: str, given: Path | None, codes: Path | None) -> Path | None:
    """The SentencePiece file of a side: the vocabulary itself, else as given, else SIDE.spm beside the weights."""
    if vocabulary.suffix == ".spm":
        return vocabulary
    beside = path.parent / f"{side}.spm"
    return given or (beside if beside.exists() and codes is None else None)


def _vocabulary(file: Path, text: text_models.TextModel | None, size: int, problems: Problems) -> Vocabulary:
    """The tokens of a .spm in its own order, of a table of token: id (.yml, .json), or of a file's lines."""
    entries: dict[str, Any] = {}
    if text is None:
        return Vocabulary(tokens=[], unk=0, end=0)
    pieces = text.pieces if file.suffix == ".spm" and isinstance(text, SentencePiece) else []
    if pieces:
        entries = {piece: i for i, (piece, _, _) in enumerate(pieces)}
    elif file.suffix == ".json":
        entries = read_json(file, problems)
    else:
        lines = text_models.read_lines(file, problems) or []
        try:
            listed = file.suffix not in (".yml", ".yaml")
            entries = {token: i for i, token in enumerate(lines)} if listed else marian_yaml.vocabulary(lines)
        except ValueError as error:
            problems.add(f"{file.name} is no vocabulary: {error}")
    tokens = tokens_by_id(entries, size, file.name, problems)
    for token in ("</s>", "<unk>"):
        if token not in entries and entries:
            problems.add(f"{file.name} lacks {token}")
    control = {i for i, (_, _, kind) in enumerate(pieces) if kind == CONTROL}
    control |= {i for i, token in enumerate(tokens) if token.startswith("<unused ")}
    special = {entries.get(token) for token in ("</s>", "<unk>")}
    return Vocabulary(
        tokens=[token if i in control | special else text.name(token) for i, token in enumerate(tokens)],
        unk=entries.get("<unk>", 0),
        end=entries.get("</s>", 0),
        control=frozenset(control),
        languages=language_tokens(tokens),
    )


def _generation(decoder: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for ours, theirs in (("beam_size", "beam-size"), ("length_penalty", "normalize")):
        if is_default(decoder.get(theirs)):
            found[ours] = decoder[theirs]
    return found


def _notes(decoder: dict[str, Any]) -> list[str]:
    penalty = decoder.get("word-penalty")
    return [f"decoder.yml has word-penalty {penalty!r:.20}, which the search has not"] if penalty else []
