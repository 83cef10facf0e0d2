"""docs/reliability.md, from the results of this folder's commands.

python -m bench.reliability.report
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.report.record import RESULTS

PAGE = RESULTS.parent.parent / "docs" / "reliability.md"
OPERATIONS = PAGE.with_name("operations.md")
BEGIN, END = "<!-- python -m bench.reliability.report -->\n", "<!-- end -->\n"
MEMORY = "memory_limit.json"
INTRODUCTION = """\
# Reliability

What was tried to break the service, and what came of it. This page is made by `make reliability-report` from the files
in [bench/results](../bench/results); each command takes its figures again. A short form of each is in `make test`.
Other work may have run on the same cores meanwhile, so that times are no measure of speed.
What is defended against whom stands in [SECURITY.md](../SECURITY.md).
"""
Record = dict[str, Any]


def conformance(record: Record) -> str:
    heads = ["", "cases", "of a MUST", "known deviations", "faults", "behind nginx", "faults there"]
    names = ["name", "cases", "must", "known", "faults", "behind_nginx", "faults_behind_nginx"]
    rows = [[row[name] for name in names] for row in record["rows"]]
    rows.append(["**all**", *(sum(row[name] for row in record["rows"]) for name in names[1:])])
    known = [f"- {each['case']} (RFC {each['section']}, {each['level']}): {each['why']}" for each in record["known"]]
    text = "Requests byte by byte over raw sockets, each with its paragraph of RFC 9110 or 9112 and what that allows."
    left = "Known deviations, all of the parser (llhttp) and left so:"
    return "\n\n".join([text, table(heads, rows), left, "\n".join(known)])


def fuzz_http(record: Record) -> str:
    (row,) = record["rows"]
    statuses = ", ".join(f"{count:,} x {status}" for status, count in row["statuses"].items())
    return (
        f"{row['inputs']:,} mutations of those requests: {row['faults']} faults; answers {statuses}.\n"
        f"Resident memory changed by {row['grown_mb']:+.1f} MiB after the first tenth of them. Afterwards gauges\n"
        "were at zero, and known requests were answered as before."
    )


def fuzz_json(record: Record) -> str:
    (row,) = record["rows"]
    statuses = ", ".join(f"{count:,} x {status}" for status, count in row["statuses"].items())
    return (
        f"{row['inputs']:,} bodies by a grammar, deep, huge, with keys twice, wrong types and numbers at every edge,\n"
        f"to every route that takes JSON: {row['faults']} faults; answers {statuses}.\n"
        f"Resident memory changed by {row['grown_mb']:+.1f} MiB after the first tenth of them."
    )


def fuzz_files(record: Record) -> str:
    rows = [[row["name"], f"{row['inputs']:,}", row["faults"]] for row in record["rows"]]
    text = "Mutations of every kind of file that is read: refused with an error that its caller knows, or read whole."
    return f"{text}\n\n{table(['reader', 'inputs', 'faults'], rows)}"


def chaos(record: Record) -> str:
    rows = []
    for row in record["rows"]:
        outcomes = ", ".join(f"{count:,} x {each}" for each, count in row["outcomes"].items())
        outcomes += f"; ended by {row['ended']}, and started again" if "ended" in row else ""
        reloads = ", ".join(f"{count} {each}" for each, count in row.get("reloads", {}).items())
        rows.append([row["name"], f"{row['requests']:,}", outcomes, reloads, "; ".join(row["wrong"]) or "none"])
    text = (
        "Six clients ask while one fault happens; then all must be as before: the same answers, gauges at zero, as\n"
        "many requests counted as answered. `cut`: the connection ended without an answer, where the fault does that.\n"
        "Without memory for a single allocation, libraries that are not Python's may end the process; its supervisor\n"
        "starts it again."
    )
    return f"{text}\n\n{table(['fault', 'requests', 'outcomes', 'reloads', 'lost or wrong'], rows)}"


def overload(record: Record) -> str:
    rows = []
    for row in record["rows"]:
        large, small, retry = row["clients"]["large"], row["clients"]["small"], row["retry_after"]
        cells = [f"{row['capacity_texts_per_second']:,.0f}", f"{row['share_of_peak']:.0%}"]
        cells += [f"{large['answered']:,} of {large['requests']:,}", f"{row['slowest_seconds']:.1f} s"]
        cells += [f"{small['answered']:,} of {small['requests']:,}", f"{small['p50_ms']:,.0f} ms"]
        cells += [f"{retry['true']:.1%} of {retry['refusals']:,}", "{:.0f}, {:.0f} MB".format(*row["resident_mb"])]
        rows.append([row["name"], *cells, "; ".join(row["wrong"]) or "none"])
    heads = ["model", "capacity, texts/s", "throughput of it", "large client's answered", "the slowest of them"]
    heads += ["small client's answered", "its median", "Retry-After true", "resident, first and last third", "wrong"]
    seconds = record["rows"][0]["seconds"]
    text = (
        f"Requests at random for {seconds:,.0f} s at twice the capacity, 5 % of it from a small client with a key\n"
        "of its own. Whatever is not answered got 429; `Retry-After` is true where it is within a factor of two of\n"
        "the time in which half of what waited had begun."
    )
    return f"{text}\n\n{table(heads, rows)}"


def rolling(record: Record) -> str:
    rows = [
        [row["name"], row["restarts"], f"{row['requests']:,}", row["outcomes"].get("error", 0),
         "; ".join(row["wrong"]) or "none"]
        for row in record["rows"]
    ]  # fmt: skip
    text = "Two servers behind a proxy with our configuration, restarted by turns while six clients ask and stream."
    return f"{text}\n\n{table(['proxy', 'restarts', 'requests', 'errors', 'lost or wrong'], rows)}"


def containers(record: Record) -> str:
    rows = []
    for row in record["rows"]:
        found = "; ".join(f"{what}: {_shown(value)}" if value != "" else what for what, value in row["found"].items())
        rows.append([row["name"], found, "; ".join(row["wrong"]) or "none"])
    text = (
        "The image in a Docker engine, its limits held by the kernel, on the loopback of one machine. Images of\n"
        "others could not be pulled there: that of Prometheus was made from Debian's package under Compose's name."
    )
    return f"{text}\n\n{table(['check', 'found', 'wrong'], rows)}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count:,} x {each}" for each, count in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def shapes(record: Record) -> str:
    rows = [[row["name"], f"{row['shapes']:,}", row["faults"]] for row in record["rows"]]
    text = "Random shapes of every layer's operator, in f32 and int8, against its definition in numpy."
    return f"{text}\n\n{table(['operator', 'shapes', 'faults'], rows)}"


def memory(record: Record) -> str:
    """The table of docs/operations.md."""
    heads = ["model", "limit, MB", "when ready", "at most", "afterwards"]
    names = ["what", "limit_mb", "ready_mb", "peak_mb", "afterwards_mb"]
    return table(heads, [[row[name] for name in names] for row in record["rows"]])


def soak(record: Record) -> str:
    (row,) = record["rows"]
    descriptors, threads = row["descriptors"], row["threads"]
    rows = [
        ["requests, of which clients left", f"{row['requests']:,}, {row['left']:,}"],
        ["reloads", row["reloads"]],
        ["memory a request", f"{row['bytes_per_request']:+.1f} bytes (standard error {row['standard_error']:.1f})"],
        ["resident, first and last", "{:.1f}, {:.1f} MB".format(*row["resident_mb"])],
        ["descriptors, first and last third", f"{descriptors['first']:.0f}, {descriptors['last']:.0f}"],
        ["threads, first and last third", f"{threads['first']:.0f}, {threads['last']:.0f}"],
        ["median latency, first and last tenth", f"{row['p50_ms'][0]:.1f}, {row['p50_ms'][-1]:.1f} ms"],
        ["99th percentile, first and last tenth", f"{row['p99_ms'][0]:.1f}, {row['p99_ms'][-1]:.1f} ms"],
        ["answers that differ from the first to the same request", row["wrong_answers"]],
        ["wrong", "; ".join(row["wrong"]) or "none"],
    ]
    text = f"{row['seconds']:,.0f} s of {row['kinds']} kinds of requests, reloads each minute and clients that leave."
    return f"{text}\n\n{table(['', ''], rows)}"


SECTIONS: dict[str, tuple[str, Callable[[Record], str]]] = {
    "conformance.json": ("HTTP/1.1", conformance),
    "fuzz_http.json": ("Fuzz: raw HTTP", fuzz_http),
    "fuzz_json.json": ("Fuzz: JSON", fuzz_json),
    "fuzz_files.json": ("Fuzz: files", fuzz_files),
    "overload.json": ("Twice the capacity", overload),
    "chaos.json": ("Faults", chaos),
    "rolling.json": ("Rolling restarts", rolling),
    "containers.json": ("Containers", containers),
    "kernel_shapes.json": ("Kernels", shapes),
    "soak.json": ("Soak", soak),
}


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(heads), *(list(map(str, row)) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(results: Path) -> str:
    parts = [INTRODUCTION]
    for name, (title, make) in SECTIONS.items():
        parts += [f"## {title}\n\n{each}\n" for each in _made(results, name, make)]
    return "\n".join(parts)


def with_memory(operations: str, results: Path) -> str:
    """docs/operations.md with the table of the largest requests between its marks."""
    begin, rest = operations.split(BEGIN)
    _, end = rest.split(END, 1)
    return "".join([begin, BEGIN, "\n", *(f"{each}\n\n" for each in _made(results, MEMORY, memory)), END, end])


def _made(results: Path, name: str, make: Callable[[Record], str]) -> Iterator[str]:
    """What is made of each machine's record of this name, with its command, day and machine."""
    for path in sorted(results.glob(f"*/{name}")):
        record = json.loads(path.read_text(encoding="utf-8"))
        machine, version = record["machine"], record["versions"]["attendant"]
        facts = f"{record['date']}, version {version}, on {machine['cpu']}, {machine['cores']} cores."
        yield f"{make(record)}\n\n`{record['command']}`, {facts}"


def main() -> None:
    PAGE.write_text(page(RESULTS), encoding="utf-8")
    OPERATIONS.write_text(with_memory(OPERATIONS.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    print(PAGE, OPERATIONS)


if __name__ == "__main__":
    main()
