"""Where the values of a Transformer are in its plain `full` graph: queries, keys, sums, the residual stream.

The graph's outputs say which nodes are the softmax of each attention; everything else is found from these, by what
every Transformer has: the product that reads a softmax is the weighted sum of the values, the next sum of two computed
values is the residual connection. So bundles that were exported before this was written can be looked into too.

A sub-layer has the name of what it does, and its layer: ("cross", 0). In the encoder these are "encoder" (its
self-attention) and "encoder_feed_forward", in the decoder "decoder", "cross" and "decoder_feed_forward".
"""

from __future__ import annotations

from dataclasses import dataclass

from attendant.export.bundle import OnnxGraph, Sizes

Sublayer = tuple[str, int]
SIDES = ("source", "target")
THROUGH = ("Mul", "Sub", "Cast", "Squeeze")  # between a product of queries and keys, and its score
ACTIVATIONS = {"Relu": "relu", "Gelu": "gelu", "Sigmoid": "silu"}


class UnknownGraphError(Exception):
    """A graph that was built in another way."""


@dataclass(frozen=True)
class Attention:
    query: str  # (B, H, T, d)
    key: str  # (B, H, S, d)
    value: str  # (B, H, S, d)
    scores: str  # (B, H, T, S), with the bias, before the mask
    weights: str  # (B, H, T, S)
    sums: str  # (B, H, T, d): the weighted sum of the values
    read_sums: int  # the node that reads the sums
    score: str  # dot, additive or gaussian
    vector: str  # of the additive score: v, (H, 1, d, 1), a weight; else empty
    bias: str  # the table of relative positions, (H, distances), a weight; else empty
    projection: str  # W_O, (H d, D); empty where the product is one of whole numbers


@dataclass(frozen=True)
class Embedded:
    tokens: str  # (B, T, D), times sqrt(D) where the model does that
    positions: str  # (T, D)
    node: int  # which adds both


@dataclass(frozen=True)
class Anchors:
    attention: dict[Sublayer, Attention]
    residuals: dict[Sublayer, int]  # the node that adds x and the sub-layer's output, in this order; in graph order
    streams: dict[Sublayer, str]  # x after each sub-layer, (B, T, D)
    embedded: dict[str, Embedded]  # by side
    norm: str  # pre or post
    norm_kind: str  # layer or rms
    activation: str  # relu, gelu or silu, after gated_ where the feed-forward has a gate; empty: another one


def find_anchors(graph: OnnxGraph, sizes: Sizes) -> Anchors:
    """UnknownGraphError where something is not found."""
    attention: dict[Sublayer, Attention] = {}
    for kind in ("encoder", "decoder", "cross"):
        layers = sizes.encoder_layers if kind == "encoder" else sizes.decoder_layers
        stacked = _inputs(graph, graph.producer(f"{kind}_attention"), "Concat", layers)
        for layer, stack in enumerate(stacked):
            [weights, *_] = _inputs(graph, graph.producer(stack), "Unsqueeze")
            attention[kind, layer] = _attention(graph, weights)
    residuals = _residuals(graph, attention)
    norm, streams = _streams(graph, residuals)
    activation = _activation(graph, residuals)
    norm_kind = "layer" if any(node.op == "LayerNormalization" for node in graph.nodes) else "rms"
    embedded = {side: found for side in SIDES if (found := _embedded(graph, side)) is not None}
    return Anchors(attention, residuals, streams, embedded, norm, norm_kind, activation)


def _activation(graph: OnnxGraph, residuals: dict[Sublayer, int]) -> str:
    """Of the first feed-forward, which splits what it computes where it has a gate."""
    feed = graph.nodes[residuals["encoder", 0] + 1 : residuals["encoder_feed_forward", 0]]
    found = next((ACTIVATIONS[node.op] for node in feed if node.op in ACTIVATIONS), "")
    return f"gated_{found}" if found and any(node.op == "Split" for node in feed) else found


def _inputs(graph: OnnxGraph, node: int | None, op: str, count: int | None = None) -> tuple[str, ...]:
    if node is None or graph.nodes[node].op != op or (count is not None and len(graph.nodes[node].inputs) != count):
        raise UnknownGraphError(f"there is no {op} where one was expected")
    return graph.nodes[node].inputs


def _attention(graph: OnnxGraph, weights: str) -> Attention:
    masked = _inputs(graph, graph.producer(weights), "Softmax")[0]
    _, scores, _ = _inputs(graph, graph.producer(masked), "Where", 3)
    unbiased, bias = scores, ""
    last = graph.producer(scores)
    if last is not None and graph.nodes[last].op == "Add":
        unbiased, added = graph.nodes[last].inputs
        bias, _ = _inputs(graph, graph.producer(added), "Gather", 2)
    query, key, score, vector = _query_key(graph, unbiased)
    product = next((at for at in graph.consumers(weights) if graph.nodes[at].op == "MatMul"), None)
    _, value = _inputs(graph, product, "MatMul", 2)
    assert product is not None
    [sums] = graph.nodes[product].outputs
    readers = graph.consumers(sums)
    if len(readers) != 1:
        raise UnknownGraphError("the heads' sums are read more than once")
    projection = _projection(graph, readers[0])
    return Attention(query, key, value, scores, weights, sums, readers[0], score, vector, bias, projection)


def _projection(graph: OnnxGraph, reader: int) -> str:
    """What the heads' sums are multiplied by, once they are side by side."""
    value = graph.nodes[reader].outputs[0]
    for op in ("Reshape", "MatMul"):
        at = next((at for at in graph.consumers(value) if graph.nodes[at].op == op), None)
        if at is None:
            return ""
        last, value = graph.nodes[at].inputs[1], graph.nodes[at].outputs[0]
    return last


def _query_key(graph: OnnxGraph, scores: str) -> tuple[str, str, str, str]:
    """Back from the scores to the product of queries and keys; and the weight of an additive score."""
    value, score = scores, "dot"
    while True:
        at = graph.producer(value)
        if at is None:
            raise UnknownGraphError("no product of queries and keys was found")
        node = graph.nodes[at]
        if node.op == "MatMul":
            break
        if node.op not in THROUGH:
            raise UnknownGraphError(f"there is a {node.op} between the scores and the product of queries and keys")
        score = "gaussian" if node.op == "Sub" else score
        value = node.inputs[0]
    before = graph.producer(node.inputs[0])
    if before is not None and graph.nodes[before].op == "Tanh":
        both = _inputs(graph, graph.producer(graph.nodes[before].inputs[0]), "Add", 2)
        query, key = (_inputs(graph, graph.producer(each), "Unsqueeze")[0] for each in both)
        return query, key, "additive", node.inputs[1]
    key = _inputs(graph, graph.producer(node.inputs[1]), "Transpose")[0]
    return node.inputs[0], key, score, ""


def _residuals(graph: OnnxGraph, attention: dict[Sublayer, Attention]) -> dict[Sublayer, int]:
    """After an attention's sums come its residual connection and, where a feed-forward follows, that of it."""
    computed = {name for node in graph.nodes for name in node.outputs}
    sums = sorted((found.read_sums, name) for name, found in attention.items())
    ends = [at for at, _ in sums[1:]] + [len(graph.nodes)]
    residuals: dict[Sublayer, int] = {}
    for (start, (kind, layer)), end in zip(sums, ends, strict=True):
        adds = [
            at
            for at in range(start, end)
            if graph.nodes[at].op == "Add" and computed.issuperset(graph.nodes[at].inputs)
        ]
        names = [kind] if kind == "decoder" else [kind, f"{'encoder' if kind == 'encoder' else 'decoder'}_feed_forward"]
        if len(adds) < len(names):
            raise UnknownGraphError(f"there is no residual connection after {kind} attention {layer}")
        residuals |= {(name, layer): at for name, at in zip(names, adds, strict=False)}
    return residuals


def _streams(graph: OnnxGraph, residuals: dict[Sublayer, int]) -> tuple[str, dict[Sublayer, str]]:
    """pre or post, and x after each sub-layer: the sum, or with post-norm its norm, as many nodes later everywhere."""
    places = list(residuals.items())
    streams: dict[Sublayer, str] = {}
    later = 0
    for place, (name, at) in enumerate(places):
        following = places[place + 1][1] if place + 1 < len(places) else None
        if following is not None and name[0].startswith("encoder") == places[place + 1][0][0].startswith("encoder"):
            x = graph.nodes[following].inputs[0]
            producer = graph.producer(x)
            assert producer is not None
            later, streams[name] = producer - at, x
        else:  # the last of a stack
            streams[name] = graph.nodes[at + later].outputs[0]
    return "post" if later else "pre", streams


def _embedded(graph: OnnxGraph, side: str) -> Embedded | None:
    """None: positions are not added to embeddings."""
    sliced = graph.consumers(f"{side}_embedding.positions")
    if not sliced:
        return None
    [positions] = graph.nodes[sliced[0]].outputs
    [node] = graph.consumers(positions)
    tokens, _ = _inputs(graph, node, "Add", 2)
    return Embedded(tokens, positions, node)
