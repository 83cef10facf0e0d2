"""How good a model is: error rates over sequences and over tokens, where any listed reference counts as right."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.errors import ConfigError
from model.pairs import read_references

if TYPE_CHECKING:
    from model.checkpoint import TrainedModel
    from model.tokenizer import Tokenizer


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


def evaluate_run(
    trained: TrainedModel, data: Path, beam_size: int, length_penalty: float, ignore: str | None
) -> dict[str, Any]:
    """Decode every source of a TSV and score it against all of its targets."""
    check_pattern(ignore)
    references = read_references(data)
    outputs = decode_texts(trained, list(references), data, beam_size, length_penalty)
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    report = {"data": data.name, "sources": len(references), **search}
    return report | measure(outputs, list(references.values()), trained.target, ignore)


def decode_texts(
    trained: TrainedModel, sources: list[str], data: Path, beam_size: int = 1, length_penalty: float = 1.0
) -> list[str]:
    """The best output for each source; `data` is where the sources come from, for the complaint of one too long."""
    from model.decode import decode_all

    found = decode_all(trained.model, _encode(trained, sources, data), beam_size, length_penalty)
    return [trained.target.decode(ids) for ids in found]


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
    return report | (_overlap(outputs, references) if target.is_running_text else {})


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    search = "greedy" if report["beam_size"] == 1 else f"beam {report['beam_size']}"
    lines = [f"{report['data']}: {report['sources']:,} sources, {search}", ""]
    rows = [("", report)]
    if "ignoring" in report:
        rows.append((f"without {report['ignoring']['pattern']}", report["ignoring"]))
    lines.append(f"{'':<24}{'sequence_error_rate':>20}{'token_error_rate':>20}")
    for name, rates in rows:
        lines.append(f"{name:<24}{rates['sequence_error_rate']:>18.2f} %{rates['token_error_rate']:>18.2f} %")
    lines += [f"{name:<24}{report[name]:>18.2f}" for name in ("bleu", "chrf") if name in report]
    return "\n".join(lines)


def check_pattern(ignore: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(ignore) if ignore else None
    except re.error as error:
        raise ConfigError(f"--ignore takes a regular expression, and {ignore!r} is none: {error}.") from None


def _encode(trained: TrainedModel, texts: list[str], data: Path) -> list[list[int]]:
    sources = trained.source.encode_batch(texts)
    limit = trained.config.max_length - 1  # the end token takes a place
    for text, ids in zip(texts, sources, strict=True):
        if len(ids) > limit:
            raise ConfigError(f"{data}: a source has {len(ids)} tokens, and the model reads {limit}: {text[:40]!r}.")
    return sources


def _overlap(outputs: list[str], references: list[list[str]]) -> dict[str, float]:
    """BLEU and chrF of running text."""
    import sacrebleu

    most = max(map(len, references))
    streams = [[listed[min(i, len(listed) - 1)] for listed in references] for i in range(most)]
    return {
        "bleu": sacrebleu.corpus_bleu(outputs, streams).score,
        "chrf": sacrebleu.corpus_chrf(outputs, streams).score,
    }
