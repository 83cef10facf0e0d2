"""Hugging Face's BART (post-norm, byte-level BPE) and mBART, mBART-50 (pre-norm, SentencePiece, languages).

Embeddings have a norm, and learned positions start at row 2. A source is `<s> text </s>` in BART, `language text </s>`
in mBART-50, and `text </s> language` in mBART-25, where the language takes the place of our end token.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from attendant.model.importers.families import hf_vocabulary
from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.fairseq_names import FINAL_NORMS
from attendant.model.importers.families.hf_byte_level import byte_vocabulary, read_bytes
from attendant.model.importers.families.vocabulary import Layout, Vocabulary, add_template, arrange
from attendant.model.importers.files.byte_level import ByteLevel
from attendant.model.importers.imported import ImportedModel

OFFSET = 2  # row of position 0 in the table of learned positions
EMBEDDING_NORMS = {
    "encoder.layernorm_embedding": "source_embedding.norm",
    "decoder.layernorm_embedding": "target_embedding.norm",
}


def read(path: Path, source_language: str | None = None, target_language: str | None = None) -> ImportedModel:
    d = hf.open_directory(path, ("bart", "mbart"))
    many = d.settings.values.get("model_type") == "mbart"
    config, weights = hf.take_body(d)
    config = hf.options_of(config, norm="pre" if many else "post", embedding_norm=True)
    hf.take_norms(d, weights, EMBEDDING_NORMS | (FINAL_NORMS if many else {}), config.d_model)
    tables, bias = hf.take_tables(d, d.vocab_size, d.vocab_size), hf.take_bias(d, d.vocab_size)
    positions = hf.take_positions(d, None, OFFSET)
    text = hf_vocabulary.read_text(path, d.problems) if many else read_bytes(d, prefix_space=False)
    d.problems.raise_if_any()
    assert text is not None  # or there would be a problem
    if isinstance(text, ByteLevel):
        vocabulary = byte_vocabulary(d, text, pad=1, start=2, end=2)
    else:
        vocabulary = hf_vocabulary.shared_vocabulary(d, text)
    codes = vocabulary.languages
    if not many and (source_language or target_language):
        d.problems.add("BART has no languages: leave out --source-language and --target-language")
    first = hf_vocabulary.pick_language(d, "--source-language", source_language, codes) if many else None
    second = hf_vocabulary.pick_language(d, "--target-language", target_language, codes) if many else None
    after = many and _is_mbart_25(d)
    if after and first is None:
        d.problems.add("mBART writes the source's language after the source, so --source-language must name it")
    d.problems.raise_if_any()

    on_source = dataclasses.replace(vocabulary, start=first, end=first) if after and first is not None else vocabulary
    on_target = dataclasses.replace(vocabulary, start=second) if after and second is not None else vocabulary
    layouts = tuple(arrange(side, text.pieces_of_text) for side in (on_source, on_target))
    config = hf.assemble(d, config, weights, (layouts[0], layouts[1]), tables, positions, bias)
    source, target = (text.backend(layout.names) for layout in layouts)
    generation = hf.generation_defaults(d, layouts[1], forced=not after)
    if after:
        add_template(source, [], [layouts[0].id_of(vocabulary.end)])
    else:
        start = first if many else vocabulary.tokens.index("<s>")
        add_template(source, [] if start is None else [layouts[0].id_of(start)])
        if second is not None:
            generation["target_prefix"] = [layouts[1].id_of(second)]
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        hf.provenance(d, "bart"),
        generation,
        _languages(vocabulary, layouts[0], after) | hf_vocabulary.default_languages(source_language, target_language),
        spm=hf_vocabulary.spm_files(path) if many else {},
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    return model


def _is_mbart_25(d: hf.Directory) -> bool:
    """By the tokenizer's name, or by the decoder's start token: a language in mBART-25, the end token in mBART-50."""
    if "50" in hf_vocabulary.tokenizer_class(d):
        return False
    values = d.settings.values
    start, end = (values.get(f"{name}_token_id") for name in ("decoder_start", "eos"))
    return start is None or start != (2 if end is None else end)


def _languages(vocabulary: Vocabulary, layout: Layout, after: bool) -> dict[str, Any]:
    """The languages that a request may choose; none of mBART-25, whose languages are fixed by the import."""
    if after or not vocabulary.languages:
        return {}
    codes = {code: [layout.id_of(index)] for code, index in vocabulary.languages.items()}
    return {"source_prefix": codes, "target_prefix": codes}
