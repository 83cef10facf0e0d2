"""Texts that are split, marked up or protected: from a request to the tasks of their segments, and back.

A request that asks for none of it is planned as `planning.py` does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attendant.service.documents.building import Format, Reader, build_document
from attendant.service.documents.detection import Detected, detect
from attendant.service.documents.document import Document
from attendant.service.documents.joining import PlannedSegment, join
from attendant.service.documents.protection import Protection, compiled
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.tasks import AttentionChoice, Explain, Generate, Ids, Options, Outcome
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.constraints import read_phrases
from attendant.service.requests.inputs import encode_source, encode_target, refuse_lone_surrogate, unknown_pieces
from attendant.service.requests.planning import (
    SEEDS,
    Problem,
    checked,
    input_seed,
    options_of,
    plan_texts,
    refuse,
)
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.text.language_codes import short_code
from attendant.service.text.languages import Chosen

AUTO = "auto"  # a source language that is to be detected

SegmentTask = Generate | Explain


@dataclass(frozen=True)
class PlannedDocument:
    document: Document
    segments: list[PlannedSegment]
    tasks: list[SegmentTask]


@dataclass(frozen=True)
class Plan:
    """What a request to generate becomes: tasks, and what makes an outcome for each text of theirs."""

    tasks: Sequence[SegmentTask]
    in_order: Callable[[Sequence[Outcome]], list[Outcome]]
    unknown: Mapping[int, list[str]]
    documents: Mapping[int, PlannedDocument]  # by the place of the text; none where texts are decoded as they are
    detected: Mapping[int, Detected]


def plan_request(request: GenerateRequest, served: ServedModel, settings: Settings) -> Plan:
    """The tasks of the texts that can be decoded; if none can, or all must, the refusal is raised."""
    places = range(len(request.inputs))
    detected: Mapping[int, Detected] = {}
    if request.source_language == AUTO or (request.source_language is None and _must_detect(served)):
        codes = served.languages.source
        if not codes:
            request = request.model_copy(update={"source_language": None})
        else:
            found = {place: detect(request.inputs[place], codes) for place in places}
            detected = {place: each[0] for place, each in found.items() if each}
    if not splits(request) and not detected:
        planned = plan_texts(request, served, settings)
        return Plan(planned.tasks, planned.in_order, planned.unknown, {}, {})
    return _Planner(request, served, settings, detected).plan()


def splits(request: GenerateRequest) -> bool:
    """Whether its texts are documents, of segments."""
    return bool(request.split != "none" or request.format != "text" or request.protect or request.protect_pattern)


def _must_detect(served: ServedModel) -> bool:
    return len(served.languages.source) > 1 and served.languages.source_language is None


class _Planner:
    def __init__(
        self, request: GenerateRequest, served: ServedModel, settings: Settings, detected: Mapping[int, Detected]
    ) -> None:
        self._served, self._settings, self._detected = served, settings, detected
        first = self._languages(request, 0)
        self._request = request = checked(request, served, settings, first)
        refuse(_contradictions(request))
        if request.protect_pattern is not None:
            compiled(request.protect_pattern)  # refused here, once
        self._options = options_of(request, served)
        prefix = request.target_prefix or ""
        self._prefix = encode_target(served, prefix, "target_prefix", self._options.max_length, request.allow_unknown)
        self._phrases = read_phrases(request, served, settings)
        self._left = settings.max_segments
        self._seed = secrets.randbelow(SEEDS) if request.seed is None else request.seed

    def plan(self) -> Plan:
        documents: dict[int, PlannedDocument] = {}
        refused: dict[int, InvalidFieldError] = {}
        unknown: dict[int, list[str]] = {}
        inputs = self._request.inputs
        for place, text in enumerate(inputs):
            name = "inputs" if len(inputs) == 1 else f"inputs[{place}]"
            try:
                documents[place], pieces = self._document(text, place, name)
            except InvalidFieldError as error:
                refused[place] = error
            else:
                unknown |= {place: pieces} if pieces else {}
        if refused and (self._request.all_or_nothing or not documents):
            refuse([(error.field or "", error.message) for error in refused.values()])

        def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
            left = iter(outcomes)
            tokenizer = self._served.engine.target_tokenizer
            joined: dict[int, Outcome] = {}
            for place, planned in documents.items():
                found = [next(left) for _ in planned.tasks]
                joined[place] = join(planned.document, planned.segments, found, tokenizer)
            return [joined[place] if place in joined else refused[place] for place in range(len(inputs))]

        tasks = [task for planned in documents.values() for task in planned.tasks]
        return Plan(tasks, in_order, unknown, documents, self._detected)

    def _languages(self, request: GenerateRequest, place: int) -> Chosen:
        found = self._detected.get(place)
        source = request.source_language if found is None else found.language
        return self._served.languages.choose(source, request.target_language)

    def _document(self, text: str, place: int, name: str) -> tuple[PlannedDocument, list[str]]:
        if not text.strip():
            raise InvalidFieldError(f"{name} is empty; give a text.", name)
        refuse_lone_surrogate(text, name)
        request, languages = self._request, self._languages(self._request, place)
        form = Format(
            split=request.split,
            html=request.format == "html",
            protection=Protection(tuple(request.protect), request.protect_pattern),
            language=self._iso(place),
            most=self._left,
        )
        document = build_document(text, form, self._reader(languages.source_prefix), name)
        planned: list[PlannedSegment] = []
        tasks: list[SegmentTask] = []
        unknown: dict[str, None] = {}
        for number, segment in enumerate(document.segments):
            source = encode_source(self._served, segment.text, name, languages.source_prefix, request.allow_unknown)
            unknown |= dict.fromkeys(unknown_pieces(self._served, segment.text, source))
            seed = input_seed(input_seed(self._seed, place), number)
            options = replace(self._options, seed=seed) if self._options.samples else self._options
            search = Generate(
                source=source,
                options=options,
                prefix=self._prefix if number == 0 else (),
                start=languages.start,
                stream=request.stream and not segment.nodes,
                constraints=self._constraints(segment.text, number, options),
            )
            starts = self._starts(segment.text, languages.source_prefix) if segment.nodes else ()
            planned.append(PlannedSegment(segment, starts))
            tasks.append(self._aligned(search, starts) if segment.nodes else search)
        self._left -= len(planned)
        return PlannedDocument(document, planned, tasks), list(unknown)

    def _constraints(self, text: str, number: int, options: Options) -> Constraints | None:
        """Terms of a segment: those for phrases of its source, and those for every input."""
        prefix = self._prefix if number == 0 else ()
        return None if self._phrases is None else self._phrases.constraints(text, prefix, options)

    def _iso(self, place: int) -> str:
        """The language by whose rules sentences are found."""
        languages = self._served.languages
        found = self._detected.get(place)
        code = found.language if found is not None else self._request.source_language or languages.source_language
        return short_code(code) if code else self._settings.pair_of(self._served.name)[0] or "en"

    def _reader(self, prefix: Ids | None) -> Reader:
        tokenizer = self._served.engine.source_tokenizer
        bare = prefix is not None
        unknown = self._served.description.special_ids["unk"]
        taken = len(prefix) if prefix is not None else tokenizer.added

        def knows(text: str) -> bool:
            ids = tokenizer.encode(text, True)
            return bool(ids) and unknown not in ids

        return Reader(
            limit=max(1, self._served.description.max_source_length - taken),
            spans=lambda text: [span for span in tokenizer.spans(text, bare) if span is not None],
            knows=knows,
        )

    def _starts(self, text: str, prefix: Ids | None) -> tuple[int | None, ...]:
        spans = self._served.engine.source_tokenizer.spans(text, prefix is not None)
        return (*[None] * len(prefix or ()), *(None if span is None else span[0] for span in spans), None)

    def _aligned(self, search: Generate, starts: Sequence[int | None]) -> Explain:
        return Explain(
            search=search,
            attention=AttentionChoice(kinds=()),
            alignment=self._served.description.alignment,
            alignable=tuple(place for place, start in enumerate(starts) if start is not None),
            max_values=self._settings.max_explain_values,
            best_effort=True,
        )


def _contradictions(request: GenerateRequest) -> list[Problem]:
    asked = (
        "format html" if request.format == "html" else "protect" if request.protect or request.protect_pattern else ""
    )
    if asked and request.num_hypotheses > 1:
        sentence = f"num_hypotheses is {request.num_hypotheses}; with {asked} one hypothesis is answered."
        return [("num_hypotheses", sentence)]
    if request.target_prefix and request.split != "none":
        return [("target_prefix", "target_prefix is for a text that is decoded as one; leave it or split out.")]
    return []
