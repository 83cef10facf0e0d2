"""Directories that `save_pretrained` of Hugging Face's library writes: what Marian, M2M100 and BART have in common."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from model.config import ModelConfig
from model.importers.fairseq_names import layers_of, take_norm, take_stack
from model.importers.imported import fold_sigmoid_gelu, is_default, with_embeddings, with_positions
from model.importers.problems import MOST_LAYERS, Problems, Settings, Tensors, first_line, read_json
from model.importers.vocabulary import Layout

CONFIG, GENERATION = "config.json", "generation_config.json"
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu", "quick_gelu": "silu"}
# Defaults of generation: our name, and theirs.
DEFAULTS = {
    "beam_size": "num_beams",
    "length_penalty": "length_penalty",
    "max_length": "max_length",
    "min_length": "min_length",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
}


@dataclass
class Directory:
    """The content of a model's directory."""

    path: Path
    problems: Problems
    settings: Settings
    tensors: Tensors
    generation: dict[str, Any]
    weights_file: str

    @property
    def vocab_size(self) -> int:
        return self.settings.size("vocab_size")


def open_directory(path: Path, kinds: tuple[str, ...]) -> Directory:
    """Read a model's directory; its `model_type` must be one of `kinds`."""
    problems = Problems(path)
    if not path.is_dir():
        problems.add("it is not a directory; name the one that holds config.json")
    problems.raise_if_any()
    settings = Settings(read_json(path / CONFIG, problems), CONFIG, problems)
    problems.raise_if_any()
    kind = settings.values.get("model_type")
    if kind not in kinds:
        problems.add(f"{CONFIG}: model_type is {kind!r:.60}, and this format is for {' and '.join(kinds)}{_hint(kind)}")
    tensors, name = read_tensors(path, problems)
    generation = read_json(path / GENERATION, problems, optional=True)
    return Directory(path, problems, settings, Tensors(tensors, problems), generation, name)


def _hint(kind: Any) -> str:
    if kind in ("t5", "mt5", "umt5", "longt5"):
        return "; T5 has relative positions, RMSNorm and unscaled attention, which the model class has not"
    commands = {"marian": "marian", "m2m_100": "m2m", "bart": "bart", "mbart": "bart"}
    return f"; use: attendant import {commands[kind]}" if isinstance(kind, str) and kind in commands else ""


def read_tensors(path: Path, problems: Problems) -> tuple[dict[str, Tensor], str]:
    """The weights, and the name of their file; nothing in it is executed, even if it is a pickle."""
    try:
        if (path / SAFE).exists():
            return load_file(path / SAFE), SAFE
        index = f"{SAFE}.index.json"
        if (path / index).exists():
            return _read_shards(path, read_json(path / index, problems), problems), index
        if (path / PICKLED).exists():
            found = torch.load(path / PICKLED, map_location="cpu", weights_only=True)
            return {str(name): value for name, value in dict(found).items() if isinstance(value, Tensor)}, PICKLED
        problems.add(f"{SAFE} and {PICKLED} are missing")
    except Exception as error:  # each reader raises its own kinds
        name = next((name for name in (SAFE, f"{SAFE}.index.json") if (path / name).exists()), PICKLED)
        problems.add(f"{name} cannot be read: {first_line(error)}")
    return {}, ""


def _read_shards(path: Path, index: dict[str, Any], problems: Problems) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(map(str, dict(index.get("weight_map", {})).values()))):
        if Path(name).name != name:
            problems.add(f"the index of shards names {name!r:.60}, which is no file of the directory")
        else:
            tensors |= load_file(path / name)
    return tensors


def take_body(d: Directory, prefix: str = "model.") -> tuple[ModelConfig, dict[str, Tensor]]:
    """The options and layers that these models have in common; embeddings and positions come later."""
    s = d.settings
    d_model, d_ff = s.size("d_model"), s.same("encoder_ffn_dim", "decoder_ffn_dim")
    heads = s.same("encoder_attention_heads", "decoder_attention_heads")
    config = ModelConfig(
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        encoder_layers=s.size("encoder_layers", most=MOST_LAYERS),
        decoder_layers=s.size("decoder_layers", most=MOST_LAYERS),
        activation=s.choice("activation_function", ACTIVATIONS, "gelu"),
        scale_embeddings=s.flag("scale_embedding", False),
        dropout=0.0,
        attention_dropout=0.0,
        ff_dropout=0.0,
    )
    weights: dict[str, Tensor] = {}
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        found = layers_of(d.tensors, prefix, side)
        if found != layers:
            d.problems.add(f"{CONFIG}: {side}_layers is {layers}, and the weights have {found}")
        else:
            weights |= take_stack(d.tensors, prefix, side, layers, d_model, d_ff)
    if s.values.get("activation_function") == "quick_gelu":
        fold_sigmoid_gelu(weights)
    return config, weights


def take_norms(d: Directory, weights: dict[str, Tensor], names: dict[str, str], d_model: int) -> None:
    """Add single norms to `weights`; `names` maps their names to ours."""
    for theirs, ours in names.items():
        found = take_norm(d.tensors, f"model.{theirs}", ours, d_model)
        weights |= {name: value for name, value in found.items() if value is not None}


Tables = tuple[Tensor, Tensor, Tensor]


def take_tables(d: Directory, source_vocab: int, target_vocab: int) -> Tables | None:
    """Source embedding, target embedding and output; None if one is missing. Tied matrices may be stored once."""
    d_model = d.settings.size("d_model")
    shared = "model.shared.weight"
    source = d.tensors.first(["model.encoder.embed_tokens.weight", shared], source_vocab, d_model)
    target = d.tensors.first(["model.decoder.embed_tokens.weight", shared], target_vocab, d_model)
    tied = d.settings.flag("tie_word_embeddings", True)
    names = ["model.decoder.embed_tokens.weight", shared] if tied else ["lm_head.weight"]
    output = d.tensors.first(names, target_vocab, d_model)
    d.tensors.ignore(r"lm_head\.weight|model\.shared\.weight")
    if source is None or target is None or output is None:
        return None
    return source, target, output


def take_bias(d: Directory, size: int) -> Tensor | None:
    """`final_logits_bias` (1, V), where there is one."""
    if "final_logits_bias" not in d.tensors:
        return None
    bias = d.tensors.get("final_logits_bias", 1, size)
    return None if bias is None else bias[0]


def take_positions(d: Directory, make: Callable[[int, int], Tensor] | None, offset: int = 0) -> tuple[Tensor, Tensor]:
    """Source's and target's tables of positions: by `make(length, d_model)`, else as stored, from row `offset` on."""
    length, d_model = d.settings.size("max_position_embeddings"), d.settings.size("d_model")
    tables = []
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        if make is None:
            stored = d.tensors.get(name, length + offset, d_model)
            tables.append(torch.zeros(1, 1) if stored is None else stored[offset:])
        else:
            d.tensors.ignore(name.replace(".", r"\."))
            tables.append(make(length, d_model) if length * d_model < 2**28 else torch.zeros(1, 1))
    return tables[0], tables[1]


def assemble(
    d: Directory,
    config: ModelConfig,
    weights: dict[str, Tensor],
    layouts: tuple[Layout, Layout],
    tables: Tables | None,
    positions: tuple[Tensor, Tensor],
    bias: Tensor | None,
) -> ModelConfig:
    """Add embeddings and positions to `weights`, unless problems were found, which are raised."""
    d.tensors.refuse_leftovers()
    d.problems.raise_if_any()
    assert tables is not None  # or there would be a problem
    config = with_embeddings(config, weights, tables, layouts, bias)
    return with_positions(config, weights, *positions)


def generation_defaults(d: Directory, target: Layout, forced: bool = False) -> dict[str, Any]:
    """Beam size, penalties, limits and the forced first token, from generation_config.json or else config.json."""
    values = {**d.settings.values, **d.generation}
    found = {ours: values[theirs] for ours, theirs in DEFAULTS.items() if is_default(values.get(theirs))}
    for name in ("max_length", "min_length"):  # theirs count the token that the decoder starts with
        if isinstance(found.get(name), int):
            found[name] = max(0, found[name] - 1)
    early = values.get("early_stopping")  # generate() takes null for false
    found["early_stopping"] = early if early == "never" else early is True
    if isinstance(values.get("forced_eos_token_id"), int):
        found["forced_end"] = True  # the end token, at the length limit
    first = values.get("forced_bos_token_id")
    if forced and isinstance(first, int) and not isinstance(first, bool) and first in target.rows:
        found["target_prefix"] = [target.id_of(first)]
    return found


def provenance(d: Directory, name: str) -> dict[str, Any]:
    return {
        "format": name,
        "model_type": d.settings.values.get("model_type"),
        "weights": d.weights_file,
        "name": d.settings.values.get("_name_or_path") or d.path.resolve().name,
    }


def sinusoids_in_halves(length: int, d_model: int) -> Tensor:
    """Marian's: sines in the first half of the features, cosines in the second."""
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    angle = position / 10000.0 ** (2 * torch.arange(d_model // 2, dtype=torch.float64) / d_model)
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


def fairseq_sinusoids(length: int, d_model: int, first: int) -> Tensor:
    """fairseq's: frequencies 10000^(-i / (half - 1)), sines then cosines, from position `first` on."""
    half = d_model // 2
    scale = math.log(10000) / max(half - 1, 1)
    frequency = torch.exp(torch.arange(half, dtype=torch.float64) * -scale)
    angle = torch.arange(first, first + length, dtype=torch.float64).unsqueeze(1) * frequency
    table = torch.cat([angle.sin(), angle.cos()], dim=1).float()
    return table if d_model % 2 == 0 else torch.cat([table, torch.zeros(length, 1)], dim=1)


def options_of(config: ModelConfig, **changes: Any) -> ModelConfig:
    return dataclasses.replace(config, **changes)
