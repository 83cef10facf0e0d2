"""Layers under fairseq's names, which Hugging Face's Marian, M2M100 and BART have too, translated to ours."""

from __future__ import annotations

from torch import Tensor

from attendant.model.importers.problems import Tensors

NORMS = {
    "self_attn_layer_norm": "self_residual.norm",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "final_layer_norm": "feed_residual.norm",
}
FINAL_NORMS = {"encoder.layer_norm": "encoder_norm", "decoder.layer_norm": "decoder_norm"}  # after each stack


def layers_of(tensors: Tensors, prefix: str, side: str) -> int:
    return tensors.layers(rf"{prefix}{side}\.layers\.(\d+)\.")


def take_stack(tensors: Tensors, prefix: str, side: str, layers: int, d_model: int, d_ff: int) -> dict[str, Tensor]:
    """The layers of one side ("encoder" or "decoder") under our names; adds to `tensors.problems`."""
    found: dict[str, Tensor | None] = {}
    for i in range(layers):
        theirs, ours = f"{prefix}{side}.layers.{i}", f"{side}.{i}"
        for their_attention, our_attention in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
            if side == "encoder" and our_attention == "cross_attention":
                continue
            found |= _attention(tensors, f"{theirs}.{their_attention}", f"{ours}.{our_attention}", d_model)
        for their_norm, our_norm in NORMS.items():
            if side == "decoder" or our_norm != "cross_residual.norm":
                found |= take_norm(tensors, f"{theirs}.{their_norm}", f"{ours}.{our_norm}", d_model)
        for theirs_fc, ours_fc, out, into in (("fc1", "widen", d_ff, d_model), ("fc2", "narrow", d_model, d_ff)):
            found[f"{ours}.feed_forward.{ours_fc}.weight"] = tensors.get(f"{theirs}.{theirs_fc}.weight", out, into)
            found[f"{ours}.feed_forward.{ours_fc}.bias"] = tensors.get(f"{theirs}.{theirs_fc}.bias", out)
    return {name: value for name, value in found.items() if value is not None}


def _attention(tensors: Tensors, theirs: str, ours: str, d_model: int) -> dict[str, Tensor | None]:
    parts = [f"{theirs}.{part}_proj" for part in "qkv"]
    if f"{theirs}.in_proj_weight" in tensors:  # fairseq before 0.9
        weight = tensors.get(f"{theirs}.in_proj_weight", 3 * d_model, d_model)
        bias = tensors.get(f"{theirs}.in_proj_bias", 3 * d_model)
    else:
        weight = tensors.joined([f"{part}.weight" for part in parts], d_model, d_model)
        bias = tensors.joined([f"{part}.bias" for part in parts], d_model)
    return {
        f"{ours}.project_in.weight": weight,
        f"{ours}.project_in.bias": bias,
        f"{ours}.project_out.weight": tensors.get(f"{theirs}.out_proj.weight", d_model, d_model),
        f"{ours}.project_out.bias": tensors.get(f"{theirs}.out_proj.bias", d_model),
    }


def take_norm(tensors: Tensors, theirs: str, ours: str, d_model: int) -> dict[str, Tensor | None]:
    return {f"{ours}.{part}": tensors.get(f"{theirs}.{part}", d_model) for part in ("weight", "bias")}
