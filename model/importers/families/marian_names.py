"""The weights of Marian's Transformer under our names. Matrices are stored as (in, out), vectors as (1, n)."""

from __future__ import annotations

from torch import Tensor

from attendant.model.config import ModelConfig
from attendant.model.importers.families.vocabulary import Tables
from attendant.model.importers.problems import Settings, Tensors, join


def take_layers(tensors: Tensors, config: ModelConfig, norms: dict[str, str]) -> dict[str, Tensor]:
    """Layers and norms; `norms` says whether there is one of the embeddings (emb) and after each stack (top)."""
    found: dict[str, Tensor | None] = {}
    d, suffix = config.d_model, "_pre" if config.norm == "pre" else ""
    for side, embedding, layers in (
        ("encoder", "source_embedding", config.encoder_layers),
        ("decoder", "target_embedding", config.decoder_layers),
    ):
        if tensors.layers(rf"{side}_l(\d+)_") - 1 > layers:
            tensors.problems.add(f"the {side} has weights of more than {layers} layers")
        for i in range(layers):
            theirs, ours = f"{side}_l{i + 1}", f"{side}.{i}"
            attentions = {"self": "self"} | ({"context": "cross"} if side == "decoder" else {})
            for name, our_name in attentions.items():
                found |= _attention(tensors, f"{theirs}_{name}", f"{ours}.{our_name}_attention", d)
                found |= _norm(tensors, f"{theirs}_{name}_Wo", f"{ours}.{our_name}_residual.norm", d, suffix)
            found |= _linear(tensors, f"{theirs}_ffn", "1", f"{ours}.feed_forward.widen", d, config.d_ff)
            found |= _linear(tensors, f"{theirs}_ffn", "2", f"{ours}.feed_forward.narrow", config.d_ff, d)
            found |= _norm(tensors, f"{theirs}_ffn_ffn", f"{ours}.feed_residual.norm", d, suffix)
        if norms["emb"]:
            found |= _norm(tensors, f"{side}_emb", f"{embedding}.norm", d, "_pre")
        if norms["top"]:
            found |= _norm(tensors, f"{side}_top", f"{side}_norm", d, "")
    return {name: value for name, value in found.items() if value is not None}


def _attention(tensors: Tensors, theirs: str, ours: str, d: int) -> dict[str, Tensor | None]:
    parts = [_linear(tensors, theirs, letter, "", d, d) for letter in "qkv"]
    found = {f"{ours}.project_in{leaf}": join(part[leaf] for part in parts) for leaf in (".weight", ".bias")}
    return found | _linear(tensors, theirs, "o", f"{ours}.project_out", d, d)


def _linear(tensors: Tensors, theirs: str, name: str, ours: str, into: int, out: int) -> dict[str, Tensor | None]:
    weight, bias = tensors.get(f"{theirs}_W{name}", into, out), tensors.get(f"{theirs}_b{name}", 1, out)
    return {
        f"{ours}.weight": None if weight is None else weight.T.contiguous(),
        f"{ours}.bias": None if bias is None else bias[0],
    }


def _norm(tensors: Tensors, theirs: str, ours: str, d: int, suffix: str) -> dict[str, Tensor | None]:
    scale, bias = (tensors.get(f"{theirs}_ln_{part}{suffix}", 1, d) for part in ("scale", "bias"))
    return {f"{ours}.weight": None if scale is None else scale[0], f"{ours}.bias": None if bias is None else bias[0]}


def take_tables(s: Settings, tensors: Tensors, d: int) -> tuple[Tables | None, Tensor | None]:
    """The tables, None if one is missing, and the output's bias."""
    source, target = (tensors.first([f"{side}_Wemb", "Wemb"], -1, d) for side in ("encoder", "decoder"))
    out = "decoder_ff_logit_out"
    if f"{out}_W" in tensors:  # Marian before 1.7
        stored = tensors.get(f"{out}_W", d, -1)
        output = None if stored is None else stored.T.contiguous()
    elif f"{out}_Wt" in tensors:
        output = tensors.get(f"{out}_Wt", -1, d)
    elif s.flag("tied-embeddings", False) or s.flag("tied-embeddings-all", False):
        output = target
    else:
        output = tensors.get(f"{out}_Wt", -1, d)
    if target is not None and output is not None and len(target) != len(output):
        s.problems.add(f"the target embedding has {len(target)} rows, and the output {len(output)}")
    size = 1 if output is None else len(output)
    bias = tensors.get(f"{out}_b", 1, size) if f"{out}_b" in tensors else None
    if bias is None and not s.flag("output-omit-bias", False):
        s.problems.add(f"the weight {out}_b is missing")
    tables = None if source is None or target is None or output is None else (source, target, output)
    return tables, None if bias is None else bias[0]
