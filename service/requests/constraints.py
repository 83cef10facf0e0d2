"""From the phrases of a request to the constraints of a task: terms, a glossary, forbidden phrases and choices."""

from __future__ import annotations

from collections.abc import Sequence

from attendant.service.engine.search.constraints.choices import Choices
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.search.constraints.forbidden import Forbidden, Phrase
from attendant.service.engine.search.constraints.terms import Form, States, Term
from attendant.service.engine.tasks import Ids, Options
from attendant.service.errors import InvalidFieldError
from attendant.service.requests.inputs import check_phrase
from attendant.service.requests.schemas import GenerateRequest, NextTokenRequest, TermRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings
from attendant.service.text.glossary import Glossary, Pair
from attendant.service.text.phrases import cuts, cuts_inside, forms_of

TERMS_BEAM = 5  # beam_size of a request with terms that names none
LEAST_BEAM = 2  # with terms
MOST_FORMS = 256  # of all terms of a source: each is looked at in every step
NAMED = 40  # characters of a phrase, in an error
MOST_NAMED = 50  # glossaries

Problem = tuple[str, str]  # field, sentence


Asked = GenerateRequest | NextTokenRequest


class Phrases:
    """What a request asks for, as tokens; the constraints of a text depend on the text too."""

    def __init__(self, asked: Asked, served: ServedModel, settings: Settings) -> None:
        """InvalidFieldError if the model cannot write a phrase, or there is no such glossary."""
        terms, glossary = _terms_of(asked)
        _refuse_too_many(asked, terms, settings)
        self._served, self._edges = served, served.phrase_tokens.edges
        self._always: list[Term] = []
        pairs = []
        for place, term in enumerate(terms):
            targets = _targets(served, term, f"terms[{place}].target")
            if term.source is None:
                self._always.append(_term(served, Pair("", targets)))
            elif not term.source.strip():
                raise InvalidFieldError(f"terms[{place}].source is empty; give a text.", f"terms[{place}].source")
            else:
                pairs.append(Pair(term.source.strip(), targets))
        self._own, self._glossary = Glossary(pairs), _glossary(glossary, served)
        forbid = [check_phrase(served, text, f"forbid[{place}]") for place, text in enumerate(asked.forbid or ())]
        self._forbidden = (
            Forbidden((phrase for text in forbid for phrase in _forbidden(served, text)), self._edges)
            if forbid
            else None
        )
        choices = [check_phrase(served, text, f"choices[{place}]") for place, text in enumerate(asked.choices or ())]
        tokenizer = served.engine.target_tokenizer
        self._choices = Choices(tokenizer.encode(text) for text in choices) if choices else None

    @property
    def fixed(self) -> Constraints | None:
        """Those that depend on no source and no option, for a distribution over the next token."""
        if self._forbidden is None and self._choices is None:
            return None
        return Constraints(forbidden=self._forbidden, choices=self._choices)

    def constraints(self, text: str, prefix: Ids, options: Options) -> Constraints | None:
        """Those of one source; InvalidFieldError if no target could obey them."""
        terms = self._always + [_term(self._served, pair) for pair in self._pairs(text)]
        terms = list(dict.fromkeys(self._possible(term, options) for term in terms))
        self._check(terms, prefix, options)
        if not terms and self._forbidden is None and self._choices is None:
            return None
        return Constraints(terms=tuple(terms), forbidden=self._forbidden, choices=self._choices, edges=self._edges)

    def _pairs(self, text: str) -> list[Pair]:
        """The pairs that apply to a source; the request's own come before those of the glossary."""
        own = self._own.find(text) if len(self._own) else []
        known = {pair.source.lower() for pair in own}
        others = () if self._glossary is None else self._glossary.find(text)
        return own + [pair for pair in others if pair.source.lower() not in known]

    def _possible(self, term: Term, options: Options) -> Term:
        """The term without forms that are forbidden, or that repeat an n-gram that may not be."""
        size, forbidden = options.no_repeat_ngram_size, self._forbidden
        forms = tuple(
            form
            for form in term.forms
            if not (forbidden and forbidden.occurs_in(form.ids)) and not (size and _repeats(form.ids, size))
        )
        if all(form.at_edge for form in forms):
            why = "a phrase that is forbidden" if forbidden else "an n-gram twice"
            name = term.forms[0].text[:NAMED]
            raise InvalidFieldError(
                f"the term {name!r} has {why}; leave out the term, or forbid and no_repeat_ngram_size.", "terms"
            )
        return Term(forms, term.source)

    def _check(self, terms: Sequence[Term], prefix: Ids, options: Options) -> None:
        if terms:
            forms = sum(len(term.forms) for term in terms)
            if forms > MOST_FORMS:
                raise InvalidFieldError(
                    f"the terms of this source have {forms} forms in tokens; at most {MOST_FORMS} are looked for. "
                    "Leave out some.",
                    "terms",
                )
            missing = States(terms, self._edges).read(prefix).missing
            room = options.max_length - len(prefix) - options.forced_end
            if missing > room:
                names = ", ".join(repr(term.forms[0].text[:NAMED]) for term in terms[:5])
                raise InvalidFieldError(
                    f"the terms of this source take {missing} tokens, and {room} fit into max_length ({names}); raise "
                    "max_length, or leave out some.",
                    "terms",
                )
        if self._forbidden is not None and self._forbidden.occurs_in(prefix):
            raise InvalidFieldError("target_prefix has a phrase that is forbidden; leave one out.", "target_prefix")
        if self._choices is not None:
            longest = max(map(len, self._choices.answers))
            if longest + 1 > options.max_length:
                raise InvalidFieldError(
                    f"choices has an answer of {longest} tokens, {longest + 1} with the end token; "
                    f"{options.max_length} fit into max_length.",
                    "choices",
                )
            if not self._choices.next_tokens(prefix, self._served.end):
                raise InvalidFieldError("no choice starts with target_prefix; leave one out.", "target_prefix")


def read_phrases(asked: Asked, served: ServedModel, settings: Settings) -> Phrases | None:
    """None where nothing is asked. Equal requests, as those of a bulk run's lines, share what was read."""
    asked_terms, glossary = _terms_of(asked)
    if not (asked_terms or glossary or asked.forbid or asked.choices):
        return None
    terms = tuple((term.source, tuple(term.target)) for term in asked_terms)
    key = (terms, glossary, tuple(asked.forbid or ()), tuple(asked.choices or ()), settings.max_phrases)
    last = served.last_phrases  # one, so that nothing large is kept for long
    if last is not None and last[0] == key and isinstance(last[1], Phrases):
        return last[1]
    found = Phrases(asked, served, settings)
    served.last_phrases = key, found
    return found


def _terms_of(asked: Asked) -> tuple[list[TermRequest], str | None]:
    """Those and the glossary; a request for the next token has neither."""
    return (asked.terms or [], asked.glossary) if isinstance(asked, GenerateRequest) else ([], None)


def problems_of(
    asked: GenerateRequest, given: set[str], *, samples: bool, beam_size: int, others: Sequence[str]
) -> list[Problem]:
    """Fields that contradict each other; `given` are those of the request, `others` those that choices rule out."""
    problems = []
    for name in ("terms", "glossary"):
        if getattr(asked, name) and samples:
            sentence = f"{name} is for beam search; leave out temperature, or {name}."
            problems.append((name, sentence))
        elif getattr(asked, name) and beam_size < LEAST_BEAM:
            sentence = (
                f"{name} takes a beam_size of at least {LEAST_BEAM}, not {beam_size}; without beam_size it is "
                f"{TERMS_BEAM}."
            )
            problems.append((name, sentence))
    if asked.choices:
        for name in ("terms", "glossary", "forbid", *others):
            if name in given and getattr(asked, name):
                problems.append(("choices", f"choices are whole answers; leave out {name}, or choices."))
    return problems


def _refuse_too_many(asked: Asked, terms: Sequence[TermRequest], settings: Settings) -> None:
    forms = [(f"terms[{place}].target", len(term.target)) for place, term in enumerate(terms)]
    counts = [("terms", len(terms)), ("forbid", len(asked.forbid or ())), ("choices", len(asked.choices or ()))]
    for name, count in [*counts, *forms]:
        if count > settings.max_phrases:
            raise InvalidFieldError(f"{name} has {count} phrases; it takes at most {settings.max_phrases}.", name)


def _glossary(name: str | None, served: ServedModel) -> Glossary | None:
    if name is None:
        return None
    glossaries = served.description.glossaries
    if name in glossaries:
        return glossaries[name]
    known = ", ".join([*glossaries][:MOST_NAMED]) or "none"
    raise InvalidFieldError(f"glossary is {name[:NAMED]!r}; this model has: {known}.", "glossary")


def _targets(served: ServedModel, term: TermRequest, field: str) -> tuple[str, ...]:
    if len(term.target) == 1:
        return (check_phrase(served, term.target[0], field),)
    return tuple(check_phrase(served, text, f"{field}[{place}]") for place, text in enumerate(term.target))


def _term(served: ServedModel, pair: Pair) -> Term:
    tokenizer = served.engine.target_tokenizer
    forms = [
        Form(ids, text, at_edge)
        for text in pair.targets
        for ids, at_edge in forms_of(tokenizer, text, tokenizer.unknown)
    ]
    return Term(tuple(dict.fromkeys(forms)), pair.source or None)


def _forbidden(served: ServedModel, text: str) -> list[Phrase]:
    """A phrase in every way in which tokens can write it."""
    tokenizer, texts = served.engine.target_tokenizer, served.phrase_tokens
    forms = forms_of(tokenizer, text, tokenizer.unknown)
    found = [Phrase(cuts(tokenizer, ids, texts), at_edge) for ids, at_edge in forms]
    inside = [edges for ids, _ in forms if (edges := cuts_inside(tokenizer, ids, texts))]
    return [*found, *map(Phrase, inside)]


def _repeats(ids: Ids, size: int) -> bool:
    grams = [ids[place : place + size] for place in range(len(ids) - size + 1)]
    return len(set(grams)) < len(grams)
