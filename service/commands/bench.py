"""`attendant bench`: latency and throughput of a bundle on this machine, and the best settings for it.

Each setting is measured in its own process, so that its peak memory is known. Clients are threads without HTTP; each
sends its next text once its last one is answered.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attendant.common.hardware import available_cpus
from attendant.export.bundle import Bundle, read_bundle
from attendant.service.commands.info import describe_machine, find_bundle
from attendant.service.errors import StartError

CLIENTS = (1, 4, 16, 64)
BEAMS = (1, 4)
LEAST_SECONDS = 0.2  # the shortest measurement
START_SECONDS = 3.0  # seconds of the user's --seconds that are set aside for each setting's process to start

Json = dict[str, Any]


class BenchUsageError(Exception):
    exit_code = 2


@dataclass(frozen=True)
class Setting:
    """Flags of `attendant serve` that are compared."""

    precision: str
    lanes: int

    @property
    def flags(self) -> str:
        return f"--precision {self.precision} --lanes {self.lanes}"


@dataclass(frozen=True)
class Measured:
    """Figures of one setting with one beam size and number of clients."""

    precision: str
    lanes: int
    beam_size: int
    clients: int
    p50_ms: float
    p99_ms: float
    texts_per_second: float
    tokens_per_second: float  # of targets, end tokens included
    texts: int  # answered
    memory_mb: float  # peak resident memory of the process so far


def bench(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        metavar="BUNDLE",
        help="a bundle's directory, or a model's name in the cache (default: the embedded model)",
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="sources, a line each (default: the samples in the bundle)"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="for everything (default: %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    if not options.seconds > 0:
        raise BenchUsageError(f"--seconds takes a number above 0, not {options.seconds:g}.")
    bundle = read_bundle(find_bundle(options.bundle))
    texts = read_texts(bundle, options.texts)
    machine = describe_machine(list(bundle.variants))
    print(f"{bundle.name}, {len(texts)} sources, on {machine['cpus']} processors ({machine['processor']})\n")
    print(HEAD)
    rows = []
    for row in measure_all(bundle, texts, options.seconds):
        print(line_of(row), flush=True)
        rows.append(row)
    best = best_settings(rows)
    print(f"\nshortest answers: {best['latency'].flags}\nmost texts:       {best['throughput'].flags}")
    if options.json is not None:
        found = {"bundle": bundle.name, "machine": machine, "rows": [asdict(row) for row in rows]}
        found |= {name: asdict(setting) for name, setting in best.items()}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def read_texts(bundle: Bundle, path: Path | None) -> list[str]:
    if path is None:
        texts = [sample["source"] for sample in bundle.certificate.get("samples", []) if sample.get("source")]
        if not texts:
            raise BenchUsageError(f"{bundle.directory} has no sample texts; give some with --texts FILE.")
        return texts
    try:
        with path.open(encoding="utf-8-sig") as lines:
            texts = [line.rstrip("\n") for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchUsageError(f"{path} cannot be read: {error}.") from None
    if not texts:
        raise BenchUsageError(f"{path} has no line with a text.")
    return texts


def settings_for(precisions: Sequence[str], processors: int) -> list[Setting]:
    """Every precision with 1, 2, 4 ... lanes, up to the number of processors."""
    lanes = [2**n for n in range(processors.bit_length())]
    return [Setting(precision, count) for precision in precisions for count in lanes if count <= processors]


def measure_all(bundle: Bundle, texts: list[str], seconds: float) -> Iterator[Measured]:
    settings = settings_for(list(bundle.variants), available_cpus())
    works = list(itertools.product(BEAMS, CLIENTS))
    left = max(0.0, seconds - START_SECONDS * len(settings))
    each = max(LEAST_SECONDS, left / (len(settings) * len(works)))
    spawn = multiprocessing.get_context("spawn")
    for setting in settings:
        ours, theirs = spawn.Pipe(duplex=False)
        process = spawn.Process(target=measure_setting, args=(theirs, bundle.directory, setting, texts, works, each))
        process.start()
        theirs.close()
        try:
            while isinstance(row := ours.recv(), Measured):
                yield row
            if row is not None:
                raise StartError(row)
        except EOFError:
            raise StartError(f"the process that measured {setting.flags} ended by itself.") from None
        finally:
            process.join()


def measure_setting(
    out: Any, directory: Path, setting: Setting, texts: list[str], works: list[tuple[int, int]], seconds: float
) -> None:
    """Runs in its own process: sends a Measured for each (beam size, clients), then None; or an error's text."""
    from attendant.service.api import Model

    try:
        with Model(directory, precision=setting.precision, lanes=setting.lanes) as model:
            for beam_size, clients in works:
                out.send(measure(model, setting, texts, beam_size, clients, seconds))
        out.send(None)
    except Exception as error:
        out.send(str(error))


def measure(model: Any, setting: Setting, texts: list[str], beam_size: int, clients: int, seconds: float) -> Measured:
    """Run `clients` threads for about `seconds`, each sending one text after the other."""
    taken: list[list[float]] = [[] for _ in range(clients)]
    tokens = [0] * clients
    began = time.perf_counter()

    def client(number: int) -> None:
        for text in itertools.islice(itertools.cycle(texts), number, None):
            asked = time.perf_counter()
            found = model.generate(text, beam_size=beam_size).hypotheses[0]
            now = time.perf_counter()
            taken[number].append(now - asked)
            tokens[number] += len(found.tokens) + 1
            if now - began >= seconds:
                return

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))  # raises what a client raised
    passed = time.perf_counter() - began
    times = sorted(itertools.chain.from_iterable(taken))
    return Measured(
        setting.precision,
        setting.lanes,
        beam_size,
        clients,
        p50_ms=round(1e3 * percentile(times, 0.5), 3),
        p99_ms=round(1e3 * percentile(times, 0.99), 3),
        texts_per_second=round(len(times) / passed, 2),
        tokens_per_second=round(sum(tokens) / passed, 1),
        texts=len(times),
        memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
    )


def percentile(times: list[float], part: float) -> float:
    """The percentile of sorted times; `part` is 0.5 for p50."""
    return times[min(len(times) - 1, int(part * len(times)))]


def best_settings(rows: Sequence[Measured]) -> dict[str, Setting]:
    """Settings with the lowest p50 for one client and the most texts/s for the most clients, in greedy search."""
    greedy = [row for row in rows if row.beam_size == 1]
    alone = min((row for row in greedy if row.clients == 1), key=lambda row: row.p50_ms)
    many = max((row for row in greedy if row.clients == max(CLIENTS)), key=lambda row: row.texts_per_second)
    return {name: Setting(row.precision, row.lanes) for name, row in (("latency", alone), ("throughput", many))}


COLUMNS = {"precision": -10, "lanes": 5, "beam": 6, "clients": 9, "p50 ms": 10, "p99 ms": 10, "texts/s": 10}
COLUMNS |= {"tokens/s": 11, "MB": 7}
HEAD = "".join(f"{name:<{-width}}" if width < 0 else f"{name:>{width}}" for name, width in COLUMNS.items())


def line_of(row: Measured) -> str:
    return (
        f"{row.precision:<10}{row.lanes:>5}{row.beam_size:>6}{row.clients:>9}{row.p50_ms:>10,.1f}{row.p99_ms:>10,.1f}"
        f"{row.texts_per_second:>10,.1f}{row.tokens_per_second:>11,.0f}{row.memory_mb:>7,.0f}"
    )
