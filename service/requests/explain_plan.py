"""From a request to POST /v1/explain to the engine's task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attendant.export.bundle import Sizes
from attendant.service.engine.explain import attention
from attendant.service.engine.explain.counts import count_included
from attendant.service.engine.tasks import AlignmentChoice, AttentionChoice, Explain, Generate, Score
from attendant.service.requests.ablation import ablation_of, problems_of
from attendant.service.requests.explain_schemas import ExplainRequest
from attendant.service.requests.inputs import encode_source, encode_target
from attendant.service.requests.planning import Problem, plan_generate, refuse
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.text.tokenizer import Span

WITH_A_TARGET = {"source_language", "target_language", "allow_unknown", "timeout_ms", "model"}
TEXT_BYTES = {"json": 10, "float16": 2.7, "uint8": 1.4}  # of an attention weight in the answer
RECORDED_BYTES = 250  # of an alternative, a step or a node of the tree: objects, and their JSON
RECORDED = 3  # of these for each step of a row, beside the alternatives
SEARCH_OPTIONS = [name for name in ExplainRequest.model_fields if name in GenerateRequest.model_fields]


@dataclass(frozen=True)
class ExplainPlan:
    task: Explain
    source_spans: list[Span | None]  # the end token's included
    target_spans: list[Span | None] | None  # of a target given as text, without the end token
    chosen_by: str  # who chose the alignment: request, bundle or default


def plan_explain(request: ExplainRequest, served: ServedModel, settings: Settings) -> ExplainPlan:
    refuse(_problems(request, served))
    languages = served.languages.choose(request.source_language, request.target_language)
    given = request.target_tokens if request.target is None else request.target
    if given is None:
        search: Generate | Score = _plan_search(request, served, settings)
    else:
        unknown, field = request.allow_unknown, "target_tokens" if request.target is None else "target"
        source = encode_source(served, request.source, "source", languages.source_prefix, unknown)
        target = encode_target(served, given, field, allow_unknown=unknown)
        search = Score(
            source=source,
            target=target,
            start=languages.start,
            top_logprobs=min(request.alternatives, len(served.tokens)),
            record=True,
        )
    tokenizer, prefix = served.engine.source_tokenizer, languages.source_prefix
    spans = [*[None] * len(prefix or ()), *tokenizer.spans(request.source, bare=prefix is not None), None]
    alignment, chosen_by = _alignment(request, served)
    task = Explain(
        search=search,
        attention=AttentionChoice(
            kinds=tuple(dict.fromkeys(request.attention)),
            layers=None if request.layers is None else tuple(request.layers),
            heads=None if request.heads is None else tuple(request.heads),
            average=request.average,
        ),
        alignment=alignment,
        alignable=tuple(place for place, span in enumerate(spans) if span is not None),
        max_values=settings.max_explain_values,
        include=tuple(dict.fromkeys(request.include)),
        ablation=None if request.ablate is None else ablation_of(request.ablate),
    )
    _refuse_size(task, served)
    target_spans = None if not request.target else served.engine.target_tokenizer.spans(request.target)
    return ExplainPlan(task, spans, target_spans, chosen_by)


def _plan_search(request: ExplainRequest, served: ServedModel, settings: Settings) -> Generate:
    given = request.model_fields_set & set(SEARCH_OPTIONS)
    values = {name: getattr(request, name) for name in SEARCH_OPTIONS}
    native = GenerateRequest.model_construct(given, inputs=[request.source], **values)
    (task,) = plan_generate(native, served, settings, "source")
    return replace(task, record=True, top_logprobs=min(request.alternatives, len(served.tokens)))


def _problems(request: ExplainRequest, served: ServedModel) -> list[Problem]:
    problems: list[Problem] = []
    given = next((name for name in ("target", "target_tokens") if getattr(request, name) is not None), None)
    if request.target is not None and request.target_tokens is not None:
        problems.append(("target_tokens", "target and target_tokens are both given; leave one out."))
    if given is not None:
        for name in sorted(request.model_fields_set & set(SEARCH_OPTIONS) - WITH_A_TARGET):
            problems.append((name, f"{name} is of a search, and {given} is given, so there is none; leave one out."))
    sizes = served.description.sizes
    for kind in dict.fromkeys(request.attention):
        problems += _out_of_range("layers", request.layers, attention.layers_of(kind, sizes), f" of {kind} attention")
    problems += _out_of_range("heads", request.heads, sizes.heads)
    layer = request.alignment_layer
    problems += _out_of_range("alignment_layer", None if layer is None else [layer], sizes.decoder_layers)
    problems += _out_of_range("alignment_heads", request.alignment_heads, sizes.heads)
    for field in ("layers", "heads", "alignment_heads"):
        problems += _repeated(field, getattr(request, field))
    return problems + (problems_of(request.ablate, sizes) if request.ablate else [])


def _out_of_range(field: str, found: Sequence[int] | None, count: int, of: str = "") -> list[Problem]:
    wrong = [place for place in found or () if place >= count]
    if not wrong:
        return []
    return [(field, f"{field} takes whole numbers from 0 to {count - 1}{of} with this model, not {wrong[0]}.")]


def _repeated(field: str, found: Sequence[int] | None) -> list[Problem]:
    twice = attention.first_repeated(found or ())
    return [] if twice is None else [(field, f"{field} names {twice} more than once; name each once.")]


def _alignment(request: ExplainRequest, served: ServedModel) -> tuple[AlignmentChoice, str]:
    """The layer, heads and method to align by, and who chose them: request, bundle or default."""
    own = served.description.alignment
    layer, heads, method = request.alignment_layer, request.alignment_heads, request.alignment_method
    if layer is None and heads is None and method is None:
        return own, "bundle" if served.description.alignment_chosen else "default"
    every = tuple(range(served.description.sizes.heads))
    chosen = AlignmentChoice(
        layer=own.layer if layer is None else layer,
        heads=tuple(heads) if heads is not None else own.heads if layer is None else every,
        method=method or own.method,
    )
    return chosen, "request"


def explanation_bytes(task: Explain, sizes: Sizes, encoding: str) -> int:
    """The most memory that an explanation takes from its outcome to the last byte of its answer."""
    search, source = task.search, len(task.source) + 1
    start = 1 + len(task.start or ())
    steps = len(search.target) + 1 if isinstance(search, Score) else search.options.max_length
    values = attention.count_values(task.attention, sizes, source, steps, start + steps)
    values += count_included(task.include, task.attention, sizes, source, steps, start + steps)
    recorded = search.rows * steps * (search.top_logprobs + RECORDED)
    return int(min(values, task.max_values) * (4 + TEXT_BYTES[encoding]) + recorded * RECORDED_BYTES)


def _refuse_size(task: Explain, served: ServedModel) -> None:
    """Refuse too many attention weights before the search: those of the given target, else of a target of one token."""
    steps = len(task.search.target) + 1 if isinstance(task.search, Score) else 1
    source = len(task.source) + 1
    sizes = served.description.sizes
    count = attention.count_values(task.attention, sizes, source, steps, steps)
    count += count_included(task.include, task.attention, sizes, source, steps, steps)
    attention.check_value_count(count, task.max_values)
