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
    RequestModel,
    ResponseModel,
    Text,
    TimingResponse,
    UsageResponse,
    model_option,
    option,
    value,
)

MOST_ALTERNATIVES = 100
KINDS = Literal["encoder", "decoder", "cross"]
LAYERS_TAKES = "a list of whole numbers from 0, or null"
Places = list[Annotated[int, Field(ge=0)]]
PLACES: dict[str, Any] = {"items": "a whole number from 0", "max_length": 1000, "fail_fast": True}


def shared(name: str) -> Any:
    """A field of POST /v1/generate that means the same here."""
    return copy.copy(GenerateRequest.model_fields[name])


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
        "of attention weights: nested lists of numbers, or base64 of little-endian float16 or of uint8, 255 being 1",
        "json, float16 or uint8",
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
    encoding: str = value("of attention weights")
    attention_precision: str = value("what computed attention weights: fp32 where the bundle has it")
    alignment: AlignmentResponse = value("which source and target tokens belong together")
    tree: list[list[BeamNodeResponse]] | None = value(
        "the candidates of each step of a greedy or beam search, best first; null for samples and a given target"
    )
    usage: UsageResponse = value("what was read and written")
    timing: ExplainTiming = value("where the time went")
