"""Hugging Face's T5: T5 1.0 and 1.1, Flan-T5, mT5, ByT5, MADLAD-400.

Positions are relative, norms are RMSNorm, and the decoder starts with padding. A T5 1.0 divides what its output reads
by sqrt(d_model), which goes into the decoder's last norm. In MADLAD-400 the target's language, `<2de>`, is before the
source.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from torch import Tensor

from attendant.common.byte_level import BYTES
from attendant.model.config import ModelConfig
from attendant.model.importers.families import hf_vocabulary
from attendant.model.importers.families import huggingface as hf
from attendant.model.importers.families.t5_names import PREFIX, layers_of, take_stack
from attendant.model.importers.families.vocabulary import Layout, Tables, Vocabulary, add_template, arrange
from attendant.model.importers.files import sentencepiece, tokenizer_json
from attendant.model.importers.files.byte_level import ByteLevel
from attendant.model.importers.files.sentencepiece import USER_DEFINED, SentencePiece
from attendant.model.importers.files.tokenizer_json import TokenizerJson
from attendant.model.importers.imported import ImportedModel, with_embeddings
from attendant.model.importers.problems import MOST_LAYERS, Settings, read_json

SPM = "spiece.model"
FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "gated-gelu": "gated_gelu",
    "gated-silu": "gated_silu",
    "gated-swish": "gated_silu",
}
EPSILON = 1e-6
MAX_LENGTH, MAX_LENGTH_OF_BYTES = 512, 1024  # tokens, where no flag says: relative positions have no end of their own
MOST_EXTRA = 10_000  # sentinels
SPECIAL = ("<pad>", "</s>", "<unk>")  # ByT5's first ids, in their order; MADLAD-400 has no padding
SENTINEL = re.compile(r"<extra_id_\d+>")
# Of MADLAD-400: <2de>, <2zh_Hant>, <2fr_CA>. <2Latn>, <2translate>, <2en_xx_simple> and <2> are no languages.
LANGUAGE = re.compile(r"<2([a-z]{2,3}(?:_[A-Za-z]{2,4})?)>")
Text = SentencePiece | TokenizerJson | ByteLevel


def read(path: Path, target_language: str | None = None, max_length: int | None = None) -> ImportedModel:
    d = hf.open_directory(path, ("t5", "mt5"))
    text, tokens = _read_text(d)
    config, weights = _take_body(d)
    tables = _take_tables(d, weights)
    if max_length is not None and max_length < 2:
        d.problems.add(f"--max-length must be at least 2, not {max_length}")
    d.tensors.refuse_leftovers()
    d.problems.raise_if_any()
    tables = d.problems.required(tables)
    assert text is not None  # else there was a problem
    vocabulary = _vocabulary(d, tokens)
    layout = arrange(vocabulary, text.pieces_of_text)
    config = with_embeddings(config, weights, tables, (layout, layout))
    usual = MAX_LENGTH_OF_BYTES if isinstance(text, ByteLevel) else MAX_LENGTH
    config = dataclasses.replace(config, max_length=max_length or usual)
    source, target = text.backend(layout.names), text.backend(layout.names)
    codes = {match[1]: source.encode(token).ids for token in tokens if (match := LANGUAGE.fullmatch(token))}
    hf_vocabulary.pick_language(d, "--target-language", target_language, dict.fromkeys(codes, 0))
    d.problems.raise_if_any()
    if target_language is not None:
        add_template(source, codes[target_language])
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        hf.provenance(d, "t5"),
        _generation(d, layout, config.max_length),
        ({"source_prefix_by_target": codes} if codes else {}) | hf_vocabulary.default_languages(None, target_language),
        spm=dict.fromkeys(("source", "target"), path / SPM) if isinstance(text, SentencePiece) else {},
    )
    model.check(d.problems)
    d.problems.raise_if_any()
    if max_length is None:
        model.notes.append(f"--max-length sets another number than {config.max_length} positions: they are relative")
    if codes and target_language is None:
        model.notes.append(f"the model has {len(codes)} target languages; --target-language sets one")
    return model


def _take_body(d: hf.Directory) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The options and layers; embeddings come later."""
    s = d.settings
    epsilon = s.values.get("layer_norm_epsilon", EPSILON)
    if epsilon != EPSILON:
        d.problems.add(f"{s.name}: layer_norm_epsilon is {epsilon!r:.40}; the model class has {EPSILON}")
    d_model, heads, head = s.size("d_model"), s.size("num_heads", most=2**12), s.size("d_kv", most=2**16)
    layers = s.size("num_layers", most=MOST_LAYERS)
    later = "num_decoder_layers" if s.values.get("num_decoder_layers") is not None else "num_layers"
    buckets = "relative_attention_num_buckets"
    distance = "relative_attention_max_distance"  # newer than T5 itself
    config = ModelConfig(
        d_model=d_model,
        d_ff=s.size("d_ff"),
        heads=heads,
        head_size=0 if heads * head == d_model else head,
        encoder_layers=layers,
        decoder_layers=s.size(later, most=MOST_LAYERS),
        positions="relative",
        relative_buckets=s.size(buckets) if buckets in s.values else 32,
        relative_distance=s.size(distance) if distance in s.values else 128,
        norm="pre",
        norm_kind="rms",
        activation=s.choice("feed_forward_proj", FEED_FORWARDS, _feed_forward(d)),
        bias=False,
        scale_embeddings=False,
        dropout=0.0,
        attention_dropout=0.0,
        ff_dropout=0.0,
    )
    weights: dict[str, Tensor] = {}
    for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        found = layers_of(d.tensors, side)
        if found != count:
            d.problems.add(f"{s.name}: there are {count} {side} layers, and the weights have {found}")
        else:
            weights |= take_stack(d.tensors, side, config, count)
    return config, weights


def _feed_forward(d: hf.Directory) -> str:
    """Where config.json does not say: T5's, mT5's."""
    return "gated-gelu" if d.settings.values.get("model_type") == "mt5" else "relu"


def _take_tables(d: hf.Directory, weights: dict[str, Tensor]) -> Tables | None:
    """Embeddings and output: lm_head, or where there is none the embeddings, with T5 1.0's factor in the last norm.

    As in transformers, an mT5 has no factor, and an output that is stored is not tied, whatever the options say.
    """
    s, size = d.settings, d.vocab_size
    d_model = s.size("d_model")
    copies = [f"{PREFIX}{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    table = d.tensors.first([f"{PREFIX}shared.weight", *copies], size, d_model)
    output = d.tensors.get("lm_head.weight", size, d_model) if "lm_head.weight" in d.tensors else table
    scaled = s.flag("scale_decoder_outputs", s.flag("tie_word_embeddings", True))
    if scaled and s.values.get("model_type") == "t5" and "decoder_norm.weight" in weights:
        weights["decoder_norm.weight"] = weights["decoder_norm.weight"] * d_model**-0.5
    return None if table is None or output is None else (table, table, output)


def _read_text(d: hf.Directory) -> tuple[Text | None, list[str]]:
    """How texts are cut, and the tokens by id, with the sentinels and languages among them."""
    path, size = d.path, min(d.vocab_size, 2**22)
    text: Text | None
    if (path / SPM).exists():
        text = sentencepiece.read(path / SPM, d.problems)
        found = {} if text is None else {i: piece for i, (piece, _, _) in enumerate(text.pieces)}
    elif (path / hf_vocabulary.TOKENIZER).exists():
        text = tokenizer_json.read(path / hf_vocabulary.TOKENIZER, d.problems)
        found = hf_vocabulary.tokens_of_tokenizer_json(path, d.problems)
    elif _is_bytes(d):
        text = ByteLevel({}, [], [], False)
        found = dict(enumerate(SPECIAL)) | {byte + len(SPECIAL): name for name, byte in BYTES.items()}
    else:
        d.problems.add(f"{SPM} and {hf_vocabulary.TOKENIZER} are missing, and it is no ByT5 by its tokenizer's class")
        return None, []
    listed = hf_vocabulary.added_tokens(d)
    for index, token in listed.items():
        found.setdefault(index, token.content)
    # Those that have no row cannot be read or written: transformers adds a hundred to a MADLAD-400 that it saves.
    found = {i: token for i, token in found.items() if 0 <= i < size or not SENTINEL.fullmatch(token)}
    if not any(SENTINEL.fullmatch(token) for token in found.values()):
        found |= _sentinels(d, max(found, default=-1) + 1, size, isinstance(text, ByteLevel))
    hf_vocabulary.refuse_beyond(d, found)
    tokens = [found.get(i, f"<unused {i}>") for i in range(size)]
    matched = {token.content for token in listed.values()}
    _add(text, [t for t in tokens if t not in SPECIAL and (t in matched or SENTINEL.fullmatch(t))])
    return text, tokens


def _sentinels(d: hf.Directory, first: int, size: int, upwards: bool) -> dict[int, str]:
    """<extra_id_0> and so on, which no file lists by id: the last token is the first of them, but in ByT5."""
    options = read_json(d.path / hf_vocabulary.TOKENIZER_CONFIG, d.problems, optional=True)
    named = Settings(options, hf_vocabulary.TOKENIZER_CONFIG, d.problems)
    usual = 125 if upwards else 100
    count = named.size("extra_ids", most=MOST_EXTRA) if options.get("extra_ids") else usual
    if "extra_ids" in options and not options["extra_ids"]:
        count = 0
    count = min(count, max(0, size - first))
    return {first + i: f"<extra_id_{i if upwards else count - 1 - i}>" for i in range(count)}


def _is_bytes(d: hf.Directory) -> bool:
    name = hf_vocabulary.tokenizer_class(d) or str(d.settings.values.get("_name_or_path")) + d.path.resolve().name
    return "byt5" in name.lower()


def _add(text: Text | None, tokens: list[str]) -> None:
    """Tokens that are found in a text as a whole: sentinels, and others that were added."""
    added = [AddedToken(token, normalized=False) for token in tokens]
    if isinstance(text, TokenizerJson):
        text.scores |= dict.fromkeys(tokens, 0.0)
        text.added = added
    elif isinstance(text, SentencePiece):
        pieces = {piece for piece, _, _ in text.pieces}
        text.pieces += [(token, 0.0, USER_DEFINED) for token in tokens if token not in pieces]
        text.added = added
    elif text is not None:
        text.added = added


def _vocabulary(d: hf.Directory, tokens: list[str]) -> Vocabulary:
    for token in ("</s>", "<unk>"):
        if token not in tokens:
            d.problems.add(f"the vocabulary lacks {token}")
    d.problems.raise_if_any()
    size, pad = len(tokens), d.settings.index("pad_token_id", len(tokens), 0)
    control = (i for i, token in enumerate(tokens) if token in ("<s>", *SPECIAL) or token.startswith("<unused "))
    return Vocabulary(
        tokens=tokens,
        pad=pad,
        unk=tokens.index("<unk>"),
        start=d.settings.index("decoder_start_token_id", size, pad),
        end=d.settings.index("eos_token_id", size, 1),
        control=frozenset(control),
    )


def _generation(d: hf.Directory, layout: Layout, longest: int) -> dict[str, Any]:
    """The defaults of a request; those of single tasks (task_specific_params) are not read."""
    found = hf.generation_defaults(d, layout)
    if isinstance(found.get("max_length"), int):
        found["max_length"] = min(found["max_length"], longest)
    return found
