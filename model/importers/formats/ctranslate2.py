"""CTranslate2's directories of a TransformerSpec: model.bin, config.json, vocabularies. Integer weights become f32."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendant.model.config import ModelConfig
from attendant.model.importers.families.hf_vocabulary import languages_of
from attendant.model.importers.families.opus_languages import language_notes, language_tokens, languages_by_token
from attendant.model.importers.families.sinusoids import fairseq_sinusoids
from attendant.model.importers.families.vocabulary import ZEROS, Tables, Vocabulary, add_template, arrange_both
from attendant.model.importers.files import ctranslate2_file, text_models
from attendant.model.importers.files.stored import stored_tensors
from attendant.model.importers.imported import ImportedModel, fold_sigmoid_gelu, with_embeddings, with_positions
from attendant.model.importers.problems import MOST_LAYERS, Problems, Settings, Tensors, join, read_json

ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu", 4: "silu"}
SIGMOID_GELU = 4  # x sigmoid(1.702 x): imported as SiLU, with factors folded into the weights around it
NAMES_OF_ACTIVATIONS = {1: "gelu by tanh", 5: "tanh", 6: "sigmoid"}
MANY_LANGUAGES = 10  # with so many tokens that look like language codes, a model is multilingual
POSITIONS = 512  # rows of a table of sinusoids, which CTranslate2 does not store
OLD_NAMES = ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads")
OLD_SCALES = ("embeddings_0/multiply_by_sqrt_depth", "embeddings/multiply_by_sqrt_depth")
UNSUPPORTED = ("alibi", "multi_query_attention", "project_in/weight", "sliding_window", "final_logit_softcapping")
ATTRIBUTES = (
    r"(en|de)coder/(activation|alibi\w*|alignment_\w+|embeddings_merge|multi_query_attention|num_heads|pre_norm"
    r"|scale_\w+|start_from_zero_embedding|embeddings(_0)?/multiply_by_sqrt_depth)"
    r"|(unk|bos|eos)_token|with_\w+|user_decoder_start_tokens"
)


def read(
    path: Path,
    sentencepiece: Path | None = None,
    source_sentencepiece: Path | None = None,
    target_sentencepiece: Path | None = None,
    bpe_codes: Path | None = None,
    target_language: str | None = None,
) -> ImportedModel:
    problems = Problems(path)
    if not path.is_dir():
        problems.add("it is not a directory; name the one that holds model.bin")
    problems.raise_if_any()
    spm = [source_sentencepiece or sentencepiece, target_sentencepiece or sentencepiece]
    chosen = [text_models.choose(file, bpe_codes, problems) for file in spm]
    tokens = [_tokens(path, side, problems) for side in ("source", "target")]
    held, settings = _load(path, problems)
    texts = [problems.required(text) for text in chosen]
    _refuse_unsupported(held, settings)
    tensors = Tensors(held.arrays, problems)
    config, activation = _config(held, tensors)
    weights = _body_weights(tensors, config, activation)
    tables, bias = _tables(tensors, len(tokens[0]), len(tokens[1]), config.d_model)
    positions = [_positions(tensors, side, config.d_model) for side in ("encoder", "decoder")]
    tensors.ignore(ATTRIBUTES)
    tensors.refuse_leftovers()
    zero = held.value("decoder/start_from_zero_embedding", 0) != 0
    if (languages := len(languages_of(tokens[0]))) >= MANY_LANGUAGES:
        problems.add(
            f"its vocabulary has {languages} languages, and CTranslate2's files do not say where a text's language is "
            "written; import the model that it was converted from"
        )
    if config.embedding_norm and not _adds_to_source(settings) and _starts_with_end(settings):
        problems.add(
            "it is a BART: Hugging Face's tokenizer puts <s> before its sources and cuts texts into bytes; the files "
            "of CTranslate2 do not say so; import the model that it was converted from with attendant import bart"
        )
    vocabularies = [_vocabulary(t, settings, text, zero) for t, text in zip(tokens, texts, strict=True)]
    problems.raise_if_any()

    layouts = arrange_both(vocabularies, texts)
    config = with_embeddings(config, weights, problems.required(tables), layouts, bias)
    config = with_positions(config, weights, *map(problems.required, positions))
    config = dataclasses.replace(config, source_end=_source_ends(settings))
    source, target = (text.backend(layout.names) for text, layout in zip(texts, layouts, strict=True))
    bos, codes = str(settings.values.get("bos_token")), vocabularies[0].languages
    before = [tokens[0].index(bos)] if settings.flag("add_source_bos", False) and bos in tokens[0] else []
    before += [codes[target_language]] if target_language in codes else []
    add_template(source, [layouts[0].id_of(index) for index in before])
    model = ImportedModel(
        config,
        weights,
        source,
        target,
        {"format": "ctranslate2", "name": path.resolve().name},
        languages=languages_by_token(vocabularies[0], layouts[0], target_language, problems),
        spm={side: file for side, file in zip(("source", "target"), spm, strict=True) if file},
    )
    model.notes += text_models.hints(texts[0], tokens[0])
    if held.turned_back:
        kinds = " and ".join(sorted(held.turned_back))
        model.provenance["turned_back"] = sorted(held.turned_back)
        model.notes.append(f"its {kinds} weights were turned back into f32; what rounding lost stays lost")
    model.notes += language_notes(codes, target_language)
    model.check(problems)
    problems.raise_if_any()
    return model


def _load(path: Path, problems: Problems) -> tuple[ctranslate2_file.ModelFile, Settings]:
    settings = Settings(read_json(path / "config.json", problems, optional=True), "config.json", problems)
    try:
        held = ctranslate2_file.read(path / "model.bin")
    except (OSError, ValueError) as error:
        problems.add(f"model.bin is no whole model of CTranslate2: {getattr(error, 'strerror', None) or error}")
    problems.raise_if_any()
    if held.spec not in ("TransformerSpec", *ctranslate2_file.HEADS):
        problems.add(f"model.bin holds a {held.spec:.60}; only a TransformerSpec, encoder and decoder, can be imported")
    held.arrays = stored_tensors(held.arrays, "model.bin", problems)
    problems.raise_if_any()
    return held, _settings(held, settings)


def _tables(
    tensors: Tensors, source_vocab: int, target_vocab: int, d_model: int
) -> tuple[Tables | None, Tensor | None]:
    """The tables, None if one is missing, and the output's bias where there is one."""
    names = ["encoder/embeddings_0/weight", "encoder/embeddings/weight"]
    source = tensors.first(names, source_vocab, d_model)
    target = tensors.get("decoder/embeddings/weight", target_vocab, d_model)
    output = tensors.get("decoder/projection/weight", target_vocab, d_model)
    bias = tensors.get("decoder/projection/bias", target_vocab) if "decoder/projection/bias" in tensors else None
    return None if source is None or target is None or output is None else (source, target, output), bias


def _settings(held: ctranslate2_file.ModelFile, settings: Settings) -> Settings:
    """Those of config.json, or in older formats of model.bin; renames attributes of old revisions to current names."""
    if held.revision < 5:
        for side in ("encoder", "decoder"):
            for name in [name for name in OLD_NAMES if name in held.arrays]:
                held.arrays.setdefault(f"{side}/{name}", held.arrays[name])
        for name in OLD_NAMES:
            held.arrays.pop(name, None)
    if held.version >= 6:
        return settings
    values: dict[str, Any] = {
        f"{name}_token": held.text(f"{name}_token", default)
        for name, default in (("unk", "<unk>"), ("bos", "<s>"), ("eos", "</s>"))
    }
    values |= {f"add_source_{end}": held.value(f"with_source_{end}", 0) != 0 for end in ("bos", "eos")}
    start = "bos" if held.value("with_target_bos", 1) else "eos"
    values["decoder_start_token"] = None if held.value("user_decoder_start_tokens", 0) else values[f"{start}_token"]
    return Settings(values, "model.bin", settings.problems)


def _source_ends(settings: Settings) -> bool:
    """Whether sources end with the end token. OpenNMT-py's do not; Hugging Face's tokenizers add it by themselves."""
    return settings.flag("add_source_eos", False) or settings.values.get("decoder_start_token", "<s>") != "<s>"


def _adds_to_source(settings: Settings) -> bool:
    return settings.flag("add_source_bos", False) or settings.flag("add_source_eos", False)


def _starts_with_end(settings: Settings) -> bool:
    return bool(settings.values.get("decoder_start_token") == settings.values.get("eos_token", "</s>"))


def _positions(tensors: Tensors, side: str, d_model: int) -> Tensor | None:
    """The table that is stored, else the sinusoids that CTranslate2 computes, from position 1 on."""
    name = f"{side}/position_encodings/encodings"
    return tensors.get(name, -1, d_model) if name in tensors else fairseq_sinusoids(POSITIONS, d_model, 1)


def _scale(held: ctranslate2_file.ModelFile, side: str, d_model: int) -> float:
    """The factor of embeddings: stored as a flag or as the number itself; sqrt(d_model) if neither is there."""
    names = [f"{side}/{name}" for name in ("scale_embeddings", *OLD_SCALES)]
    found = next((held.arrays[name] for name in names if name in held.arrays), None)
    if found is None or found.numel() != 1:
        return math.sqrt(d_model)
    value = float(found.float().reshape(()))
    if found.dtype == torch.int8:
        return math.sqrt(d_model) if value else 1.0
    return value


def _refuse_unsupported(held: ctranslate2_file.ModelFile, settings: Settings) -> None:
    problems = settings.problems
    for side in ("encoder", "decoder"):
        for name in UNSUPPORTED:
            if f"{side}/{name}" in held.arrays and bool(held.arrays[f"{side}/{name}"].float().abs().sum() > 0):
                problems.add(f"{side}/{name} is not supported")
    if "encoder/embeddings_1/weight" in held.arrays:
        problems.add("it has several source embeddings (features), which is not supported")
    epsilon = settings.values.get("layer_norm_epsilon")
    if epsilon is not None and epsilon != 1e-5:
        problems.add(f"config.json: layer_norm_epsilon is {epsilon!r:.40}; the model class has 1e-05")
    if any(name.endswith("/gamma") and f"{name[:-5]}beta" not in held.arrays for name in held.arrays):
        problems.add("its norms have no bias, so they are RMSNorm, which is not supported")
    for kind in ("relative", "rotary"):
        if any(f"/{kind}_" in name for name in held.arrays):
            problems.add(f"its positions are {kind}; a table of positions and sinusoids are supported")
    if settings.values.get("decoder_start_token", "") is None:
        problems.add("its targets start with tokens that are given with each text (decoder_start_token is null)")


def _config(held: ctranslate2_file.ModelFile, tensors: Tensors) -> tuple[ModelConfig, int]:
    """The model's shape, as far as the layers show it, and CTranslate2's number of the activation."""
    problems = tensors.problems
    first = tensors.tensors.get("encoder/layer_0/ffn/linear_0/weight")
    if first is None or first.dim() != 2:
        problems.add("encoder/layer_0/ffn/linear_0/weight is missing")
        problems.raise_if_any()
    assert first is not None
    d_ff, d_model = first.shape

    def both(name: str, default: int) -> int:
        values = [int(held.value(f"{side}/{name}", default)) for side in ("encoder", "decoder")]
        if values[0] != values[1]:
            problems.add(f"{name} is {values[0]} in the encoder and {values[1]} in the decoder; they must be equal")
        return values[0]

    heads, pre, kind = both("num_heads", 0), both("pre_norm", 1), both("activation", 0)
    if kind not in ACTIVATIONS:
        problems.add(f"its activation is {NAMES_OF_ACTIVATIONS.get(kind, kind)}; relu, gelu and swish are supported")
    scales = [_scale(held, side, d_model) for side in ("encoder", "decoder")]
    scaled = all(math.isclose(value, math.sqrt(d_model), rel_tol=1e-4) for value in scales)
    if not scaled and scales != [1, 1]:
        problems.add(f"it multiplies embeddings by {scales}; the square root of {d_model}, or 1, is supported on both")
    counts = {side: tensors.layers(rf"{side}/layer_(\d+)/") for side in ("encoder", "decoder")}
    if not 0 < min(counts.values()) <= max(counts.values()) <= MOST_LAYERS:
        problems.add(f"it has {counts} layers; from 1 to {MOST_LAYERS} are supported")
        problems.raise_if_any()
    final = "encoder/layer_norm/gamma" in tensors
    if pre and not final:
        problems.add("it is pre-norm without a norm after each stack, which is not supported")
    config = ModelConfig(
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        encoder_layers=counts["encoder"],
        decoder_layers=counts["decoder"],
        norm="pre" if pre else "post",
        final_norm=final and not pre,
        activation=ACTIVATIONS.get(kind, "relu"),
        scale_embeddings=scaled,
        embedding_norm="encoder/layernorm_embedding/gamma" in tensors,
        dropout=0.0,
        attention_dropout=0.0,
        ff_dropout=0.0,
    )
    return config, kind


def _body_weights(tensors: Tensors, config: ModelConfig, activation: int) -> dict[str, Tensor]:
    """The weights of both stacks, without embeddings and output."""
    found: dict[str, Tensor | None] = {}
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    for side, embedding in (("encoder", "source_embedding"), ("decoder", "target_embedding")):
        for i in range(layers[side]):
            found |= _layer(tensors, side, i, config.d_model, config.d_ff)
        if "encoder/layer_norm/gamma" in tensors:
            found |= _norm(tensors, f"{side}/layer_norm", f"{side}_norm", config.d_model)
        if config.embedding_norm:
            found |= _norm(tensors, f"{side}/layernorm_embedding", f"{embedding}.norm", config.d_model)
    weights = {name: value for name, value in found.items() if value is not None}
    if activation == SIGMOID_GELU:
        fold_sigmoid_gelu(weights)
    return weights


def _layer(tensors: Tensors, side: str, i: int, d: int, d_ff: int) -> dict[str, Tensor | None]:
    theirs, ours = f"{side}/layer_{i}", f"{side}.{i}"
    found = _linear(tensors, f"{theirs}/self_attention/linear_0", f"{ours}.self_attention.project_in", 3 * d, d)
    found |= _linear(tensors, f"{theirs}/self_attention/linear_1", f"{ours}.self_attention.project_out", d, d)
    found |= _norm(tensors, f"{theirs}/self_attention/layer_norm", f"{ours}.self_residual.norm", d)
    if side == "decoder":
        parts = [_linear(tensors, f"{theirs}/attention/linear_{n}", "", size, d) for n, size in ((0, d), (1, 2 * d))]
        for leaf in (".weight", ".bias"):
            found[f"{ours}.cross_attention.project_in{leaf}"] = join(part[leaf] for part in parts)
        found |= _linear(tensors, f"{theirs}/attention/linear_2", f"{ours}.cross_attention.project_out", d, d)
        found |= _norm(tensors, f"{theirs}/attention/layer_norm", f"{ours}.cross_residual.norm", d)
    found |= _linear(tensors, f"{theirs}/ffn/linear_0", f"{ours}.feed_forward.widen", d_ff, d)
    found |= _linear(tensors, f"{theirs}/ffn/linear_1", f"{ours}.feed_forward.narrow", d, d_ff)
    return found | _norm(tensors, f"{theirs}/ffn/layer_norm", f"{ours}.feed_residual.norm", d)


def _linear(tensors: Tensors, theirs: str, ours: str, out: int, into: int) -> dict[str, Tensor | None]:
    """Weight and bias of a layer; a bias that it lacks is zeros."""
    bias = tensors.get(f"{theirs}/bias", out) if f"{theirs}/bias" in tensors else torch.zeros(out)
    return {f"{ours}.weight": tensors.get(f"{theirs}/weight", out, into), f"{ours}.bias": bias}


def _norm(tensors: Tensors, theirs: str, ours: str, d: int) -> dict[str, Tensor | None]:
    return {f"{ours}.weight": tensors.get(f"{theirs}/gamma", d), f"{ours}.bias": tensors.get(f"{theirs}/beta", d)}


def _tokens(path: Path, side: str, problems: Problems) -> list[str]:
    """A side's vocabulary, or the one of both sides: a JSON list, or in older models lines."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (path / f"{name}.json").exists():
            lines = text_models.read_lines(path / f"{name}.json", problems)
            try:
                tokens = json.loads("\n".join(lines or []))
            except (ValueError, RecursionError):
                tokens = None
            if isinstance(tokens, list) and tokens and all(isinstance(token, str) for token in tokens):
                return tokens
            problems.add(f"{name}.json is no list of tokens")
            return [""]
        if (path / f"{name}.txt").exists():
            return text_models.read_lines(path / f"{name}.txt", problems) or [""]
    problems.add(f"{side}_vocabulary.json and shared_vocabulary.json are missing")
    return [""]


def _vocabulary(tokens: list[str], settings: Settings, text: text_models.TextModel, zero: bool) -> Vocabulary:
    """CTranslate2 has no padding token, or one without special meaning; the start token may be a zero vector."""
    ids = {token: i for i, token in reversed(list(enumerate(tokens)))}

    def of(name: str, default: str) -> int:
        token = str(settings.values.get(name) or default)
        if token not in ids:
            settings.problems.add(f"the vocabulary lacks {token!r:.40}, its {name}")
        return ids.get(token, 0)

    unk, end = of("unk_token", "<unk>"), of("eos_token", "</s>")
    start = ZEROS if zero else of("decoder_start_token", "<s>")
    pad = next((ids[name] for name in ("<pad>", "<blank>") if name in ids), ZEROS)
    special = {unk, end, start, pad, *(ids[name] for name in ("<s>", "<mask>") if name in ids)}
    return Vocabulary(
        tokens=[token if i in special else text.name(token) for i, token in enumerate(tokens)],
        pad=pad,
        unk=unk,
        start=start,
        end=end,
        control=frozenset(special),
        languages=language_tokens(tokens),
    )
