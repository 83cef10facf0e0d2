"""Request and response of POST /v1/explain."""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

from pydantic import Field

from attendant.service.requests.schemas import (
    ANY_TEXT,
    TIMEOUT,
    TIMEOUT_TAKES,
    EarlyStopping,
    GenerateRequest,
    HypothesisResponse,
    Phrases,
    RequestModel,
    ResponseModel,
    Term,
    Text,
    TimingResponse,
    UsageResponse,
    model_option,
    option,
    value,
)

MOST_ALTERNATIVES = 100
KINDS = Literal["encoder", "decoder", "cross"]
SUBLAYERS = Literal["encoder", "decoder", "cross", "encoder_feed_forward", "decoder_feed_forward"]
SUBLAYERS_TAKES = "encoder, decoder, cross, encoder_feed_forward or decoder_feed_forward"
INCLUDED = Literal[
    "structure",
    "qkv",
    "scores",
    "sums",
    "projected",
    "residual",
    "embeddings",
    "positions",
    "bias",
    "neighbours",
    "plane",
]
PARTS: dict[str, Any] = {"max_length": 1000, "fail_fast": True}
LAYERS_TAKES = "a list of whole numbers from 0, or null"
Places = list[Annotated[int, Field(ge=0)]]
PLACES: dict[str, Any] = {"items": "a whole number from 0", "max_length": 1000, "fail_fast": True}


def shared(name: str) -> Any:
    """A field of POST /v1/generate that means the same here."""
    return copy.copy(GenerateRequest.model_fields[name])


class AblatedHead(RequestModel):
    kind: KINDS = option(..., "whose heads", "encoder, decoder or cross")
    layer: int = option(..., "its layer, from 0", "a whole number from 0", ge=0)
    head: int = option(..., "the head, from 0", "a whole number from 0", ge=0)


class AblatedSublayer(RequestModel):
    kind: SUBLAYERS = option(..., "an attention, or the feed-forward of encoder or decoder", SUBLAYERS_TAKES)
    layer: int = option(..., "its layer, from 0", "a whole number from 0", ge=0)


class AblatedLayer(RequestModel):
    stack: Literal["encoder", "decoder"] = option(..., "whose layer", "encoder or decoder")
    layer: int = option(..., "the layer, from 0", "a whole number from 0", ge=0)


class AblateRequest(RequestModel):
    heads: list[AblatedHead] = option([], "heads whose sums are 0", "a list of heads", **PARTS)
    sublayers: list[AblatedSublayer] = option([], "sub-layers that add nothing", "a list of sub-layers", **PARTS)
    layers: list[AblatedLayer] = option([], "layers whose sub-layers add nothing", "a list of layers", **PARTS)
    residuals: list[AblatedSublayer] = option(
        [],
        "sub-layers whose output is not added to what they read, but takes its place",
        "a list of sub-layers",
        **PARTS,
    )
    positions: list[Literal["source", "target"]] = option(
        [],
        "sides that are read without the positions that are added to embeddings",
        "a list of source and target",
        items="source or target",
        max_length=2,
    )


class ExplainRequest(RequestModel):
    source: Text = option(..., "the source text", ANY_TEXT)
    target: str | None = option(
        None, "the target to explain; null: what the model answers with the options below", "a text, or null"
    )
    target_tokens: list[str] | None = option(
        None, "the same as tokens, instead of target", "a list of tokens, or null", fail_fast=True
    )
    attention: list[KINDS] = option(
        ["cross"],
        "kinds of attention answered: of the encoder over the source, of the decoder over what it has read, of the "
        "decoder over the source",
        "a list of encoder, decoder and cross",
        items="encoder, decoder or cross",
        max_length=3,
    )
    layers: Places | None = option(None, "layers answered, from 0; null: all", LAYERS_TAKES, min_length=1, **PLACES)
    heads: Places | None = option(None, "heads answered, from 0; null: all", LAYERS_TAKES, min_length=1, **PLACES)
    average: Literal["none", "heads", "layers", "both"] = option(
        "none", "the mean over the chosen heads, layers or both, in their place", "none, heads, layers or both"
    )
    encoding: Literal["json", "float16", "uint8"] = option(
        "json",
        "of attention weights: nested lists of numbers, or base64 of little-endian float16 or of uint8, 255 being 1; "
        "of what is included, uint8 means float16",
        "json, float16 or uint8",
    )
    include: list[INCLUDED] = option(
        [],
        "what else is answered, by the layers and heads chosen: queries, keys and values; their scores before the "
        "mask; the weighted sums of the values; what each head's sum adds to the stream; the residual stream; "
        "embeddings; tables of positions; relative positions' bias of scores; each token's nearest; the target "
        "vocabulary in a plane; what kind of Transformer it is",
        "a list of structure, qkv, scores, sums, projected, residual, embeddings, positions, bias, neighbours and "
        "plane",
        items="structure, qkv, scores, sums, projected, residual, embeddings, positions, bias, neighbours or plane",
        max_length=11,
    )
    ablate: AblateRequest | None = option(
        None,
        "parts that are switched off: attention, include and ablated are of the model without them, all else of the "
        "model that is served; null: none",
        "an object, or null",
    )
    alternatives: int = option(
        5,
        "most probable tokens answered at each step",
        f"a whole number from 0 to {MOST_ALTERNATIVES}",
        unit="tokens",
        ge=0,
        le=MOST_ALTERNATIVES,
    )
    alignment_layer: int | None = option(
        None, "the decoder layer to align by; null: the bundle's choice", "a whole number from 0, or null", ge=0
    )
    alignment_heads: Places | None = option(
        None,
        "the heads of it whose mean aligns; null: the bundle's choice, or all with alignment_layer",
        LAYERS_TAKES,
        min_length=1,
        **PLACES,
    )
    alignment_method: Literal["argmax", "mutual"] | None = option(
        None,
        "argmax: each target token and the source token of its largest weight; mutual: only where that weight is also "
        "the source token's largest; null: the bundle's choice",
        "argmax, mutual or null",
    )
    beam_size: int = shared("beam_size")
    num_hypotheses: int = shared("num_hypotheses")
    length_penalty: float = shared("length_penalty")
    early_stopping: EarlyStopping = shared("early_stopping")
    max_length: int | None = shared("max_length")
    min_length: int = shared("min_length")
    repetition_penalty: float = shared("repetition_penalty")
    no_repeat_ngram_size: int = shared("no_repeat_ngram_size")
    target_prefix: str | None = shared("target_prefix")
    terms: list[Term] | None = shared("terms")
    glossary: str | None = shared("glossary")
    forbid: Phrases | None = shared("forbid")
    choices: Phrases | None = shared("choices")
    source_language: str | None = shared("source_language")
    target_language: str | None = shared("target_language")
    allow_unknown: bool | None = shared("allow_unknown")
    temperature: float | None = shared("temperature")
    top_k: int | None = shared("top_k")
    top_p: float | None = shared("top_p")
    seed: int | None = shared("seed")
    timeout_ms: int | None = option(
        None, "from arrival; past it 504; null: the service's setting", TIMEOUT_TAKES, **TIMEOUT
    )
    model: str | None = model_option()


class TokenSpan(ResponseModel):
    id: int = value("its number in the vocabulary of its side")
    token: str = value("the token")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    start: int | None = value("its first character in the text; null where it stands for no text", "characters")
    end: int | None = value("the character after its last; null likewise", "characters")


class ExplainedText(ResponseModel):
    text: str = value("the text; characters are Unicode code points")
    tokens: list[TokenSpan] = value("its tokens, the end token last where there is one")


class DecoderInput(ResponseModel):
    id: int = value("its number in the target vocabulary")
    token: str = value("what the decoder reads: the start token, then the target without its last token")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    index: int | None = value("its place among the target's tokens; null before the first")


class Alternative(ResponseModel):
    id: int = value("its number in the target vocabulary")
    token: str = value("the token")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    logprob: float = value("of the token", "nats")


class ExplainedStep(ResponseModel):
    id: int = value("of the token that was chosen, or given")
    token: str = value("the token")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    logprob: float = value("given the source and the tokens before it", "nats")
    entropy: float = value("of the distribution that it is of", "nats")
    alternatives: list[Alternative] = value("the most probable tokens, best first")


class AttentionResponse(ResponseModel):
    kind: str = value("encoder, decoder or cross")
    layers: list[int] = value("that were chosen")
    heads: list[int] = value("that were chosen")
    rows: str = value("what rows are: tokens of source or target; a target's row is the step that gives the token")
    columns: str = value("what columns are: tokens of source, or decoder_inputs")
    shape: list[int] = value("layers, heads, rows, columns; 1 for what was averaged over")
    values: list[list[list[list[float]]]] | str = value("weights, each row summing to 1, in the encoding asked for")


class IncludedResponse(ResponseModel):
    name: str = value(
        "query, key, value, vector, scores, sums, projected, bias, stream, output, tokens, positions or position_table"
    )
    of: str = value("the kind of attention, the stack (encoder, decoder) or the side (source, target)")
    axes: list[str] = value("what each axis counts")
    places: list[str] = value(
        "what the axis places counts: the embedding and sub-layers, by kind and layer; or distances: of a key after "
        "its query, below 0 before it"
    )
    layers: list[int] = value("that were chosen; empty where there is no such axis")
    heads: list[int] = value("that were chosen; empty where there is no such axis")
    shape: list[int] = value("the size of each axis")
    values: list[Any] | str = value("in the encoding asked for; uint8 means float16 here")


class Neighbour(ResponseModel):
    id: int = value("its number in the vocabulary")
    token: str = value("the token")
    text: str = value("what the token stands for")
    cosine: float = value("of the angle between both embeddings")


class TokenNeighbours(ResponseModel):
    id: int = value("its number in the vocabulary")
    token: str = value("the token")
    text: str = value("what the token stands for")
    nearest: list[Neighbour] = value("tokens of the same table with the smallest angle, nearest first")


class NeighboursResponse(ResponseModel):
    side: str = value("source or target")
    tokens: list[TokenNeighbours] = value("each token of the text once")


class PlanePoint(ResponseModel):
    id: int = value("its number in the target vocabulary")
    token: str = value("the token")
    text: str = value("what the token stands for")
    x: float = value("along the direction in which embeddings vary most")
    y: float = value("along the second")


class PlaneResponse(ResponseModel):
    share: float = value("of the variance of the directions of embeddings that the plane shows", "0 to 1")
    points: list[PlanePoint] = value("the first 2000 tokens of the target vocabulary")


class StructureResponse(ResponseModel):
    norm: str = value("pre or post: whether a norm comes before a sub-layer, or after its residual connection")
    norm_kind: str = value("layer: LayerNorm; rms: RMSNorm")
    activation: str = value(
        "of the feed-forward: relu, gelu or silu, after gated_ where it has a gate; empty: another one"
    )
    score: str = value("of attention: dot, additive or gaussian")
    positions: str = value(
        "sinusoidal or learned: added to embeddings; relative: a bias of scores by distance; none: neither"
    )
    added_positions: list[str] = value("sides whose embeddings have positions added")


class AblatedResponse(ResponseModel):
    text: str = value("what the model without these parts answers greedily")
    tokens: list[str] = value("its tokens, without the end token")
    logprobs: list[float] = value("of each, and of the end token where it came", "nats")
    finish_reason: str = value("stop or length: it may be 8 tokens longer than the explained target")
    steps: list[ExplainedStep] = value("of the explained target, for the model without these parts")


class SpanResponse(ResponseModel):
    start: int = value("first character", "characters")
    end: int = value("the character after the last", "characters")


class WordPair(ResponseModel):
    source: SpanResponse = value("of a word in the source text")
    target: SpanResponse = value("of the word in the target text that it is aligned with")


class AlignmentResponse(ResponseModel):
    layer: int = value("the decoder layer")
    heads: list[int] = value("its heads, whose mean aligns")
    method: str = value("argmax or mutual")
    chosen_by: str = value("bundle: at export; request; default: the last layer's mean, where the bundle has no choice")
    pairs: str = value("places of aligned tokens, source-target: 0-0 1-2")
    words: list[WordPair] = value("words of which tokens are aligned, with their places in the texts")


class BeamNodeResponse(ResponseModel):
    node: int = value("its number, from 1; 0 is the root, which is the target's prefix")
    parent: int = value("the node that it extends")
    id: int = value("the token's number in the target vocabulary")
    token: str = value("the token that it adds")
    text: str = value("what the token stands for; bytes that are no whole character as <0xE6>")
    logprob: float = value("of the token", "nats")
    sum: float = value("summed log-probability after penalties, by which a step's candidates are ranked", "nats")
    score: float = value("sum / length ** length_penalty, by which those that finished are ranked", "nats")
    state: str = value("kept: extended in the next step; finished; pruned")
    hypothesis: int | None = value("its place among the hypotheses answered; null for others")


class ExplainTiming(TimingResponse):
    attention_ms: float = value("computing attention weights, at first with loading their graph", "ms")


class ExplainResponse(ResponseModel):
    model: str = value("the model's name")
    source: ExplainedText = value("the source, as tokens with their places in the text")
    target: ExplainedText = value("the target that is explained: the one given, or the first hypothesis")
    decoder_inputs: list[DecoderInput] = value("what the decoder read at each step")
    hypotheses: list[HypothesisResponse] | None = value("as POST /v1/generate answers; null for a given target")
    steps: list[ExplainedStep] = value("one for each token of the target")
    attention: list[AttentionResponse] = value("one for each kind asked for")
    included: list[IncludedResponse] = value("values that were computed on the way, as include asks")
    neighbours: list[NeighboursResponse] | None = value("nearest tokens by embedding; null where not asked for")
    plane: PlaneResponse | None = value("the target vocabulary in a plane; null where not asked for")
    structure: StructureResponse | None = value("what kind of Transformer it is; null where not asked for")
    ablated: AblatedResponse | None = value("what the model does without the parts of ablate; null without it")
    encoding: str = value("of attention weights")
    attention_precision: str = value("what computed attention weights: fp32 where the bundle has it")
    alignment: AlignmentResponse = value("which source and target tokens belong together")
    tree: list[list[BeamNodeResponse]] | None = value(
        "the candidates of each step of a greedy or beam search, best first; null for samples and a given target"
    )
    usage: UsageResponse = value("what was read and written")
    timing: ExplainTiming = value("where the time went")
