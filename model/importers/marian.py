"""Hugging Face's Marian: every OPUS-MT model. Ids are those of vocab.json, not of the .spm files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.importers import huggingface as hf
from model.importers import sentencepiece
from model.importers.hf_vocabulary import added_tokens
from model.importers.imported import ImportedModel
from model.importers.problems import Problems, read_json
from model.importers.vocabulary import Layout, Vocabulary, add_template, arrange, ids_of

VOCAB, TARGET_VOCAB, SOURCE_SPM, TARGET_SPM = "vocab.json", "target_vocab.json", "source.spm", "target.spm"


def read(path: Path, target_language: str | None = None) -> ImportedModel:
    d = hf.open_directory(path, ("marian",))
    spm = [sentencepiece.read(path / name, d.problems) for name in (SOURCE_SPM, TARGET_SPM)]
    config, weights = hf.take_body(d)
    sizes = d.vocab_size, d.settings.size("decoder_vocab_size", "vocab_size")
    tables, bias = hf.take_tables(d, *sizes), hf.take_bias(d, sizes[1])
    positions = hf.take_positions(d, hf.sinusoids_in_halves)
    separate = not d.settings.flag("share_encoder_decoder_embeddings", True)
    names = (VOCAB, TARGET_VOCAB if separate and (path / TARGET_VOCAB).exists() else VOCAB)
    first, second = (_vocabulary(d, name, size) for name, size in zip(names, sizes, strict=True))
    _refuse_added(d, {*first.tokens, *second.tokens})
    d.problems.raise_if_any()
    assert spm[0] is not None and spm[1] is not None  # noqa: PT018
    layouts = _layouts((first, second), (spm[0], spm[1]))
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
    if first.languages and not target_language:
        model.notes.append(f"the model has {len(first.languages)} target languages; --target-language sets one")
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


def tokens_by_id(entries: dict[str, Any], size: int, name: str, problems: Problems) -> list[str]:
    """The tokens of a table of token: id, by id; an id that it lacks is called `<unused ID>`."""
    by_id = ids_of(entries, name, problems)
    for index in [index for index in by_id if not 0 <= index < size][:1]:
        problems.add(f"{name}: {by_id[index]!r:.40} has the id {index!r:.40}, and the model has {size:,} tokens")
    return [by_id.get(i, f"<unused {i}>") for i in range(size)]


def _layouts(
    vocabularies: tuple[Vocabulary, Vocabulary], spm: tuple[sentencepiece.SentencePiece, sentencepiece.SentencePiece]
) -> tuple[Layout, Layout]:
    """Equal vocabularies share one layout, with the pieces of both text models that the vocabulary lacks."""
    first, second = vocabularies
    if first == second:
        layout = arrange(first, [*spm[0].scores, *spm[1].scores])
        return layout, layout
    return arrange(first, spm[0].scores), arrange(second, spm[1].scores)


def language_tokens(tokens: list[str]) -> dict[str, int]:
    """The ids of OPUS-MT's language tokens, by code: `>>fra<<` is fra."""
    return {t[2:-2]: i for i, t in enumerate(tokens) if t.startswith(">>") and t.endswith("<<") and len(t) > 4}


def languages_by_token(
    vocabulary: Vocabulary, layout: Layout, target_language: str | None, problems: Problems
) -> dict[str, Any]:
    """The target languages, which a token before the source chooses: `>>fra<<`."""
    codes = vocabulary.languages
    if target_language and target_language not in codes:
        known = f"one of {', '.join(sorted(codes))}" if codes else "none, since the model has one target language"
        problems.add(f"--target-language takes {known}, not {target_language!r}")
    if not codes:
        return {}
    found: dict[str, Any] = {"source_prefix_by_target": {code: [layout.id_of(index)] for code, index in codes.items()}}
    return found | ({"target_language": target_language} if target_language else {})
