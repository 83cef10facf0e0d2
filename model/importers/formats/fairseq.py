"""fairseq's `transformer` checkpoints, with their dictionaries and BPE codes or SentencePiece model.

The decoder starts with </s>; positions are counted from 2, one more than the padding id; <s>, <pad>, </s> and <unk>
have the ids 0 to 3, which a dictionary does not list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendant.model.config import ModelConfig
from attendant.model.importers.families.fairseq_names import layers_of, take_norm, take_stack
from attendant.model.importers.families.sinusoids import fairseq_sinusoids
from attendant.model.importers.families.vocabulary import Layout, Tables, Vocabulary, arrange
from attendant.model.importers.files import pickles, text_models
from attendant.model.importers.imported import ImportedModel, is_default, with_embeddings, with_positions
from attendant.model.importers.problems import MOST_LAYERS, Problems, Settings, Tensors

BOS, PAD, EOS, UNK = range(4)  # fairseq's ids
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
FIRST_POSITION = PAD + 1
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
MOST_BITS = 100  # a token: a larger loss is none
UNSUPPORTED = {
    "adaptive_softmax_cutoff": "an adaptive softmax is not supported",
    "adaptive_input": "adaptive input embeddings are not supported",
    "no_token_positional_embeddings": "a model without positions is not supported",
    "cross_self_attention": "attention to source and target at once is not supported",
    "no_cross_attention": "a decoder without cross-attention is not supported",
    "no_decoder_final_norm": "pre-norm without a last norm is not supported",
    "relu_squared": "squared ReLU is not supported",
    "scale_attn": "scaled attention outputs are not supported",
    "scale_fc": "scaled feed-forward layers are not supported",
    "scale_heads": "scaled heads are not supported",
    "scale_resids": "scaled residuals are not supported",
    "moe_freq": "mixtures of experts are not supported",
}


def read(
    path: Path, dict_source: Path, dict_target: Path, bpe_codes: Path | None = None, sentencepiece: Path | None = None
) -> ImportedModel:
    problems = Problems(path)
    held = pickles.table(pickles.load(path, problems))
    text = text_models.choose(sentencepiece, bpe_codes, problems)
    dictionaries = [read_dictionary(file, problems) for file in (dict_source, dict_target)]
    problems.raise_if_any()
    settings, tensors = _parts(held, path, problems)
    problems.raise_if_any()
    tensors.refuse_wrapped()

    config, weights = take_body(settings, tensors)
    tables = _tables(settings, tensors, config.d_model, [len(tokens) for tokens in dictionaries])
    positions = _positions(settings, tensors, config.d_model)
    tensors.ignore(r"(en|de)coder\.(version|embed_positions\._float_tensor)")
    tensors.refuse_leftovers()
    problems.raise_if_any()

    text = problems.required(text)
    layouts = _layouts(dictionaries, text)
    config = with_positions(with_embeddings(config, weights, problems.required(tables), layouts), weights, *positions)
    provenance = {"format": "fairseq", "arch": settings.values.get("arch"), "weights": path.name, "name": path.stem}
    model = ImportedModel(
        config,
        weights,
        text.backend(layouts[0].names),
        text.backend(layouts[1].names),
        provenance,
        _generation(held or {}),
        spm={"source": sentencepiece, "target": sentencepiece} if sentencepiece else {},
    )
    model.notes += [*_recorded_loss(held or {}), *text_models.hints(text, dictionaries[0])]
    model.check(problems)
    problems.raise_if_any()
    return model


def read_dictionary(path: Path, problems: Problems) -> list[str]:
    """Tokens by id: the four special ones, then one for each line of `token count`."""
    lines = text_models.read_lines(path, problems)
    if lines is None:
        return SPECIAL
    tokens = []
    for number, line in enumerate(lines, start=1):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdecimal():
            problems.add(f"{path.name}, line {number}, is {line!r:.40}; a dictionary's line is a token and its count")
            return SPECIAL
        tokens.append(token)
    return [*SPECIAL, *tokens]


def _parts(held: dict[Any, Any] | None, path: Path, problems: Problems) -> tuple[Settings, Tensors]:
    """The options, of `args` or of the newer `cfg.model`, and the weights."""
    held = held or {}
    options = pickles.table(held.get("args")) or pickles.table(_config(held).get("model"))
    weights = pickles.table(held.get("model"))
    if options is None or weights is None:
        problems.add("it holds no `model` with `args` or `cfg`, as fairseq's checkpoints do")
    tensors = pickles.tensors_of(weights or {}, path, problems)
    return Settings(options or {}, "its options", problems), Tensors(tensors, problems)


def _config(held: dict[Any, Any]) -> dict[Any, Any]:
    return pickles.table(held.get("cfg")) or {}


def take_body(settings: Settings, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    s, problems = settings, settings.problems
    for name, why in UNSUPPORTED.items():
        s.refuse_if(name, why)
    d_model = s.same("encoder_embed_dim", "decoder_embed_dim")
    d_ff = s.same("encoder_ffn_embed_dim", "decoder_ffn_embed_dim")
    pre = s.flag("encoder_normalize_before", False)
    if pre != s.flag("decoder_normalize_before", False):
        problems.add("its encoder and decoder must both be pre-norm or both post-norm (encoder_normalize_before)")
    config = ModelConfig(
        d_model=d_model,
        d_ff=d_ff,
        heads=s.same("encoder_attention_heads", "decoder_attention_heads"),
        encoder_layers=s.size("encoder_layers", most=MOST_LAYERS),
        norm="pre" if pre else "post",
        decoder_layers=s.size("decoder_layers", most=MOST_LAYERS),
        dropout=0.0,
        attention_dropout=0.0,
        ff_dropout=0.0,
        activation=s.choice("activation_fn", ACTIVATIONS, "relu"),
        scale_embeddings=not s.flag("no_scale_embedding", False),
        embedding_norm=s.flag("layernorm_embedding", False),
    )
    weights: dict[str, Tensor] = {}
    norms: dict[str, Tensor | None] = {}
    for side, ours, layers in (
        ("encoder", "source_embedding", config.encoder_layers),
        ("decoder", "target_embedding", config.decoder_layers),
    ):
        found = layers_of(tensors, "", side)
        if found != layers:
            problems.add(f"its options say {layers} {side}_layers, and the weights have {found}")
        else:
            weights |= take_stack(tensors, "", side, layers, d_model, d_ff)
        if pre:
            norms |= take_norm(tensors, f"{side}.layer_norm", f"{side}_norm", d_model)
        if config.embedding_norm:
            norms |= take_norm(tensors, f"{side}.layernorm_embedding", f"{ours}.norm", d_model)
    return config, weights | {name: value for name, value in norms.items() if value is not None}


def _tables(s: Settings, tensors: Tensors, d_model: int, sizes: list[int]) -> Tables | None:
    shared = s.flag("share_all_embeddings", False)
    tied = shared or s.flag("share_decoder_input_output_embed", False)
    source = tensors.get("encoder.embed_tokens.weight", sizes[0], d_model)
    target = tensors.get("decoder.embed_tokens.weight", sizes[1], d_model)
    names = ["decoder.output_projection.weight", "decoder.embed_out"]
    if tied:
        names.append("decoder.embed_tokens.weight")
    output = tensors.first(names, sizes[1], d_model)
    return None if source is None or target is None or output is None else (source, target, output)


def _positions(s: Settings, tensors: Tensors, d_model: int) -> list[Tensor]:
    found = []
    for side, length in (("encoder", s.size("max_source_positions")), ("decoder", s.size("max_target_positions"))):
        if s.flag(f"{side}_learned_pos", False):
            table = tensors.get(f"{side}.embed_positions.weight", length + FIRST_POSITION, d_model)
            found.append(torch.zeros(1, 1) if table is None else table[FIRST_POSITION:])
        else:
            fits = length * d_model < 2**28
            found.append(fairseq_sinusoids(length, d_model, FIRST_POSITION) if fits else torch.zeros(1, 1))
    return found


def _layouts(dictionaries: list[list[str]], text: text_models.TextModel) -> tuple[Layout, Layout]:
    """The layouts of both sides."""
    layouts = [
        arrange(
            Vocabulary(
                tokens=[*SPECIAL, *map(text.name, tokens[len(SPECIAL) :])],
                pad=PAD,
                unk=UNK,
                start=EOS,
                end=EOS,
                control=frozenset([BOS]),
            ),
            text.pieces_of_text,
        )
        for tokens in dictionaries
    ]
    return layouts[0], layouts[1]


def _generation(held: dict[Any, Any]) -> dict[str, Any]:
    values = pickles.table(_config(held).get("generation")) or {}
    named = {"beam_size": "beam", "length_penalty": "lenpen"}
    return {ours: values[theirs] for ours, theirs in named.items() if is_default(values.get(theirs))}


def _recorded_loss(held: dict[Any, Any]) -> list[str]:
    """A note on the loss that fairseq had on its validation data when it wrote the checkpoint."""
    loss = (pickles.table(held.get("extra_state")) or {}).get("val_loss")
    if not isinstance(loss, float | int) or isinstance(loss, bool) or not 0 < loss < MOST_BITS:
        return []
    options = pickles.table(held.get("args")) or pickles.table(_config(held).get("criterion")) or {}
    criterion = options.get("criterion", options.get("_name"))
    named = f"{criterion:.40}, " if isinstance(criterion, str) else ""
    return [f"its checkpoint records a loss of {loss:.2f} on its own validation data ({named}bits a token)"]
