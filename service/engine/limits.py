"""What a model can decode at all: tasks that pass these checks have no position or id outside of the graphs' tables."""

from __future__ import annotations

from attendant.export.bundle import Bundle
from attendant.service.engine.explain.attention import check_choices
from attendant.service.engine.search.constraints.constraints import Constraints
from attendant.service.engine.tasks import ALIGNMENT_METHODS, AlignmentChoice, Explain, Generate, Ids, Score, Task
from attendant.service.errors import InvalidFieldError, StartError
from attendant.service.text.glossary import Glossary, check_targets, read_glossaries
from attendant.service.text.languages import Languages, read_languages
from attendant.service.text.tokenizer import Tokenizer


def start_tokens(bundle: Bundle) -> Ids:
    """The tokens that this bundle decodes before every target, if any, e.g. a language."""
    start = bundle.generation.get("target_prefix", [])
    vocabulary, longest = bundle.sizes.target_vocab, bundle.limits["max_target_length"] - 2  # token, end token
    known = isinstance(start, list) and all(type(token) is int and 0 <= token < vocabulary for token in start)
    if not known or len(start) > longest:
        raise StartError(
            f"{bundle.directory}: generation.target_prefix in its manifest takes at most {longest} ids from 0 to "
            f"{vocabulary - 1}, not {str(start)[:60]}. Export the model again."
        )
    return tuple(start)


def languages_of(bundle: Bundle) -> Languages:
    """The languages that a request may name; StartError if the manifest's are invalid."""
    longest = min(bundle.limits["max_source_length"], bundle.limits["max_target_length"]) - 2
    try:
        return read_languages(bundle.languages, bundle.sizes.source_vocab, bundle.sizes.target_vocab, longest)
    except StartError as error:
        raise StartError(f"{bundle.directory}: {error}") from None


def glossaries_of(bundle: Bundle, tokenizer: Tokenizer) -> dict[str, Glossary]:
    """The glossaries that a request may choose; StartError if one is invalid. `tokenizer` is that of the target."""
    glossaries = read_glossaries(bundle.directory)
    check_targets(glossaries, tokenizer, bundle.limits["max_target_length"] - 1, bundle.directory)
    return glossaries


def alignment_of(bundle: Bundle) -> AlignmentChoice:
    """The bundle's choice for alignments; if it has none, the mean over all heads of the last decoder layer."""
    sizes, found = bundle.sizes, bundle.alignment
    if not found:
        return AlignmentChoice(layer=sizes.decoder_layers - 1, heads=tuple(range(sizes.heads)))
    layer, heads, method = found["layer"], found["heads"], found["method"]
    known = 0 <= layer < sizes.decoder_layers and heads and all(0 <= head < sizes.heads for head in heads)
    if not known or method not in ALIGNMENT_METHODS:
        raise StartError(
            f"{bundle.directory}: alignment in its manifest takes a layer from 0 to {sizes.decoder_layers - 1}, heads "
            f"from 0 to {sizes.heads - 1} and one of {', '.join(ALIGNMENT_METHODS)}, not {str(found)[:100]}. "
            "Export the model again."
        )
    return AlignmentChoice(layer=layer, heads=tuple(heads), method=method)


def check_task(task: Task, bundle: Bundle, start: Ids) -> None:
    """InvalidFieldError if a task needs more positions than the model has, or has ids outside of its vocabulary.

    `start` tokens take up target positions too.
    """
    if isinstance(task, Explain):
        check_task(task.search, bundle, start)
        check_choices(task.attention, task.alignment)
        return
    sizes, limits = bundle.sizes, bundle.limits
    max_target_length = limits["max_target_length"] - len(start)
    _check(start, "start", limits["max_target_length"] - 2, sizes.target_vocab)
    _check(task.source, "source", limits["max_source_length"], sizes.source_vocab)
    if isinstance(task, Generate):
        _check(task.prefix, "prefix", task.options.max_length, sizes.target_vocab)
        if task.options.max_length > max_target_length:
            raise InvalidFieldError(
                f"max_length is {task.options.max_length}, over this model's limit of {max_target_length}.",
                "max_length",
            )
        _check_constraints(task.constraints, sizes.target_vocab)
    elif isinstance(task, Score):
        _check(task.target, "target", max_target_length - 1, sizes.target_vocab)
    else:
        _check(task.prefix, "prefix", max_target_length - 1, sizes.target_vocab)
        _check_constraints(task.constraints, sizes.target_vocab)


def _check_constraints(constraints: Constraints | None, vocabulary: int) -> None:
    if constraints is not None:
        _check(constraints.ids, "constraints", len(constraints.ids), vocabulary)


def _check(ids: Ids, name: str, max_length: int, vocabulary: int) -> None:
    if len(ids) > max_length:
        raise InvalidFieldError(f"the {name} has {len(ids)} tokens; {max_length} is the limit.", name)
    if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
        raise InvalidFieldError(f"the {name} has an id outside of 0 to {vocabulary - 1}.", name)
