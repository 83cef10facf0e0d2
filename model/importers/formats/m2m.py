"""Hugging Face's M2M100: M2M-100, NLLB, SMaLL-100. Sources and targets each begin with a token of their language.

In SMaLL-100, a source begins with the target's language, and a target with none. In NLLB with `legacy_behaviour`, the
language is after a source, in the place of our end token.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from attendant.model.importers.families import hf_vocabulary
from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.fairseq_names import FINAL_NORMS
from attendant.model.importers.families.sinusoids import fairseq_sinusoids
from attendant.model.importers.families.vocabulary import Layout, Vocabulary, add_template, arrange
from attendant.model.importers.imported import ImportedModel
from attendant.model.importers.problems import Settings, read_json

SMALL100_FILE = "tokenization_small100.py"


def read(
    path: Path,
    source_language: str | None = None,
    target_language: str | None = None,
    small100: str | None = None,
) -> ImportedModel:
    d = hf.open_directory(path, ("m2m_100",))
    text = hf_vocabulary.read_text(path, d.problems)
    config, weights = hf.take_body(d)
    config = hf.options_of(config, norm="pre")
    hf.take_norms(d, weights, FINAL_NORMS, config.d_model)
    tables = hf.take_tables(d, d.vocab_size, d.vocab_size)
    pad = d.settings.index("pad_token_id", d.vocab_size, 1)
    positions = hf.take_positions(d, lambda length, width: fairseq_sinusoids(length, width, pad + 1))
    d.tensors.ignore(r"model\.(en|de)coder\.embed_positions\.weights")
    small, sign = _small100(d, small100)
    after = not small and _is_legacy(d)
    d.problems.raise_if_any()
    assert text is not None  # or there would be a problem
    vocabulary = hf_vocabulary.shared_vocabulary(d, text)
    first, second = (
        hf_vocabulary.pick_language(d, f"--{side}-language", code, vocabulary.languages)
        for side, code in (("source", source_language), ("target", target_language))
    )
    if after and None in (source_language, target_language):
        d.problems.add(
            "this NLLB writes the source's language after the source (legacy_behaviour), so --source-language must "
            "name it, and --target-language the target's"
        )
    on_source = dataclasses.replace(vocabulary, end=first) if after and first is not None else vocabulary
    layouts = arrange(on_source, text.pieces_of_text), arrange(vocabulary, text.pieces_of_text)
    config = hf.assemble(d, config, weights, layouts, tables, positions, None)
    source, target = (text.backend(layout.names) for layout in layouts)
    generation = hf.generation_defaults(d, layouts[1])
    before = second if small else first
    if after:
        add_template(source, [], [layouts[0].id_of(vocabulary.end)])
    elif before is not None:
        add_template(source, [layouts[0].id_of(before)])
    if second is not None and not small:
        generation["target_prefix"] = [layouts[1].id_of(second)]
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        hf.provenance(d, "m2m"),
        generation,
        _languages(vocabulary, layouts[1], small, after)
        | hf_vocabulary.default_languages(source_language, target_language),
        spm=hf_vocabulary.spm_files(path),
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    if small:
        model.notes.append(
            f"it is a SMaLL-100 ({sign}): the target's language is before the source; else --small100 no"
        )
    if target_language is None or (source_language is None and not small):
        model.notes.append("--source-language and --target-language set the defaults; without them a request must")
    return model


def _small100(d: hf.Directory, given: str | None) -> tuple[bool, str]:
    """Whether it is a SMaLL-100, and by what: the flag, its tokenizer's class or file, or its name."""
    if given is not None:
        if given not in ("yes", "no"):
            d.problems.add(f"--small100 takes yes or no, not {given!r:.40}")
        return given == "yes", "--small100 yes"
    if (d.path / SMALL100_FILE).exists():
        return True, SMALL100_FILE
    names = (hf_vocabulary.tokenizer_class(d), str(d.settings.values.get("_name_or_path")), d.path.resolve().name)
    found = [name for name in names if "small100" in re.sub(r"[^a-z0-9]", "", name.lower())]
    return bool(found), f"by the name {found[0]:.60}" if found else ""


def _is_legacy(d: hf.Directory) -> bool:
    name = hf_vocabulary.TOKENIZER_CONFIG
    options = Settings(read_json(d.path / name, d.problems, optional=True), name, d.problems)
    return "nllb" in hf_vocabulary.tokenizer_class(d).lower() and options.flag("legacy_behaviour", False)


def _languages(vocabulary: Vocabulary, layout: Layout, small: bool, after: bool) -> dict[str, Any]:
    """The languages that a request may choose; none where the import has put them after the source."""
    codes = {code: [layout.id_of(index)] for code, index in vocabulary.languages.items()}
    if after:
        return {}
    return {"source_prefix_by_target": codes} if small else {"source_prefix": codes, "target_prefix": codes}
