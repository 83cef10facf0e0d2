"""Hugging Face's BART (post-norm, byte-level BPE) and mBART, mBART-50 (pre-norm, SentencePiece, languages).

Embeddings have a norm, and learned positions start at row 2. A source is `<s> text </s>` in BART, `language text </s>`
in mBART-50, and `text </s> language` in mBART-25, where the language takes the place of our end token.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from attendant.model.importers.families import hf_vocabulary
from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.fairseq_names import FINAL_NORMS
from attendant.model.importers.families.vocabulary import Layout, Vocabulary, add_template, arrange, tokens_by_id
from attendant.model.importers.files.byte_level import ByteLevel
from attendant.model.importers.files.text_models import read_lines
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import Settings, read_json

OFFSET = 2  # row of position 0 in the table of learned positions
EMBEDDING_NORMS = {
    "encoder.layernorm_embedding": "source_embedding.norm",
    "decoder.layernorm_embedding": "target_embedding.norm",
}
BART_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def read(path: Path, source_language: str | None = None, target_language: str | None = None) -> ImportedModel:
    d = hf.open_directory(path, ("bart", "mbart"))
    many = d.settings.values.get("model_type") == "mbart"
    config, weights = hf.take_body(d)
    config = hf.options_of(config, norm="pre" if many else "post", embedding_norm=True)
    hf.take_norms(d, weights, EMBEDDING_NORMS | (FINAL_NORMS if many else {}), config.d_model)
    tables, bias = hf.take_tables(d, d.vocab_size, d.vocab_size), hf.take_bias(d, d.vocab_size)
    positions = hf.take_positions(d, None, OFFSET)
    text = hf_vocabulary.read_text(path, d.problems) if many else _bytes(d)
    d.problems.raise_if_any()
    assert text is not None  # or there would be a problem
    vocabulary = _vocabulary(d, text) if isinstance(text, ByteLevel) else hf_vocabulary.shared_vocabulary(d, text)
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


def _bytes(d: hf.Directory) -> ByteLevel | None:
    if (d.path / "vocab.json").exists():
        vocabulary = read_json(d.path / "vocab.json", d.problems)
        lines = read_lines(d.path / "merges.txt", d.problems) or []
        rows: list[Any] = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    else:
        model = read_json(d.path / "tokenizer.json", d.problems).get("model")
        model = model if isinstance(model, dict) else {}
        listed = model.get("vocab")
        vocabulary = listed if isinstance(listed, dict) else {}
        rows = [m.split(" ") if isinstance(m, str) else m for m in model.get("merges") or []]
    if not all(isinstance(row, list) and len(row) == 2 and all(isinstance(p, str) for p in row) for row in rows):
        d.problems.add("a line of merges.txt is not two pieces")
        return None
    if not rows and vocabulary:
        d.problems.add("there are no merges of byte pairs: merges.txt is missing or empty")
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    if vocabulary and not alphabet <= vocabulary.keys():
        d.problems.add(
            "the vocabulary lacks some of the 256 bytes; only GPT-2's byte-level BPE can be imported for BART"
        )
    added = hf_vocabulary.added_tokens(d)
    for index, token in added.items():
        if vocabulary.setdefault(token.content, index) != index:
            d.problems.add(
                f"the added token {token.content!r:.40} has the id {index}, and in the vocabulary "
                f"{vocabulary[token.content]!r:.40}"
            )
    options = read_json(d.path / hf_vocabulary.TOKENIZER_CONFIG, d.problems, optional=True)
    prefix_space = Settings(options, hf_vocabulary.TOKENIZER_CONFIG, d.problems).flag("add_prefix_space", False)
    return ByteLevel(vocabulary, [(a, b) for a, b in rows], list(added.values()), prefix_space)


def _vocabulary(d: hf.Directory, text: ByteLevel) -> Vocabulary:
    size = d.vocab_size
    entries = {t: i for t, i in text.vocabulary.items() if (t, i) != ("<mask>", size)}  # bart-large-cnn has no such row
    tokens = tokens_by_id(entries, size, "vocab.json", d.problems)
    for token in BART_SPECIAL[:-1]:
        if token not in tokens:
            d.problems.add(f"vocab.json lacks {token}")
    d.problems.raise_if_any()
    control = frozenset(i for i, t in enumerate(tokens) if t in BART_SPECIAL or t.startswith("<unused "))
    return Vocabulary(
        tokens=tokens,
        pad=d.settings.index("pad_token_id", size, 1),
        unk=tokens.index("<unk>"),
        control=control,
        start=d.settings.index("decoder_start_token_id", size, 2),
        end=d.settings.index("eos_token_id", size, 2),
    )
