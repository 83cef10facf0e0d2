"""Hugging Face's M2M100: M2M-100, NLLB, SMaLL-100. Sources and targets each begin with a token of their language.

In SMaLL-100, a source begins with the target's language, and a target with none.
"""

from __future__ import annotations

from pathlib import Path

from model.importers import hf_vocabulary
from model.importers import huggingface as hf
from model.importers.imported import ImportedModel
from model.importers.sentencepiece import SentencePiece
from model.importers.tokenizer_json import TokenizerJson
from model.importers.vocabulary import Vocabulary, add_template, arrange

FINAL_NORMS = {"encoder.layer_norm": "encoder_norm", "decoder.layer_norm": "decoder_norm"}


def read(path: Path, source_language: str | None = None, target_language: str | None = None) -> ImportedModel:
    d = hf.open_directory(path, ("m2m_100",))
    text = hf_vocabulary.read_text(path, d.problems)
    config, weights = hf.take_body(d)
    config = hf.options_of(config, norm="pre")
    hf.take_norms(d, weights, FINAL_NORMS, config.d_model)
    tables = hf.take_tables(d, d.vocab_size, d.vocab_size)
    pad = d.settings.index("pad_token_id", d.vocab_size, 1)
    positions = hf.take_positions(d, lambda length, width: hf.fairseq_sinusoids(length, width, pad + 1))
    d.tensors.ignore(r"model\.(en|de)coder\.embed_positions\.weights")
    d.problems.raise_if_any()
    assert text is not None  # or there would be a problem
    vocabulary = one_vocabulary(d, text)
    layout = arrange(vocabulary, text.pieces_of_text)
    picked = [
        hf_vocabulary.pick_language(d, f"--{side}-language", code, vocabulary.languages)
        for side, code in (("source", source_language), ("target", target_language))
    ]
    config = hf.assemble(d, config, weights, (layout, layout), tables, positions, None)
    source, target = text.backend(layout.names), text.backend(layout.names)
    generation = hf.generation_defaults(d, layout)
    codes = {code: [layout.id_of(index)] for code, index in vocabulary.languages.items()}
    small = "small100" in hf_vocabulary.tokenizer_class(d).lower()
    before = picked[1] if small else picked[0]
    if before is not None:
        add_template(source, [layout.id_of(before)])
    if picked[1] is not None and not small:
        generation["target_prefix"] = [layout.id_of(picked[1])]
    languages = {"source_prefix_by_target": codes} if small else {"source_prefix": codes, "target_prefix": codes}
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        hf.provenance(d, "m2m"),
        generation,
        languages | given(source_language, target_language),
        spm=hf_vocabulary.spm_files(path),
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    if target_language is None or (source_language is None and not small):
        model.notes.append("--source-language and --target-language set the defaults; without them a request must")
    return model


def one_vocabulary(d: hf.Directory, text: SentencePiece | TokenizerJson) -> Vocabulary:
    """The vocabulary of both sides. No text yields language codes or fairseq's special tokens."""
    size = d.vocab_size
    tokens = hf_vocabulary.read_tokens(d, text, size)
    special = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    for token in special - {"<mask>"} - set(tokens):
        d.problems.add(f"the vocabulary lacks {token}")
    ids = {token: i for i, token in reversed(list(enumerate(tokens)))}
    return Vocabulary(
        tokens=tokens,
        pad=d.settings.index("pad_token_id", size, 1),
        unk=ids.get("<unk>", 0),
        start=d.settings.index("decoder_start_token_id", size, 2),
        end=d.settings.index("eos_token_id", size, 2),
        control=frozenset(i for i, t in enumerate(tokens) if t in special or t.startswith("<unused ")),
        languages=hf_vocabulary.languages_of(tokens),
    )


def given(source_language: str | None, target_language: str | None) -> dict[str, str]:
    both = {"source_language": source_language, "target_language": target_language}
    return {name: code for name, code in both.items() if code is not None}
