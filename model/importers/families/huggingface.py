"""Directories that `save_pretrained` of Hugging Face's library writes: what Marian, M2M100, BART and so on share."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file
from torch import Tensor

from attendant.hub.kinds import FORMATS, why_not
from attendant.model.config import ModelConfig
from attendant.model.importers.families.fairseq_names import layers_of, take_norm, take_stack
from attendant.model.importers.families.vocabulary import Layout, Tables
from attendant.model.importers.files import pickles
from attendant.model.importers.imported import fold_sigmoid_gelu, is_default, with_embeddings, with_positions
from attendant.model.importers.problems import MOST_LAYERS, Problems, Settings, Tensors, first_line, read_json, shown

CONFIG, GENERATION = "config.json", "generation_config.json"
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
HEAD = re.compile(r"lm_head\.|final_logits_bias$|model\.")  # what a whole model has beside its base model
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
    generation: dict[str, Any] | None  # of generation_config.json, where there is one
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
        refuse_kind(kind, kinds, problems)
    tensors, name = read_tensors(path, problems)
    generation = read_json(path / GENERATION, problems) if (path / GENERATION).exists() else None
    held = Tensors(tensors, problems)
    held.refuse_wrapped()
    return Directory(path, problems, settings, held, generation, name)


def refuse_kind(kind: Any, kinds: tuple[str, ...], problems: Problems) -> NoReturn:
    """Nothing else that could be said of a model of another kind would help."""
    problems.refuse(f"{CONFIG}: model_type is {shown(kind)}, and this format is for {' and '.join(kinds)}{_hint(kind)}")


def _hint(kind: Any) -> str:
    if why := why_not(kind):
        return f"; {why}"
    return f"; use: attendant import {FORMATS[kind]}" if isinstance(kind, str) and kind in FORMATS else ""


def read_tensors(path: Path, problems: Problems) -> tuple[dict[str, Tensor], str]:
    """The weights, and the name of their file; nothing in it is executed, even if it is a pickle."""
    files = [SAFE, f"{SAFE}.index.json", PICKLED, f"{PICKLED}.index.json"]
    name = next((name for name in files if (path / name).exists()), None)
    if name is None:
        problems.add(f"{SAFE} and {PICKLED} are missing")
        return {}, ""
    if name.endswith(".json"):
        return with_prefix(_read_shards(path, read_json(path / name, problems), problems)), name
    return with_prefix(_read_file(path / name, problems)), name


def _read_file(path: Path, problems: Problems) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return pickles.load_tensors(path, problems)
    try:
        return dict(load_file(path))
    except Exception as error:  # its reader raises many kinds
        problems.add(f"{path.name} cannot be read: {first_line(error)}")
        return {}


def _read_shards(path: Path, index: dict[str, Any], problems: Problems) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    listed = index.get("weight_map")
    for name in sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []:
        if Path(name).name != name:
            problems.add(f"the index of shards names {name!r:.60}, which is no file of the directory")
        elif not (path / name).exists():
            problems.add(f"{name} is missing, which the index of shards names")
        else:
            tensors |= _read_file(path / name, problems)
    return tensors


def with_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a base model (facebook/bart-large, say) under the names that they have in the whole one."""
    if not any(name.startswith(("encoder.", "shared.")) for name in tensors):
        return tensors
    return {name if HEAD.match(name) else f"model.{name}": tensor for name, tensor in tensors.items()}


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


def take_tables(d: Directory, source_vocab: int, target_vocab: int, shared: bool = True) -> Tables | None:
    """Source embedding, target embedding and output; None if one is missing.

    `shared`: of both sides. Tied matrices may be stored once, under any of their names.
    """
    d_model = d.settings.size("d_model")
    tied = d.settings.flag("tie_word_embeddings", True)
    first, second = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    table, head = "model.shared.weight", "lm_head.weight"
    on_target = [second, table, head] if tied else [second, table]
    on_source = [first, table, *(on_target if shared else [])]
    source = d.tensors.first(on_source, source_vocab, d_model)
    target = d.tensors.first([*on_target, *([first] if shared else [])], target_vocab, d_model)
    output = target if tied else d.tensors.get(head, target_vocab, d_model)
    d.tensors.ignore(r"lm_head\.weight|model\.shared\.weight|model\.(en|de)coder\.version")
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
    """Beam size, penalties, limits and the forced first token, from generation_config.json or else config.json.

    As in transformers, config.json counts for nothing here where there is a generation_config.json.
    """
    values = dict(d.settings.values) if d.generation is None else d.generation
    found = {ours: values[theirs] for ours, theirs in DEFAULTS.items() if is_default(values.get(theirs))}
    for name in ("max_length", "min_length"):  # theirs count the token that the decoder starts with
        if isinstance(found.get(name), int):
            found[name] = max(0, found[name] - 1)
    early = values.get("early_stopping")  # generate() takes null for false
    found["early_stopping"] = early if early == "never" else early is True
    if isinstance(values.get("forced_eos_token_id"), int):
        found["forced_end"] = True  # the end token, at the length limit
    first = values.get("forced_bos_token_id")
    if first is None and d.generation is None and values.get("force_bos_token_to_be_generated") is True:
        first = values.get("bos_token_id")  # the option's name before transformers 4.5
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


def options_of(config: ModelConfig, **changes: Any) -> ModelConfig:
    return dataclasses.replace(config, **changes)
