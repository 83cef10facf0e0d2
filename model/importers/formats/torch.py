"""A plain `nn.Transformer` with embeddings and an output layer, as people write it from torch's tutorial.

MAP.json says what a state dict cannot: which weights are which, the heads, the special ids, the vocabularies.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from attendant.model.config import ModelConfig
from attendant.model.importers.families.vocabulary import Tables, Vocabulary, add_template, arrange, ids_of
from attendant.model.importers.files import pickles, text_models
from attendant.model.importers.imported import ImportedModel, with_embeddings, with_positions
from attendant.model.importers.problems import (
    MOST_LAYERS,
    WRAPPERS,
    Problems,
    Settings,
    Tensors,
    read_json,
)
from attendant.model.text.tokenizer import BOS
from attendant.model.transformer import sinusoids

FIELDS = {
    "heads": "the number of attention heads",
    "source_embedding": "the name of the source embedding's weight",
    "target_embedding": "the name of the target embedding's weight",
    "output": "the name of the output layer, without .weight",
    "pad": "the id of padding",
    "unk": "of the unknown token",
    "start": "of the start token",
    "end": "of the end token",
    "source_vocabulary": "a file of tokens in the order of their ids, one on a line, or a JSON table of token: id",
    "target_vocabulary": "the same of the target side",
}
OPTIONAL = {
    "transformer": "transformer",
    "activation": "relu",
    "norm_first": False,
    "scale_embeddings": True,
    "positions": "sinusoidal",
    "max_length": 512,
    "source_starts": True,
    "text": "words",
    "source_sentencepiece": None,
    "target_sentencepiece": None,
    "bpe_codes": None,
}
FIRST = "encoder.layers.0.linear1.weight"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}
NORMS = {"encoder": ["self_residual", "feed_residual"], "decoder": ["self_residual", "cross_residual", "feed_residual"]}


def read(path: Path, map: Path) -> ImportedModel:  # noqa: A002  (the flag's name)
    problems = Problems(path)
    values = read_json(map, problems)
    for name, meaning in FIELDS.items():
        if name not in values and values:
            problems.add(f"{map.name} lacks {name}: {meaning}")
    for name in values.keys() - FIELDS.keys() - OPTIONAL.keys():
        problems.add(f"{map.name} has {name!r:.40}, which it does not take")
    held = pickles.table(pickles.load(path, problems))
    problems.raise_if_any()
    s = Settings({**OPTIONAL, **values}, map.name, problems)
    held = held and pickles.table(held.get("state_dict", held.get("model_state_dict", held)))
    if held is None:
        problems.add("it holds no table of weights, which is what torch.save(model.state_dict(), ...) writes")
    tensors = Tensors(pickles.tensors_of(problems.required(held), path, problems), problems)
    problems.raise_if_any()
    texts = [_text(s, map.parent, side) for side in ("source", "target")]
    tokens = [_tokens(map.parent / str(values[f"{side}_vocabulary"]), problems) for side in ("source", "target")]

    config, weights = _body(s, tensors)
    tables, bias = _tables(s, tensors, len(tokens[0]), len(tokens[1]), config.d_model)
    positions = _positions(s, tensors, config.d_model)
    tensors.refuse_leftovers()
    vocabularies = [_vocabulary(s, text, t) for text, t in zip(texts, tokens, strict=True)]
    problems.raise_if_any()

    sides = [problems.required(text) for text in texts]
    first, second = (arrange(v, text.pieces_of_text) for v, text in zip(vocabularies, sides, strict=True))
    config = with_embeddings(config, weights, problems.required(tables), (first, second), bias)
    config = with_positions(config, weights, positions, positions)
    source, target = sides[0].backend(first.names), sides[1].backend(second.names)
    if s.flag("source_starts", True):
        add_template(source, [BOS])
    spm = {
        side: map.parent / str(values[f"{side}_sentencepiece"])
        for side in ("source", "target")
        if values.get(f"{side}_sentencepiece")
    }
    provenance = {"format": "torch", "weights": path.name, "map": values, "name": path.stem}
    model = ImportedModel(config, weights, source, target, provenance, spm=spm)
    model.check(problems)
    problems.raise_if_any()
    return model


def _tables(
    s: Settings, tensors: Tensors, source_vocab: int, target_vocab: int, d_model: int
) -> tuple[Tables | None, Tensor | None]:
    """The tables, None if one is missing, and the output's bias where there is one."""
    source = tensors.get(str(s.values["source_embedding"]), source_vocab, d_model)
    target = tensors.get(str(s.values["target_embedding"]), target_vocab, d_model)
    name = str(s.values["output"])
    output = tensors.get(f"{name}.weight", target_vocab, d_model)
    bias = tensors.get(f"{name}.bias", target_vocab) if f"{name}.bias" in tensors else None
    return None if source is None or target is None or output is None else (source, target, output), bias


def _vocabulary(s: Settings, text: text_models.TextModel | None, tokens: list[str]) -> Vocabulary:
    pad, unk, start, end = (s.index(name, len(tokens)) for name in ("pad", "unk", "start", "end"))
    if text is not None:
        tokens = [t if i in (pad, unk, start, end) else text.name(t) for i, t in enumerate(tokens)]
    return Vocabulary(tokens=tokens, pad=pad, unk=unk, start=start, end=end)


def _text(s: Settings, folder: Path, side: str) -> text_models.TextModel | None:
    spm, codes = s.values.get(f"{side}_sentencepiece"), s.values.get("bpe_codes")
    if not spm and not codes:
        kind = s.choice("text", {"words": "words", "chars": "chars"}, "words")
        return text_models.Characters() if kind == "chars" else text_models.Words()
    return text_models.choose(folder / str(spm) if spm else None, folder / str(codes) if codes else None, s.problems)


def _tokens(path: Path, problems: Problems) -> list[str]:
    if path.suffix != ".json":
        return text_models.read_lines(path, problems) or [""]
    entries = read_json(path, problems)
    by_id = ids_of(entries, path.name, problems)
    if entries and sorted(by_id) != list(range(len(entries))):
        problems.add(f"{path.name} must give each id from 0 to {len(entries) - 1} to one token")
    return [by_id.get(i, "") for i in range(len(entries))] or [""]


def _body(s: Settings, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    prefix = f"{s.values['transformer']}." if s.values["transformer"] else ""
    first = tensors.tensors.get(f"{prefix}encoder.layers.0.linear1.weight")
    if first is None or first.dim() != 2:
        s.problems.refuse(f"there is no {prefix}{FIRST}{_called(tensors, s.name)}")
    assert first is not None
    d_ff, d_model = first.shape
    counts = {side: tensors.layers(rf"{prefix}{side}\.layers\.(\d+)\.") for side in ("encoder", "decoder")}
    if max(counts.values()) > MOST_LAYERS:
        s.problems.add(f"it has more than {MOST_LAYERS} layers")
        s.problems.raise_if_any()
    final = f"{prefix}encoder.norm.weight" in tensors
    pre = s.flag("norm_first", False)
    if pre and not final:
        s.problems.add("it is pre-norm without a norm after each stack, which is not supported")
    config = ModelConfig(
        d_model=d_model,
        d_ff=d_ff,
        heads=s.size("heads"),
        encoder_layers=counts["encoder"] or 1,
        decoder_layers=counts["decoder"] or 1,
        norm="pre" if pre else "post",
        final_norm=final and not pre,
        activation=s.choice("activation", ACTIVATIONS, "relu"),
        scale_embeddings=s.flag("scale_embeddings", True),
        dropout=0.0,
        attention_dropout=0.0,
        ff_dropout=0.0,
    )
    weights: dict[str, Tensor | None] = {}
    for side, layers in counts.items():
        for i in range(layers):
            weights |= _layer(tensors, f"{prefix}{side}.layers.{i}", f"{side}.{i}", side, d_model, d_ff)
        if final:
            weights |= _pair(tensors, f"{prefix}{side}.norm", f"{side}_norm", (d_model,))
    return config, {name: value for name, value in weights.items() if value is not None}


def _called(tensors: Tensors, map_name: str) -> str:
    """What the nn.Transformer is called in this file, and who may have put a prefix before its name."""
    found = [name.removesuffix(FIRST).removesuffix(".") for name in tensors.tensors if name.endswith(FIRST)]
    if not found:
        return ": is it a state dict of an nn.Transformer?"
    who = [f"{prefix} is put there by {who}" for prefix, (who, _) in WRAPPERS.items() if found[0].startswith(prefix)]
    return "; ".join([f': "transformer" in {map_name} must be "{found[0][:80]}"', *who[:1]])


def _layer(tensors: Tensors, theirs: str, ours: str, side: str, d: int, d_ff: int) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {}
    attentions = {"self_attn": "self_attention"} | ({"multihead_attn": "cross_attention"} if side == "decoder" else {})
    for theirs_name, ours_name in attentions.items():
        for part, shape in (("weight", (3 * d, d)), ("bias", (3 * d,))):
            found[f"{ours}.{ours_name}.project_in.{part}"] = tensors.get(
                f"{theirs}.{theirs_name}.in_proj_{part}", *shape
            )
        found |= _pair(tensors, f"{theirs}.{theirs_name}.out_proj", f"{ours}.{ours_name}.project_out", (d, d))
    found |= _pair(tensors, f"{theirs}.linear1", f"{ours}.feed_forward.widen", (d_ff, d))
    found |= _pair(tensors, f"{theirs}.linear2", f"{ours}.feed_forward.narrow", (d, d_ff))
    for number, name in enumerate(NORMS[side], start=1):
        found |= _pair(tensors, f"{theirs}.norm{number}", f"{ours}.{name}.norm", (d,))
    return found


def _pair(tensors: Tensors, theirs: str, ours: str, shape: tuple[int, ...]) -> dict[str, Tensor | None]:
    return {
        f"{ours}.weight": tensors.get(f"{theirs}.weight", *shape),
        f"{ours}.bias": tensors.get(f"{theirs}.bias", shape[0]),
    }


def _positions(s: Settings, tensors: Tensors, d_model: int) -> Tensor:
    """The paper's sinusoids, or a stored table, reshaped to rows of d_model and cut to max_length of them."""
    kind = str(s.values["positions"])
    if kind == "sinusoidal":
        length = s.size("max_length", most=2**16)
        return sinusoids(length, d_model) if d_model % 2 == 0 else torch.zeros(length, d_model)
    stored = tensors.tensors.get(kind)
    if stored is None or stored.dim() == 0 or stored.shape[-1] != d_model or not stored.is_floating_point():
        s.problems.add(f"positions is {kind!r:.60}, which is neither sinusoidal nor a weight of width {d_model}")
        return torch.zeros(2, d_model)
    if not stored.isfinite().all():
        s.problems.add(f"{kind:.60} holds infinities or NaN")
    tensors.ignore(kind.replace(".", r"\."))
    return stored.float().reshape(-1, d_model)[: s.size("max_length", most=2**16)]
