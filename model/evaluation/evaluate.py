"""How good a model is: error rates over sequences and over tokens, where any listed reference counts as right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendant.model.corpus.pairs import read_references
from attendant.model.errors import ConfigError, DataError
from attendant.model.evaluation.overlap import overlap
from attendant.model.text.unknown import named, pieces_lacking
from attendant.model.threads import torch_threads

if TYPE_CHECKING:
    from attendant.model.checkpoint import TrainedModel
    from attendant.model.text.tokenizer import Tokenizer


WORTH_MEASURING = 200  # sources: with fewer, the fastest number of threads is not measured
MEASURED, MEASURED_STEPS = 64, 8  # sources, and tokens decoded for each, to measure it with


@dataclass(frozen=True)
class ErrorRates:
    sequence: float  # percent of the outputs that equal none of their references
    token: float  # percent: edits to the nearest reference, over the tokens of that reference


def error_rates(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> ErrorRates:
    """outputs: a list of tokens each; references: for each output, one or more lists of tokens."""
    wrong = edits = tokens = 0
    for output, listed in zip(outputs, references, strict=True):
        distance, length = min((edit_distance(output, reference), len(reference)) for reference in listed)
        wrong += distance > 0
        edits += distance
        tokens += length
    return ErrorRates(100 * wrong / len(outputs), 100 * edits / max(tokens, 1))


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn a into b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def text_error_rates(
    outputs: list[str], references: list[list[str]], split: Callable[[str], list[str]], ignore: re.Pattern[str] | None
) -> ErrorRates:
    """Error rates of texts, in pieces, with what matches `ignore` taken out of both sides first."""

    def pieces(text: str) -> list[str]:
        return split(ignore.sub("", text) if ignore else text)

    return error_rates([pieces(text) for text in outputs], [[pieces(text) for text in listed] for listed in references])


@dataclass(frozen=True)
class Answers:
    """A model's answers to the sources of a file; '' for a source that the service would refuse."""

    data: str  # the file's name
    references: dict[str, list[str]]
    outputs: list[str]
    lacking: dict[str, list[str]]  # refused sources, with the pieces that the vocabulary lacks

    def wrong(self, split: Callable[[str], list[str]]) -> list[int]:
        """The numbers of the sources whose answer equals no reference."""
        numbered = enumerate(zip(self.outputs, self.references.values(), strict=True))
        return [i for i, (output, listed) in numbered if split(output) not in [split(text) for text in listed]]

    def lines(self, split: Callable[[str], list[str]]) -> Iterator[dict[str, Any]]:
        """A JSON object for each source: its output, whether that is right, and all references."""
        wrong = set(self.wrong(split))
        for i, (output, (source, listed)) in enumerate(zip(self.outputs, self.references.items(), strict=True)):
            yield {"source": source, "output": output, "right": i not in wrong, "references": listed}


def answers_to(
    data: Path,
    source: Tokenizer,
    target: Tokenizer,
    longest: int,
    decode: Callable[[list[list[int]]], list[list[int]]],
    allow_unknown: bool = False,
) -> Answers:
    """Decode every source of a TSV; `longest` is the most tokens that the model reads."""
    references = read_references(data)
    texts = list(references)
    lacking = {} if allow_unknown else pieces_lacking(source, texts)
    encoded = source.encode_batch(texts)
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) > longest:
            raise DataError(f"{data}: a source has {len(ids)} tokens, and the model reads {longest}: {text[:40]!r}.")
    readable = [i for i, (text, ids) in enumerate(zip(texts, encoded, strict=True)) if ids and text not in lacking]
    outputs = [""] * len(texts)
    for i, ids in zip(readable, decode([encoded[i] for i in readable]), strict=True):
        outputs[i] = target.decode(ids)
    return Answers(data.name, references, outputs, lacking)


def run_answers(
    trained: TrainedModel,
    data: Path,
    beam_size: int = 1,
    length_penalty: float = 1.0,
    allow_unknown: bool = False,
    threads: int | None = None,
) -> Answers:
    """A torch model's answers; `threads`: 0 measures how many are fastest, None leaves torch's setting."""
    from attendant.model.search.decode import decode_all

    def decode(sources: list[list[int]]) -> list[list[int]]:
        some = sources[:: max(1, len(sources) // MEASURED)]
        number = threads if threads or len(sources) >= WORTH_MEASURING else None
        with torch_threads(number, lambda: decode_all(trained.model, some, beam_size, max_length=MEASURED_STEPS)):
            return decode_all(trained.model, sources, beam_size, length_penalty, start=trained.start)

    return answers_to(data, trained.source, trained.target, trained.config.max_length - 1, decode, allow_unknown)


def evaluate_run(
    trained: TrainedModel, data: Path, beam_size: int, length_penalty: float, ignore: str | None
) -> dict[str, Any]:
    """Decode every source of a TSV and score it against all of its targets."""
    check_pattern(ignore)
    answers = run_answers(trained, data, beam_size, length_penalty)
    return report_of(answers, trained.target, ignore, beam_size=beam_size, length_penalty=length_penalty)


def report_of(answers: Answers, target: Tokenizer, ignore: str | None, **about: Any) -> dict[str, Any]:
    """The report: error rates, the data that they were measured on, and `about`, how it was decoded."""
    refused = {"refused": {"sources": len(answers.lacking), "lacking": _pieces(answers)}} if answers.lacking else {}
    report = {"data": answers.data, "sources": len(answers.references), **about, **refused}
    return report | measure(answers.outputs, list(answers.references.values()), target, ignore)


def _pieces(answers: Answers) -> str:
    return named(piece for pieces in answers.lacking.values() for piece in pieces)


def measure(outputs: list[str], references: list[list[str]], target: Tokenizer, ignore: str | None) -> dict[str, Any]:
    """Error rates, also with what matches `ignore` left out; BLEU and chrF of running text."""
    rates = text_error_rates(outputs, references, target.pieces, None)
    report: dict[str, Any] = {"sequence_error_rate": rates.sequence, "token_error_rate": rates.token}
    pattern = check_pattern(ignore)
    if pattern:
        rates = text_error_rates(outputs, references, target.pieces, pattern)
        report["ignoring"] = {
            "pattern": ignore,
            "sequence_error_rate": rates.sequence,
            "token_error_rate": rates.token,
        }
    return report | (overlap(outputs, references) if target.is_running_text else {})


def table(report: dict[str, Any]) -> str:
    """The report as a text for people."""
    search = "greedy" if report["beam_size"] == 1 else f"beam {report['beam_size']}"
    lines = [f"{report['data']}: {report['sources']:,} sources, {search}", ""]
    rows = [("", report)]
    if "ignoring" in report:
        rows.append((f"without {report['ignoring']['pattern']}", report["ignoring"]))
    lines.append(f"{'':<24}{'sequence_error_rate':>20}{'token_error_rate':>20}")
    for name, rates in rows:
        lines.append(f"{name:<24}{rates['sequence_error_rate']:>18.2f} %{rates['token_error_rate']:>18.2f} %")
    for name in ("bleu", "chrf"):
        if name in report:
            lines.append(f"{name:<24}{report[name]:>18.2f}    {report[f'{name}_signature']}")
    lines += [report["overlap_note"]] if "overlap_note" in report else []
    if "refused" in report:
        lines += [
            "",
            f"{report['refused']['sources']:,} sources have what the vocabulary lacks: {report['refused']['lacking']}. "
            "The service refuses them, so they have no answer here and count as wrong; --allow-unknown decodes them.",
        ]
    return "\n".join(lines)


def errors_table(answers: Answers, split: Callable[[str], list[str]], count: int) -> str:
    """Some wrong answers with their references, evenly spaced over the file."""
    wrong, sources = answers.wrong(split), list(answers.references)
    if not wrong:
        return "no answer is wrong"
    chosen = [wrong[k * len(wrong) // min(count, len(wrong))] for k in range(min(count, len(wrong)))]
    lines = [f"{len(chosen)} of {len(wrong):,} wrong answers:"]
    for i in chosen:
        answer = "(refused)" if sources[i] in answers.lacking else repr(answers.outputs[i])
        lines.append(f"  {sources[i]!r}: {answer}, not {' or '.join(map(repr, answers.references[sources[i]]))}")
    return "\n".join(lines)


def check_pattern(ignore: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(ignore) if ignore else None
    except re.error as error:
        raise ConfigError(f"--ignore takes a regular expression, and {ignore!r} is none: {error}.") from None
