"""The baseline: Phonetisaurus, a joint-sequence n-gram model, trained on train.tsv and scored on test.tsv.

    python -m bench.default_model.phonetisaurus --data DIR --out FILE.json [--order N ...] [--smoothing NAME ...]
                                  [--work DIR] [--words FILE --hypotheses FILE.tsv]

The PyPI package `phonetisaurus` brings its programs and most of their libraries, for Linux on x86-64; it is never
imported. Its estimate-ngram also needs libquadmath.so.0: on Debian, apt install libquadmath0.

The training is that of Phonetisaurus' README: letters are never left out of the alignment, phones may be missing
(--seq1_del=false --seq2_del=true), up to two letters to up to two phones, and no pruning. Every --order is tried with
every --smoothing; the setting with the lowest word error rate on valid.tsv is the one scored on test.tsv. Nothing is
trained on valid.tsv.

With --words, the same setting's best 6 hypotheses for each word of a file are written down, with their costs, for
`attendant distill --hypotheses`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import shlex
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attendant.common.version import install_command
from attendant.model.corpus.pairs import read_pairs, read_references
from attendant.model.errors import UserError
from attendant.model.evaluation.evaluate import error_rates

PACKAGE = "phonetisaurus"
ORDERS = (7, 8, 9)  # 8 is the default of phonetisaurus-train
SMOOTHINGS = ("ModKN", "FixKN")  # what phonetisaurus-train gets from estimate-ngram, and what the older docs pass
RESERVED = frozenset("}|_")  # phonetisaurus-align writes these between letters and phones
LEXICON, ALIGNED = "train.lexicon", "train.corpus"
HYPOTHESES = 6  # of a word, for a student to learn from


@dataclass(frozen=True)
class Setting:
    """One n-gram model over the aligned lexicon."""

    order: int
    smoothing: str

    @property
    def name(self) -> str:
        return f"{self.order}-gram {self.smoothing}"

    @property
    def arpa(self) -> str:
        return f"o{self.order}.{self.smoothing}.arpa"

    @property
    def fst(self) -> str:
        return f"o{self.order}.{self.smoothing}.fst"


@dataclass
class Tool:
    """The package's programs, run inside one directory."""

    root: Path  # the installed package
    version: str
    work: Path
    commands: list[str] = field(default_factory=list)  # as run, in order

    def run(self, program: str, *arguments: str) -> tuple[str, float]:
        """What the program printed, and the seconds it took."""
        machine = platform.machine()
        libraries = [str(self.root / "lib" / machine), os.environ.get("LD_LIBRARY_PATH", "")]
        environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
        self.commands.append(shlex.join([program, *arguments]))
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [self.root / "bin" / machine / program, *arguments], cwd=self.work, env=environment, capture_output=True
            )
        except OSError as error:
            raise UserError(
                f"{program} of the package {PACKAGE} cannot be run on {machine}: {error.strerror}."
            ) from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "nothing"
            raise UserError(f"{program} stopped with exit status {done.returncode}; the last it said was: {said}")
        return done.stdout.decode(), time.perf_counter() - start


def find_tool(work: Path) -> Tool:
    """The installed package, found by its metadata."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"{PACKAGE} is not installed; run: {install_command('baseline')}.") from None
    return Tool(Path(str(package.locate_file(PACKAGE))), package.version, work)


def write_lexicon(pairs: Iterable[tuple[str, str]], path: Path) -> tuple[int, int]:
    """One `word<TAB>P H O N E S` a line; how many were written, and how many left out for a reserved character."""
    written = left_out = 0
    with path.open("w", encoding="utf-8") as file:
        for word, phones in pairs:
            if RESERVED.isdisjoint(word + phones):
                file.write(f"{word}\t{' '.join(phones.split())}\n")
                written += 1
            else:
                left_out += 1
    return written, left_out


def parse_hypotheses(text: str) -> dict[str, list[str]]:
    """phonetisaurus-g2pfst's `word<TAB>cost<TAB>P H O N E S` lines, the first of each word; no phones, no entry."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition("\t")
        phones = rest.partition("\t")[2].split()
        if phones:
            found.setdefault(word, phones)
    return found


def score(found: Mapping[str, list[str]], references: Mapping[str, list[str]]) -> dict[str, float]:
    """The four rates, in percent, over every word of the references; a word that was not found has an empty output."""
    outputs = [found.get(word, []) for word in references]
    listed = [[phones.split() for phones in pronunciations] for pronunciations in references.values()]
    stressed = error_rates(outputs, listed)
    plain = error_rates([_without_stress(o) for o in outputs], [[_without_stress(r) for r in rs] for rs in listed])
    return {
        "word_error_rate": stressed.sequence,
        "phone_error_rate": stressed.token,
        "word_error_rate_without_stress": plain.sequence,
        "phone_error_rate_without_stress": plain.token,
    }


def benchmark(tool: Tool, data: Path, settings: Iterable[Setting]) -> tuple[Setting, dict[str, Any]]:
    """Train every setting on train.tsv, choose by valid.tsv, score the chosen one on test.tsv."""
    parts = {part: data / f"{part}.tsv" for part in ("train", "valid", "test")}
    valid, test = read_references(parts["valid"]), read_references(parts["test"])
    lines, left_out = write_lexicon(read_pairs(parts["train"]), tool.work / LEXICON)
    _say(f"aligning {lines:,} lines (minutes)")
    alignment = _align(tool)
    tried: list[tuple[dict[str, float], Setting, float]] = []
    for setting in settings:
        training = alignment + _estimate(tool, setting)
        rates = score(_decode(tool, setting, valid)[0], valid)
        _say(f"{setting.name}: {rates['word_error_rate']:.2f} % of the words of valid.tsv wrong")
        tried.append((rates, setting, training))
    _, best, training = min(tried, key=lambda one: (one[0]["word_error_rate"], one[0]["phone_error_rate"]))
    found, decoding = _decode(tool, best, test)
    letters = {letter for word, _ in read_pairs(parts["train"]) for letter in word}
    return best, {
        "package": PACKAGE,
        "version": tool.version,
        "order": best.order,
        "smoothing": best.smoothing,
        "words": len(test),
        "undecodable_words": len(test.keys() - found.keys()),
        "words_with_unseen_letters": sum(not letters.issuperset(word) for word in test),
        **score(found, test),
        "training_lines": lines,
        "training_lines_with_reserved_characters": left_out,
        "training_lines_not_aligned": lines - _count_lines(tool.work / ALIGNED),
        "training_seconds": round(training, 1),
        "decoding_seconds": round(decoding, 1),
        "valid": [{"order": s.order, "smoothing": s.smoothing, **rates} for rates, s, _ in tried],
        "commands": tool.commands,
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in parts.values()},
    }


def write_hypotheses(tool: Tool, setting: Setting, words: Path, out: Path) -> None:
    """The best hypotheses of each word of a file, as the decoder prints them; a word is a line."""
    listed = words.read_text(encoding="utf-8").splitlines()
    _say(f"decoding {len(listed):,} words (minutes)")
    text, _ = _hypotheses(tool, setting, listed, HYPOTHESES)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    chosen = f"{report['order']}-gram {report['smoothing']}, chosen on valid.tsv"
    rows = [
        f"{PACKAGE} {report['version']}, {chosen}: {report['words']:,} words of test.tsv, "
        f"{report['undecodable_words']} undecodable, {report['training_seconds']:.0f} s of training",
        "",
        f"{'':<16}{'word_error_rate':>18}{'phone_error_rate':>18}",
    ]
    for name, suffix in (("with stress", ""), ("without stress", "_without_stress")):
        words, phones = report[f"word_error_rate{suffix}"], report[f"phone_error_rate{suffix}"]
        rows.append(f"{name:<16}{words:>16.2f} %{phones:>16.2f} %")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options = parser.parse_args(arguments)
    if bool(options.words) != bool(options.hypotheses):
        parser.error("--words and --hypotheses go together: the words, and the file to write.")
    settings = [Setting(*pair) for pair in itertools.product(options.order, options.smoothing)]
    try:
        with tempfile.TemporaryDirectory() as temporary:
            tool = find_tool((options.work or Path(temporary)).resolve())
            tool.work.mkdir(parents=True, exist_ok=True)
            best, report = benchmark(tool, options.data, settings)
            if options.words:
                write_hypotheses(tool, best, options.words, options.hypotheses)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    report["command"] = shlex.join(["python", "-m", "bench.default_model.phonetisaurus", *arguments])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.default_model.phonetisaurus", description="Train and score the baseline."
    )
    parser.add_argument("--data", type=Path, required=True, help="a directory of train.tsv, valid.tsv and test.tsv")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--order", type=int, nargs="+", default=ORDERS, metavar="N", help="n-gram orders to try")
    parser.add_argument("--smoothing", nargs="+", default=SMOOTHINGS, metavar="NAME", help="as estimate-ngram -s")
    parser.add_argument("--work", type=Path, help="keep the models here")
    parser.add_argument("--words", type=Path, metavar="FILE", help="words to write hypotheses for, one a line")
    parser.add_argument("--hypotheses", type=Path, metavar="TSV", help="where to write them")
    return parser


def _align(tool: Tool) -> float:
    limits = ("--seq1_max=2", "--seq2_max=2", "--seq1_del=false", "--seq2_del=true")
    return tool.run("phonetisaurus-align", f"--input={LEXICON}", f"--ofile={ALIGNED}", *limits)[1]


def _estimate(tool: Tool, setting: Setting) -> float:
    """Seconds."""
    order, smoothing = str(setting.order), setting.smoothing
    _, counting = tool.run("estimate-ngram", "-o", order, "-s", smoothing, "-t", ALIGNED, "-wl", setting.arpa)
    _, converting = tool.run("phonetisaurus-arpa2wfst", f"--lm={setting.arpa}", f"--ofile={setting.fst}")
    return counting + converting


def _decode(tool: Tool, setting: Setting, words: Iterable[str]) -> tuple[dict[str, list[str]], float]:
    """The best hypothesis of each word, and seconds. The decoder passes over letters that its model does not know."""
    text, seconds = _hypotheses(tool, setting, words, 1)
    return parse_hypotheses(text), seconds


def _hypotheses(tool: Tool, setting: Setting, words: Iterable[str], count: int) -> tuple[str, float]:
    """Lines of `word<TAB>cost<TAB>P H O N E S`, the cheapest of a word first, and seconds."""
    (tool.work / "words").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return tool.run("phonetisaurus-g2pfst", f"--model={setting.fst}", f"--nbest={count}", "--wordlist=words")


def _without_stress(phones: Iterable[str]) -> list[str]:
    """['AH0', 'B'] -> ['AH', 'B']"""
    return [phone.rstrip(string.digits) for phone in phones]


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
