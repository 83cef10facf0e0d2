"""Hugging Face's Marian: every OPUS-MT model. Ids are those of vocab.json, not of the .spm files."""

from __future__ import annotations

from pathlib import Path

from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.hf_vocabulary import added_tokens
from attendant.model.importers.families.opus_languages import language_notes, language_tokens, languages_by_token
from attendant.model.importers.families.sinusoids import sinusoids_in_halves
from attendant.model.importers.families.vocabulary import Vocabulary, add_template, arrange_both, tokens_by_id
from attendant.model.importers.files import sentencepiece
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import read_json

VOCAB, TARGET_VOCAB, SOURCE_SPM, TARGET_SPM = "vocab.json", "target_vocab.json", "source.spm", "target.spm"


def read(path: Path, target_language: str | None = None) -> ImportedModel:
    d = hf.open_directory(path, ("marian",))
    texts = [sentencepiece.read(path / name, d.problems) for name in (SOURCE_SPM, TARGET_SPM)]
    config, weights = hf.take_body(d)
    sizes = d.vocab_size, d.settings.size("decoder_vocab_size", "vocab_size")
    separate = not d.settings.flag("share_encoder_decoder_embeddings", True)
    tables, bias = hf.take_tables(d, *sizes, not separate), hf.take_bias(d, sizes[1])
    positions = hf.take_positions(d, sinusoids_in_halves)
    names = (VOCAB, TARGET_VOCAB if separate and (path / TARGET_VOCAB).exists() else VOCAB)
    first, second = (_vocabulary(d, name, size) for name, size in zip(names, sizes, strict=True))
    _refuse_added(d, {*first.tokens, *second.tokens})
    d.problems.raise_if_any()
    spm = [d.problems.required(text) for text in texts]
    layouts = arrange_both((first, second), spm)
    config = hf.assemble(d, config, weights, layouts, tables, positions, bias)
    source, target = spm[0].backend(layouts[0].names), spm[1].backend(layouts[1].names)
    languages = languages_by_token(first, layouts[0], target_language, d.problems)
    if target_language and target_language in first.languages:
        add_template(source, [layouts[0].id_of(first.languages[target_language])])
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        hf.provenance(d, "marian"),
        hf.generation_defaults(d, layouts[1]),
        languages,
        spm={"source": path / SOURCE_SPM, "target": path / TARGET_SPM},
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    model.notes += language_notes(first.languages, target_language)
    return model


def _vocabulary(d: hf.Directory, name: str, size: int) -> Vocabulary:
    entries = read_json(d.path / name, d.problems)
    tokens = tokens_by_id(entries, size, name, d.problems)
    ids = {token: index for index, token in enumerate(tokens)}
    if "<unk>" not in ids and entries:
        d.problems.add(f"{name} lacks <unk>")
    pad = d.settings.index("pad_token_id", size)
    return Vocabulary(
        tokens=tokens,
        pad=pad,
        unk=ids.get("<unk>", 0),
        start=d.settings.index("decoder_start_token_id", size, pad),
        end=d.settings.index("eos_token_id", size),
        languages=language_tokens(tokens),
        control=frozenset(i for i, t in enumerate(tokens) if t.startswith("<unused ")),
    )


def _refuse_added(d: hf.Directory, known: set[str]) -> None:
    added = [token.content for token in added_tokens(d).values() if token.content not in known]
    if added:
        d.problems.add(
            f"its tokenizer has {len(added)} added tokens that {VOCAB} lacks; SentencePiece does not cut them out of a "
            f"text, so they would be lost: {', '.join(map(repr, added[:10]))}"
        )
