"""Hugging Face's Blenderbot: pre-norm, learned positions, and BART's byte-level BPE with a space before every text."""

from __future__ import annotations

from pathlib import Path

from attendant.model.importers.families import hf_byte_level
from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.fairseq_names import FINAL_NORMS
from attendant.model.importers.families.vocabulary import arrange
from attendant.model.importers.imported import ImportedModel

REPEATS = "encoder_no_repeat_ngram_size"


def read(path: Path) -> ImportedModel:
    d = hf.open_directory(path, ("blenderbot",))
    config, weights = hf.take_body(d)
    config = hf.options_of(config, norm="pre")
    hf.take_norms(d, weights, FINAL_NORMS, config.d_model)
    tables, bias = hf.take_tables(d, d.vocab_size, d.vocab_size), hf.take_bias(d, d.vocab_size)
    positions = hf.take_positions(d, None)
    text = hf_byte_level.read_bytes(d, prefix_space=True)
    d.problems.raise_if_any()
    text = d.problems.required(text)
    layout = arrange(hf_byte_level.byte_vocabulary(d, text, pad=0, start=1, end=2))
    config = hf.assemble(d, config, weights, (layout, layout), tables, positions, bias)
    generation = hf.generation_defaults(d, layout)
    model = ImportedModel(
        config,
        weights,
        text.backend(layout.names),
        text.backend(layout.names),
        hf.provenance(d, "blenderbot"),
        generation,
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    values = d.settings.values if d.generation is None else d.generation
    if values.get(REPEATS):
        model.notes.append(f"{REPEATS} is not applied: answers may repeat what the source says, which theirs may not")
    return model
