"""The embedded model against CTranslate2 on the same weights: words in, phones out, answers that end by themselves.

    python -m bench.versus.words [--seconds 60]

CTranslate2 computes in f32 and int8, as one worker with all threads and as two that share them; a ratio is the time of
the best of those over that of our best precision. Words come from the test part of the default corpus, and in f32 both
sides must give the same phones before anything is timed.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from attendant.export.bundle import read_bundle
from attendant.service.text.tokenizer import Tokenizer
from bench.http.servers import ROOT
from bench.models.peers import prepare_peer
from bench.models.random_model import CACHE
from bench.report.goals import goal_of
from bench.report.record import RESULTS_HERE, facts, write_json
from bench.versus.race import UnequalError, Work, race, show_row, start_workers

EMBEDDED = ROOT / "service" / "default_bundle"
MODEL = ROOT / "model" / "default"
ALONE = 20  # words that are asked for one by one


def works(words: list[tuple[int, ...]]) -> list[Work]:
    """Each work takes other words."""
    found = []
    for count, beam_size in ((1, 1), (1, 4), (32, 1), (1024, 1), (256, 4)):
        how = "greedy" if beam_size == 1 else f"beam {beam_size}"
        name = f"{count:,} word{'s' * (count > 1)}, {how}"
        given = tuple(words[: ALONE if count == 1 else count])
        words = words[len(given) :]
        found.append(
            Work(
                name=name,
                requests=count,
                beam_size=beam_size,
                goal=goal_of("words", name),
                length=None,
                given=given,
                one_by_one=count == 1,
            )
        )
    return found


def read_words(data: Path) -> list[tuple[int, ...]]:
    """The sources of a corpus, each once, as ids."""
    bundle = read_bundle(EMBEDDED)
    tokenizer = Tokenizer(bundle.tokenizers["source"], bundle.special_ids)
    lines = data.read_text(encoding="utf-8").splitlines()
    return [tuple(tokenizer.encode(word)) for word in dict.fromkeys(line.partition("\t")[0] for line in lines)]


def peer_models() -> dict[str, Path]:
    """The embedded model's weights as CTranslate2's models, by compute type."""
    weights = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()[:8]
    return prepare_peer(MODEL, CACHE / f"embedded-{weights}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The ratios to CTranslate2 of the embedded model, and their goals.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long turns are taken")
    parser.add_argument("--threads", type=int, default=0, help="of either side; 0: what each does by itself")
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "data" / "test.tsv", help="TSV of sources")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "words.json")
    options = parser.parse_args()
    asked = works(read_words(options.data))
    workers = start_workers(EMBEDDED, peer_models(), options.threads)
    try:
        rows = race(workers, asked, 0, options.seconds)
    except UnequalError as error:
        raise SystemExit(str(error)) from None
    finally:
        for worker in workers:
            worker.close()
    about = {**facts("bench.versus.words"), "threads": options.threads}
    write_json(options.out, [{**row, **about} for row in rows])
    for row in rows:
        print(show_row(row))


if __name__ == "__main__":
    main()
