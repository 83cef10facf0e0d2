"""What the operators of our own compute, in standard operators: a function for each, which the graphs that use it have.

Where `kernels/` is installed, onnxruntime runs its compiled operators; elsewhere it puts the function in place of the
operator. So the function is the definition, and what the compiled operator is tested against (docs/kernels.md).

Sources are laid out one after the other, without padding: N tokens in all.

B sources   S width   N tokens   R rows   P past slots   D d_model   H heads   d features of a head   F d_ff
V vocabulary
"""

from __future__ import annotations

import onnx

from attendant.export.graphs.body import Body
from attendant.export.graphs.quantize import quantize_rows
from attendant.export.signature import WIDTH_UNIT
from attendant.model.config import ModelConfig

ATTRIBUTES = {
    "EmbedSource": ("norm", "epsilon", "int8"),
    "EmbedTarget": ("norm", "epsilon", "int8"),
    "EncoderLayer": ("heads", "pre_norm", "activation", "epsilon", "int8"),
    "CrossKeysValues": ("heads", "int8"),
    "DecoderLayer": ("heads", "pre_norm", "activation", "epsilon", "int8"),
    "Vocabulary": ("vocabulary", "norm", "epsilon", "int8"),
}


# Attributes that a node has only where they are not as here, and what they say.
OPTIONAL = {
    "rms": 0,  # 1: norms are RMSNorm, without mean and beta
    "head": 0,  # features of a head, where they are not d_model / heads
    "relative": 0,  # tokens apart from which on relative positions share one bias: there is a last input, their table
}
MAY_HAVE = {
    "EmbedSource": ("rms",),
    "EmbedTarget": ("rms",),
    "EncoderLayer": ("rms", "head", "relative"),
    "CrossKeysValues": ("head",),
    "DecoderLayer": ("rms", "head", "relative"),
    "Vocabulary": ("rms",),
}


def attributes_of(name: str, config: ModelConfig) -> tuple[str, ...]:
    """The attributes that an operator's nodes have in models of one shape."""
    optional = optional_attributes(config)
    return ATTRIBUTES[name] + tuple(key for key in MAY_HAVE[name] if optional[key] != OPTIONAL[key])


def optional_attributes(config: ModelConfig) -> dict[str, int]:
    return {
        "rms": int(config.norm_kind == "rms"),
        "head": config.head if config.inner != config.d_model else 0,
        "relative": config.relative_distance if config.positions == "relative" else 0,
    }


def define(name: str, config: ModelConfig, int8: bool) -> onnx.FunctionProto:
    """The definition of an operator, for models of one shape."""
    body = Body(name, config, int8)
    write = {
        "EmbedSource": embed_source,
        "EmbedTarget": embed_target,
        "EncoderLayer": encoder_layer,
        "CrossKeysValues": cross_keys_values,
        "DecoderLayer": decoder_layer,
        "Vocabulary": vocabulary,
    }[name]
    outputs = write(body)
    return body.g.function(body.inputs, outputs, attributes_of(name, config))


def embed_source(b: Body) -> dict[str, str]:
    """source (B, S) -> x (N, D)"""
    g = b.g
    b.takes("source", "source_length", "table", "table_scale", "positions", "gamma", "beta")
    width = g.op("Shape", "source", start=1, end=2)
    tokens, _, _ = b.lay_out("source_length", width)
    ids = g.op("Gather", g.reshape("source", [-1]), tokens)
    return {"x": b.embed(ids, g.op("Mod", tokens, width), b.config.source_vocab)}


def embed_target(b: Body) -> dict[str, str]:
    """token (R,) at position (R,) -> x (R, D)"""
    b.takes("token", "position", "table", "table_scale", "positions", "gamma", "beta")
    return {"x": b.embed("token", "position", b.config.target_vocab)}


def encoder_layer(b: Body) -> dict[str, str]:
    """x (N, D) -> y (N, D). `length` (B,): the tokens of each source that attention sees, of source_length (B,)"""
    g, config = b.g, b.config
    b.takes("x", "length", "source_length")
    b.takes_products("qkv", "out", "widen", "narrow")
    b.takes("attention_gamma", "attention_beta", "feed_gamma", "feed_beta")
    b.takes_bias()
    longest = g.op("ReduceMax", "source_length", g.constant([0]), keepdims=1)
    rounded = g.op("Add", longest, g.constant([WIDTH_UNIT - 1]))
    width = g.op("Sub", rounded, g.op("Mod", rounded, g.constant([WIDTH_UNIT])))  # a row's bits are the same at these
    tokens, places, _ = b.lay_out("source_length", width)
    batch = g.op("Shape", "length", start=0, end=1)

    def attend(x: str) -> str:
        packed = b.product(x, "qkv", config.d_model, 3 * config.inner)
        shape = g.op("Concat", batch, width, g.constant([3, config.heads, b.head]), axis=0)
        laid_out = g.op("Reshape", g.op("Gather", packed, places, axis=0), shape)  # (B, S, 3, H, d)
        ordered = g.op("Transpose", laid_out, perm=[2, 0, 3, 1, 4])  # (3, B, H, S, d)
        q, k, v = (g.op("Gather", ordered, g.constant(i), axis=0) for i in range(3))
        mask = g.op("Less", b.indices(width), g.op("Unsqueeze", "length", g.constant([1, 2, 3])))  # (B, 1, 1, S)
        bias = b.bias(b.indices(width), b.indices(width), later=True) if config.positions == "relative" else ""
        heads = g.op("Transpose", b.attention(q, k, v, mask, bias=bias), perm=[0, 2, 1, 3])  # (B, S, H, d)
        found = g.op("Gather", g.reshape(heads, [-1, config.inner]), tokens, axis=0)
        return b.product(found, "out", config.inner, config.d_model)

    x = b.residual("x", attend, "attention")
    return {"y": b.residual(x, b.feed_forward, "feed")}


def cross_keys_values(b: Body) -> dict[str, str]:
    """memory (N, D) -> key and value (B, H, S, d), and in int8 their scales (B, 2, H, S): 0 at padding"""
    g, config = b.g, b.config
    b.takes("memory", "source", "source_length")
    b.takes_products("keys_values")
    width = g.op("Shape", "source", start=1, end=2)
    _, places, is_token = b.lay_out("source_length", width)
    both = b.product("memory", "keys_values", config.d_model, 2 * config.inner)
    both = g.reshape(both, [-1, 2, config.heads, b.head])  # (N, 2, H, d)
    shape = g.op("Shape", "source")

    def with_padding(values: str, axes: int) -> str:
        """(N, ...) -> (B, S, ...), with 0 at padding"""
        mask = g.reshape(is_token, [-1] + [1] * axes)
        found = g.op("Where", mask, g.op("Gather", values, places, axis=0), g.constant(0.0, "float"))
        rest = g.op("Shape", values, start=1)
        return g.op("Reshape", found, g.op("Concat", shape, rest, axis=0))

    levels, scale = quantize_rows(g, both) if b.int8 else (both, "")
    laid_out = with_padding(levels, 3)  # (B, S, 2, H, d)
    ordered = g.op("Transpose", laid_out, perm=[2, 0, 3, 1, 4])  # (2, B, H, S, d)
    key, value = (b.cached(g.op("Gather", ordered, g.constant(i), axis=0)) for i in range(2))
    if not b.int8:
        return {"key": key, "value": value}
    scales = with_padding(g.op("Squeeze", scale, g.constant([3])), 2)  # (B, S, 2, H)
    return {"key": key, "value": value, "scale": g.op("Transpose", scales, perm=[0, 2, 3, 1])}


def decoder_layer(b: Body) -> dict[str, str]:
    """x (R, D) -> y (R, D), and the caches with this token's keys and values at `position`"""
    g, config = b.g, b.config
    scales = {side: [f"{side}_scale"] if b.int8 else [] for side in ("self", "cross")}
    b.takes("x", "position", "source_row", "source_length", "self_key", "self_value", *scales["self"])
    b.takes("cross_key", "cross_value", *scales["cross"])
    b.takes_products("qkv", "self_out", "queries", "cross_out", "widen", "narrow")
    b.takes(*(f"{norm}_{part}" for norm in ("self", "cross", "feed") for part in ("gamma", "beta")))
    b.takes_bias()
    outputs: dict[str, str] = {}

    def attend_past(x: str) -> str:
        qkv = g.reshape(b.product(x, "qkv", config.d_model, 3 * config.inner), [-1, 3, config.heads, 1, b.head])
        q, k, v = (g.op("Gather", qkv, g.constant(i), axis=1) for i in range(3))  # (R, H, 1, d)
        slots = b.indices(g.op("Shape", "self_key", start=2, end=3))  # (P,)
        slot = g.op("Gather", slots, "position")  # (R,): fails where the past has no slot for the new token
        slot = g.op("Unsqueeze", slot, g.constant([1, 2, 3]))  # (R, 1, 1, 1)
        is_new = g.op("Equal", g.op("Unsqueeze", slots, g.constant([1])), slot)  # (R, 1, P, 1)
        new = {"key": k, "value": v}
        if b.int8:
            (new["key"], key_scale), (new["value"], value_scale) = quantize_rows(g, k), quantize_rows(g, v)
            both = [g.op("Squeeze", scale, g.constant([3])) for scale in (key_scale, value_scale)]  # (R, H, 1)
            new_scale = g.op("Concat", *(g.op("Unsqueeze", scale, g.constant([1])) for scale in both), axis=1)
            here = g.op("Equal", slots, slot)  # (R, 1, 1, P)
            outputs["present_scale"] = g.op("Where", here, new_scale, "self_scale")  # (R, 2, H, P)
        key, value = (g.op("Where", is_new, new[side], b.levels(f"self_{side}")) for side in ("key", "value"))
        outputs["present_key"], outputs["present_value"] = b.cached(key), b.cached(value)
        mask = g.op("LessOrEqual", slots, slot)  # (R, 1, 1, P): cached tokens and the new one
        bias = ""
        if config.positions == "relative":
            by_head = b.bias("position", slots, later=False)  # (H, R, P)
            bias = g.op("Unsqueeze", g.op("Transpose", by_head, perm=[1, 0, 2]), g.constant([2]))  # (R, H, 1, P)
        heads = b.attention(q, key, value, mask, outputs.get("present_scale", ""), bias)
        return b.product(g.reshape(heads, [-1, config.inner]), "self_out", config.inner, config.d_model)

    def attend_memory(x: str) -> str:
        queries = b.product(x, "queries", config.d_model, config.inner)
        q = g.reshape(queries, [-1, config.heads, 1, b.head])
        key, value, *scale = (
            g.op("Gather", name, "source_row", axis=0) for name in ("cross_key", "cross_value", *scales["cross"])
        )
        lengths = g.op("Gather", "source_length", "source_row")
        slots = b.indices(g.op("Shape", "cross_key", start=2, end=3))
        mask = g.op("Less", slots, g.op("Unsqueeze", lengths, g.constant([1, 2, 3])))  # (R, 1, 1, S)
        heads = b.attention(q, b.levels(key), b.levels(value), mask, *scale)
        return b.product(g.reshape(heads, [-1, config.inner]), "cross_out", config.inner, config.d_model)

    x = b.residual("x", attend_past, "self")
    x = b.residual(x, attend_memory, "cross")
    names = ("present_key", "present_value", *(["present_scale"] if b.int8 else []))
    return {"y": b.residual(x, b.feed_forward, "feed")} | {name: outputs[name] for name in names}


def vocabulary(b: Body) -> dict[str, str]:
    """x (R, D) -> the k highest log-probabilities and their ids, (R, k), and all of them, (R, V)"""
    g, config = b.g, b.config
    b.takes("x")
    b.takes_products("vocabulary")
    b.takes("gamma", "beta", "top", "whole")
    x = b.norm("x", "") if config.norm == "pre" or config.final_norm else "x"
    if b.int8:
        logits = b.product(x, "vocabulary", config.d_model, config.target_vocab)
    else:
        logits = g.op("Gemm", x, "vocabulary_weight", "vocabulary_bias", transB=1)
    logprobs = g.op("LogSoftmax", logits, axis=-1)
    k = g.op("Min", "top", g.constant([config.target_vocab]))
    top_logprobs, top_ids = g.multi_op("TopK", logprobs, k, outputs=2, axis=-1)
    return {"top_logprobs": top_logprobs, "top_ids": top_ids, "logprobs": logprobs}
