"""Hugging Face's Pegasus: pre-norm, Marian's sinusoids, and SentencePiece behind tokens of its pre-training."""

from __future__ import annotations

from pathlib import Path

from attendant.model.importers.families import hf_vocabulary
from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.fairseq_names import FINAL_NORMS
from attendant.model.importers.families.sinusoids import sinusoids_in_halves
from attendant.model.importers.families.vocabulary import Vocabulary, arrange
from attendant.model.importers.files.sentencepiece import SentencePiece
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import Settings, read_json

SPM = "spiece.model"
OFFSET = 103  # of ids behind those of SentencePiece, where no file says
FIRST = ("<pad>", "</s>", "<mask_1>", "<mask_2>")


def read(path: Path) -> ImportedModel:
    d = hf.open_directory(path, ("pegasus",))
    text = hf_vocabulary.read_text(path, d.problems, SPM)
    config, weights = hf.take_body(d)
    config = hf.options_of(config, norm="pre")
    hf.take_norms(d, weights, FINAL_NORMS, config.d_model)
    tables, bias = hf.take_tables(d, d.vocab_size, d.vocab_size), hf.take_bias(d, d.vocab_size)
    positions = hf.take_positions(d, sinusoids_in_halves)
    d.problems.raise_if_any()
    assert text is not None  # or there would be a problem
    layout = arrange(_vocabulary(d, text), text.pieces_of_text)
    config = hf.assemble(d, config, weights, (layout, layout), tables, positions, bias)
    model = ImportedModel(
        config,
        weights,
        text.backend(layout.names),
        text.backend(layout.names),
        hf.provenance(d, "pegasus"),
        hf.generation_defaults(d, layout),
        spm=hf_vocabulary.spm_files(path, SPM),
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    return model


def _vocabulary(d: hf.Directory, text: hf_vocabulary.Text) -> Vocabulary:
    size = min(d.vocab_size, 2**22)
    found = _pieces(d, text) if isinstance(text, SentencePiece) else None
    if found is None:
        found = hf_vocabulary.tokens_of_tokenizer_json(d.path, d.problems)
    hf_vocabulary.refuse_beyond(d, found)
    tokens = [found.get(i, f"<unused {i}>") for i in range(size)]
    if "<unk>" not in tokens:
        d.problems.add("the vocabulary lacks <unk>")
    d.problems.raise_if_any()
    unk, pad = tokens.index("<unk>"), d.settings.index("pad_token_id", size, 0)
    return Vocabulary(
        tokens=tokens,
        pad=pad,
        unk=unk,
        start=d.settings.index("decoder_start_token_id", size, pad),
        end=d.settings.index("eos_token_id", size, 1),
        control=frozenset(range(unk)),  # masks and reserved tokens are before it
    )


def _pieces(d: hf.Directory, text: SentencePiece) -> dict[int, str]:
    """Tokens by id: padding, end and masks, reserved ones up to the offset, then SentencePiece's from its third on."""
    options = read_json(d.path / hf_vocabulary.TOKENIZER_CONFIG, d.problems, optional=True)
    named = Settings(options, hf_vocabulary.TOKENIZER_CONFIG, d.problems)
    offset = named.size("offset") if "offset" in options else OFFSET
    pieces = {i + offset: piece for i, (piece, _, _) in enumerate(text.pieces) if i > 1}
    return {i: f"<unk_{i - 2}>" for i in range(len(FIRST), offset + 2)} | dict(enumerate(FIRST)) | pieces
