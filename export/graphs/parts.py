"""The layers of the model in standard operators, smallest part last.

Each part mirrors `model/transformer.py`; change both together (docs/decisions/010). Nothing is traced, so no length is
frozen in.

B batch   R rows   S source   T target   P past   D d_model   H heads   d features of a head   V target vocabulary
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attendant.export.graphs.builder import Array, GraphBuilder
from attendant.export.signature import padded_width
from attendant.model.config import ModelConfig

LAYER_NORM_EPSILON, RMS_EPSILON = 1e-5, 1e-6


@dataclass(frozen=True)
class Matrix:
    """The weights of a linear layer, and the names that they are stored under."""

    name: str
    weight: Array  # (in, out)
    bias_name: str
    bias: Array | None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        return rows, columns


class Parts:
    """The layers of the model as nodes of one graph, in standard operators."""

    def __init__(self, graph: GraphBuilder, config: ModelConfig, weights: dict[str, Array]) -> None:
        self.g, self.config, self.weights = graph, config, weights
        self.head = config.head
        self.relative = config.positions == "relative"
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0  # of token embeddings
        self.source_mask = self.past_mask = self.new_mask = ""  # set by prepare_source and prepare_step
        self.source_bias = self.past_bias = ""  # of relative positions, likewise

    def encode(self) -> tuple[str, list[str]]:
        """source ids (B, S) -> memory (B, S, D), and the attention weights of every layer, (B, H, S, S)"""
        self.prepare_source()
        x, all_weights = self.embed_source(), []
        for layer in range(self.config.encoder_layers):
            name = f"encoder.{layer}"
            attended, weights = self.attend_source(self.before(x, f"{name}.self_residual"), f"{name}.self_attention")
            x = self.feed_forward(self.after(x, attended, f"{name}.self_residual"), name)
            all_weights.append(weights)
        return self.last_norm(x, "encoder_norm"), all_weights

    def prepare_source(self) -> None:
        """Nodes that all encoder layers share."""
        self.source_mask = self.length_mask(self.source_length(), "source", axis=1)
        if self.relative:
            places = self.indices("source", axis=1)
            self.source_bias = self.bias("encoder_bias", places, places)

    def embed_source(self) -> str:
        return self.embed("source", "source_embedding", padded_width(self.config.max_length))

    def attend_source(self, x: str, name: str) -> tuple[str, str]:
        """Encoder self-attention: (B, S, D) -> (B, S, D), and attention weights (B, H, S, S)"""
        q, k, v = self.queries_keys_values(x, name)
        return self.attend(q, k, v, self.source_mask, name, self.source_bias)

    def embed(self, ids: str, name: str, width: int) -> str:
        """ids (B, T) at positions 0, 1, ... -> (B, T, D). T is up to `width`; past max_length there is only padding."""
        g = self.g
        if self.relative:
            return self._embedding_norm(self._tokens(ids, name), name)
        length = g.op("Shape", ids, start=1, end=2)
        used = g.op("Slice", self.positions_table(name, width), g.constant([0]), length, g.constant([0]))  # (T, D)
        return self._embedding_norm(g.op("Add", self._tokens(ids, name), used), name)

    def positions_table(self, name: str, width: int) -> str:
        """(width, D), with zeros past max_length; (0, D) where positions are relative"""
        if self.relative:
            return self.g.weight("no positions", np.zeros((0, self.config.d_model), np.float32))
        positions = self.weights[f"{name}.positions"]
        return self.g.weight(f"{name}.positions", np.pad(positions, [(0, width - len(positions)), (0, 0)]))

    def embed_at(self, ids: str, positions: str, name: str) -> str:
        """ids (R, 1) at positions (R, 1) -> (R, 1, D)"""
        if self.relative:
            return self._embedding_norm(self._tokens(ids, name), name)
        at = self.g.op("Gather", self._array(f"{name}.positions"), positions, axis=0)
        return self._embedding_norm(self.g.op("Add", self._tokens(ids, name), at), name)

    def _embedding_norm(self, x: str, name: str) -> str:
        return self.norm(x, f"{name}.norm") if self.config.embedding_norm else x

    def _tokens(self, ids: str, name: str) -> str:
        found = self.g.op("Gather", self._array(self._tied(f"{name}.tokens.weight")), ids, axis=0)
        return self.g.op("Mul", found, self._scalar(self.scale)) if self.scale != 1 else found

    def embedding_operands(self, name: str) -> list[str]:
        """The table of token embeddings and the factor that they are multiplied by; overridden for int8."""
        return [self._array(self._tied(f"{name}.tokens.weight")), self.g.constant([self.scale], "float")]

    def length_mask(self, lengths: str, tensor: str, axis: int) -> str:
        """Mask: true at non-padding positions. Lengths (N,) and an axis of size S -> (N, 1, 1, S)"""
        g = self.g
        return g.op("Less", self.indices(tensor, axis), g.op("Unsqueeze", lengths, g.constant([1, 2, 3])))

    def source_length(self) -> str:
        """How many tokens of each source attention sees, (N,)"""
        if self.config.source_end:
            return "source_length"
        without_end = self.g.op("Sub", "source_length", self.g.constant([1]))
        return self.g.op("Max", without_end, self.g.constant([1]))

    def indices(self, tensor: str, axis: int) -> str:
        """0, 1, ... along an axis of a tensor: (size,)"""
        g = self.g
        size = g.op("Squeeze", g.op("Shape", tensor, start=axis, end=axis + 1))
        return g.op("Range", g.constant(0), size, g.constant(1))

    def prepare_step(self) -> None:
        """Nodes that all layers of a step share."""
        g = self.g
        slots = self.indices("self_key_0", axis=2)  # (P,)
        slot = g.op("Gather", slots, "position")  # (R,): fails where the past has no slot for the new token
        slot = g.op("Unsqueeze", slot, g.constant([1, 2, 3]))  # (R, 1, 1, 1)
        self.past_mask = g.op("LessOrEqual", slots, slot)  # (R, 1, 1, P): cached tokens and the new one
        self.new_mask = g.op("Equal", g.op("Unsqueeze", slots, g.constant([1])), slot)  # (R, 1, P, 1): the new token
        self.source_mask = self.length_mask(self.source_length(), "cross_key_0", axis=2)
        if self.relative:
            bias = self.bias("decoder_bias", "position", slots)  # (H, R, P)
            self.past_bias = g.op("Unsqueeze", g.op("Transpose", bias, perm=[1, 0, 2]), g.constant([2]))

    def bias(self, name: str, queries: str, keys: str) -> str:
        """Relative positions' bias of scores, by the positions of queries (T,) and keys (S,) -> (H, T, S)"""
        return relative_bias(self.g, self._array(name), self.config, queries, keys, later=name == "encoder_bias")

    def attend_past(self, x: str, layer: int) -> tuple[str, str, str]:
        """Self-attention output per row, (R, 1, D), and the keys and values with the new token's at its position."""
        g, name = self.g, f"decoder.{layer}.self_attention"
        q, k, v = self.queries_keys_values(x, name)
        key = g.op("Where", self.new_mask, k, f"self_key_{layer}")  # (R, H, P, d)
        value = g.op("Where", self.new_mask, v, f"self_value_{layer}")
        attended, _ = self.attend(q, key, value, self.past_mask, name, self.past_bias)
        return attended, key, value

    def attend_memory(self, x: str, layer: int) -> str:
        """Cross-attention output per row, (R, 1, D)"""
        name = f"decoder.{layer}.cross_attention"
        key, value = f"cross_key_{layer}", f"cross_value_{layer}"
        return self.attend(self.queries(x, name), key, value, self.source_mask, name)[0]

    def causal_mask(self) -> str:
        """Mask: true at and before each query, (T, T)"""
        g, keys = self.g, self.indices("target", axis=1)
        return g.op("LessOrEqual", keys, g.op("Unsqueeze", keys, g.constant([1])))

    def queries_keys_values(self, x: str, name: str) -> tuple[str, str, str]:
        """(B, T, D) -> three of (B, H, T, d)"""
        q, k, v = self.g.multi_op("Split", self.linear(x, f"{name}.project_in"), outputs=3, axis=-1, num_outputs=3)
        return self._split(q), self._split(k), self._split(v)

    def queries(self, x: str, name: str) -> str:
        """(B, T, D) -> (B, H, T, d)"""
        return self._split(self.product(x, self.queries_matrix(name)))

    def queries_matrix(self, name: str) -> Matrix:
        return self.matrix(f"{name}.project_in", "queries", 0, self.config.inner)

    def keys_values_matrix(self, name: str) -> Matrix:
        return self.matrix(f"{name}.project_in", "keys_values", self.config.inner, 3 * self.config.inner)

    def keys_values(self, memory: str, name: str) -> tuple[str, str]:
        both = self.product(memory, self.keys_values_matrix(name))
        k, v = self.g.multi_op("Split", both, outputs=2, axis=-1, num_outputs=2)
        return self._split(k), self._split(v)

    def attend(self, q: str, k: str, v: str, mask: str, name: str, bias: str = "") -> tuple[str, str]:
        """Multi-head attention with its output projection, (B, T, D), and the attention weights, (B, H, T, S)

        `bias` is added to the scores; it broadcasts to (B, H, T, S).
        """
        g = self.g
        scores = self._scores(q, k, name)
        if bias:
            scores = g.op("Add", scores, bias)
        scores = g.op("Where", mask, scores, self._scalar(-math.inf))
        weights = g.op("Softmax", scores, axis=-1)
        heads = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])  # (B, T, H, d)
        concatenated = g.reshape(heads, [0, 0, self.config.inner])
        return self.linear(concatenated, f"{name}.project_out"), weights

    def _scores(self, q: str, k: str, name: str) -> str:
        """(B, H, T, d), (B, H, S, d) -> (B, H, T, S)"""
        g = self.g
        if self.config.score == "additive":
            together = g.op("Add", g.op("Unsqueeze", q, g.constant([3])), g.op("Unsqueeze", k, g.constant([2])))
            v = self.weights[f"{name}.additive"][:, None, :, None]  # (H, 1, d, 1)
            scores = g.op("MatMul", g.op("Tanh", together), g.weight(f"{name}.additive", v))
            return g.op("Squeeze", scores, g.constant([4]))
        products = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        if self.config.score == "gaussian":
            squares = g.op("Add", self._square(q), g.op("Transpose", self._square(k), perm=[0, 1, 3, 2]))
            products = g.op("Sub", products, g.op("Mul", squares, self._scalar(0.5)))
        return g.op("Mul", products, self._scalar(1 / math.sqrt(self.head)))

    def _square(self, x: str) -> str:
        """|x|^2 over the last axis, which is kept with size 1"""
        return self.g.op("ReduceSumSquare", x, self.g.constant([-1]), keepdims=1)

    def before(self, x: str, name: str) -> str:
        """The input of a sub-layer: x, or norm(x) in a pre-norm model."""
        return self.norm(x, f"{name}.norm") if self.config.norm == "pre" else x

    def after(self, x: str, output: str, name: str) -> str:
        """The residual connection: x + output, or norm(x + output) in a post-norm model."""
        total = self.g.op("Add", x, output)
        return total if self.config.norm == "pre" else self.norm(total, f"{name}.norm")

    @property
    def has_last_norm(self) -> bool:
        """Whether each stack ends with a norm: with pre-norm always, with post-norm where the model has one."""
        return self.config.norm == "pre" or bool(self.config.final_norm)

    def last_norm(self, x: str, name: str) -> str:
        return self.norm(x, name) if self.has_last_norm else x

    def feed_forward(self, x: str, layer: str) -> str:
        """The feed-forward sub-layer with its residual connection."""
        name = f"{layer}.feed_forward"
        wide = activate(self.g, self.linear(self.before(x, f"{layer}.feed_residual"), f"{name}.widen"), self.config)
        return self.after(x, self.linear(wide, f"{name}.narrow"), f"{layer}.feed_residual")

    def logprobs(self, x: str) -> str:
        """(..., D) -> (..., V)"""
        logits = self.logits(self.last_norm(x, "decoder_norm"))
        return self.g.op("LogSoftmax", self.g.cast(logits, "float32"), axis=-1)

    def logits(self, x: str) -> str:
        """(..., D) -> (..., V). `transB`: the matrix is stored as (V, D), so that a tied embedding shares it."""
        g, table = self.g, self._array(self._tied("output.weight"))
        bias = [self._array("output.bias")] if self.config.output_bias else []
        flat = g.op("Gemm", g.reshape(x, [-1, self.config.d_model]), table, *bias, transB=1)
        shape = g.op("Concat", g.op("Shape", x, start=0, end=-1), g.constant([self.config.target_vocab]), axis=0)
        return g.op("Reshape", flat, shape)

    def output_operands(self) -> list[str]:
        """The weights of `logits`, as an operator of our own reads them."""
        bias = self._array("output.bias") if self.config.output_bias else self.zeros(self.config.target_vocab)
        return [self._array(self._tied("output.weight")), bias]

    def linear(self, x: str, name: str) -> str:
        return self.product(x, self.matrix(name))

    def matrix(self, name: str, part: str = "", start: int = 0, stop: int | None = None) -> Matrix:
        """The weights of a linear layer. With `part`: only outputs start to stop, stored under a name of their own."""
        suffix = f" {part}" if part else ""
        weight = self.weights[f"{name}.weight"][start:stop].T
        bias = self.weights[f"{name}.bias"][start:stop] if self.config.bias else None
        return Matrix(f"{name}.weight{suffix}", weight, f"{name}.bias{suffix}", bias)

    def product(self, x: str, matrix: Matrix) -> str:
        """x W + b; overridden for int8."""
        y = self.g.op("MatMul", x, self.weight_of(matrix))
        return y if matrix.bias is None else self.g.op("Add", y, self.bias_of(matrix))

    def weight_of(self, matrix: Matrix) -> str:
        """(in, out)"""
        return self.g.weight(matrix.name, matrix.weight)

    def bias_of(self, matrix: Matrix) -> str:
        """(out,), zeros where there is none"""
        return self.zeros(matrix.shape[1]) if matrix.bias is None else self.g.weight(matrix.bias_name, matrix.bias)

    def operands(self, matrix: Matrix) -> list[str]:
        """The weights of a product as an operator of our own reads them: with a bias in any case."""
        return [self.weight_of(matrix), self.bias_of(matrix)]

    def zeros(self, size: int) -> str:
        return self.g.weight(f"zeros {size}", np.zeros(size, np.float32))

    def norm(self, x: str, name: str) -> str:
        if self.config.norm_kind == "rms":
            return rms_norm(self.g, x, self._array(f"{name}.weight"))
        scale = [self._array(f"{name}.weight")] + ([self._array(f"{name}.bias")] if self.config.bias else [])
        return self.g.op("LayerNormalization", x, *scale, axis=-1, epsilon=LAYER_NORM_EPSILON)

    def norm_operands(self, name: str) -> list[str]:
        """The weights of a norm as an operator of our own reads them: with a bias, of zeros where there is none."""
        has_bias = self.config.bias and self.config.norm_kind == "layer"
        bias = self._array(f"{name}.bias") if has_bias else self.zeros(self.config.d_model)
        return [self._array(f"{name}.weight"), bias]

    def _split(self, x: str) -> str:
        """(B, T, D) -> (B, H, T, d)"""
        heads = self.g.reshape(x, [0, 0, self.config.heads, self.head])
        return self.g.op("Transpose", heads, perm=[0, 2, 1, 3])

    def _tied(self, name: str) -> str:
        """The stored name of an embedding or output matrix: its own, or that of the one it is tied to."""
        chain = ("output.weight", "target_embedding.tokens.weight", "source_embedding.tokens.weight")
        return next(other for other in chain[chain.index(name) :] if other in self.weights)

    def _array(self, name: str) -> str:
        return self.g.weight(name, self.weights[name])

    def _scalar(self, value: float) -> str:
        return self.g.constant(value, "float")


def activate(g: GraphBuilder, x: str, config: ModelConfig) -> str:
    """The feed-forward's activation, and its gate where it has one: (..., F or 2 F) -> (..., F)"""
    if config.gated:
        x, gate = g.multi_op("Split", x, outputs=2, axis=-1, num_outputs=2)
        if config.activation == "gated_gelu":
            return g.op("Mul", g.op("Gelu", x, approximate="tanh"), gate)
        return g.op("Mul", g.op("Mul", x, g.op("Sigmoid", x)), gate)
    if config.activation == "silu":
        return g.op("Mul", x, g.op("Sigmoid", x))
    return g.op({"relu": "Relu", "gelu": "Gelu"}[config.activation], x)


def rms_norm(g: GraphBuilder, x: str, gamma: str) -> str:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last axis, in f32 as squares are large."""
    half = g.dtype != "float32"
    x, gamma, epsilon = (g.cast(v, "float32") if half else v for v in (x, gamma, g.constant(RMS_EPSILON, "float")))
    mean = g.op("ReduceMean", g.op("Mul", x, x), g.constant([-1]), keepdims=1)
    normed = g.op("Mul", g.op("Div", x, g.op("Sqrt", g.op("Add", mean, epsilon))), gamma)
    return g.cast(normed, "float") if half else normed


def relative_bias(g: GraphBuilder, table: str, config: ModelConfig, queries: str, keys: str, later: bool) -> str:
    """The bias of scores by the positions of queries (T,) and keys (S,): a column of the table (H, distances) for each
    distance -> (H, T, S). Without `later`, keys after the query have the bias of its own position.
    """
    largest = g.constant(config.relative_distance)
    distance = g.op("Sub", keys, g.op("Unsqueeze", queries, g.constant([1])))  # (T, S)
    limits = g.constant(-config.relative_distance), largest if later else g.constant(0)
    return g.op("Gather", table, g.op("Add", g.op("Clip", distance, *limits), largest), axis=1)
