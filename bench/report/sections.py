"""The sections of docs/performance.md: a result file's contents in, Markdown out."""

from __future__ import annotations

from typing import Any

from bench.report.text import number, table, taken, verdict

Record = Any  # what a result file holds


NAMES = {
    "ctranslate2": "CTranslate2, one worker",
    "ctranslate2_two_workers": "CTranslate2, two workers",
    "ours": "ours",
}


def race(rows: list[dict[str, Any]]) -> str:
    """A table of works: the times of every side in f32 and int8, the ratio to the best of the others, and its goal."""
    kinds = [*(kind for kind in rows[0]["by_precision"] if kind != "ours"), "ours"]
    goals = any(row["goal"] is not None for row in rows)
    body = []
    for row in rows:
        times = [" / ".join(number(value) for value in row["by_precision"][kind].values()) for kind in kinds]
        goal = ["" if row["goal"] is None else f"{row['goal']:g}x", verdict(row["ratio"], row["goal"])] if goals else []
        body.append([row["name"], *times, f"{row['ratio']}x", *goal])
    names = {"fp32": "f32", "int8": "int8"}
    precisions = {kind: " / ".join(names[each] for each in rows[0]["by_precision"][kind]) for kind in kinds}
    heads = ["work", *(f"{NAMES.get(kind, kind)}, {precisions[kind]}, ms" for kind in kinds), "ratio"]
    return table([*heads, *(["goal", "reached"] if goals else [])], body)


def quick(rows: list[dict[str, Any]]) -> str:
    raced = [row for row in rows if "by_precision" in row]
    text = "Source 20 tokens, 24 forced target tokens, in one process each, without HTTP.\n\n" + race(raced)
    for row in rows:
        if "by_precision" not in row:
            text += "\n\n{name}: ours {ours} {unit}, CTranslate2 {theirs} {unit}, {ratio}x (goal {goal:g}x).".format(
                **row
            )
    return f"{text}\n\n{taken(rows[0])}"


def start(record: Record) -> str:
    body = [
        [
            row["name"],
            f"{row['ready_seconds']:g}",
            f"{row['median_seconds']:g}",
            f"{row['goal']:g}" if row["goal"] else "",
            verdict(row["ready_seconds"], row["goal"], most=True),
            row["resident_mb"],
        ]
        for row in record["rows"]
    ]
    text = (
        "From the start of the process `attendant serve` to its first ready answer, with the digest of "
        "every file that is served checked "
        f"and the certificate replayed; the shortest of {record['rows'][0]['times']} starts, files in the system's "
        "cache.\n\n"
    )
    heads = ["model", "ready after, s", "median, s", "goal, s", "reached", "resident then, MB"]
    return f"{text}{table(heads, body)}\n\n{taken(record)}"


def drawing(record: Record) -> str:
    names = {"drawing": "from the answer to the first frame", "answer": "the answer", "files": "all files of the page"}
    body = [
        [
            names[row["name"]],
            f"{row['median']:g} {row['unit']}",
            f"{row['most']:g} {row['unit']}",
            f"{row['goal']:g} {row['unit']}" if row["goal"] else "",
            verdict(row["median"], row["goal"], most=True),
        ]
        for row in record["rows"]
    ]
    text = (
        "The map of the embedded model for a text of 64 tokens, as Chromium tells it, the page opened anew "
        f"{record['rows'][0]['times']} times. The median is held to the goal.\n\n"
    )
    return f"{text}{table(['what', 'median', 'most', 'goal', 'reached'], body)}\n\n{taken(record)}"


def imported(rows: list[dict[str, Any]]) -> str:
    about = (
        "A Marian of the same size with random weights, in the format of Hugging Face's library: `attendant import` "
        "and CTranslate2's own converter of the same directory."
    )
    return f"{about} {quick(rows)}"


def words(rows: list[dict[str, Any]]) -> str:
    text = (
        "Words of the test part, with answers that end by themselves; one word is asked for when the one before is "
        "answered. CTranslate2's workers share all threads, and the best of its four ways is compared.\n\n"
    )
    return f"{text}{race(rows)}\n\n{taken(rows[0])}"


def words_http(record: Record) -> str:
    body = [
        [
            row["name"],
            row["ours"],
            row["theirs"],
            f"{row['ratio']}x",
            "" if row["goal"] is None else f"{row['goal']:g}x",
            verdict(row["ratio"], row["goal"]),
        ]
        for row in record["goals"]
    ]
    text = (
        "One word a request, greedy, against CTranslate2 behind the thin app, which is given the words' ids, in the "
        "best of its ways.\n\n"
    )
    heads = ["load", "ours, requests/s", "CTranslate2, requests/s", "ratio", "goal", "reached"]
    return f"{text}{table(heads, body)}\n\n{taken(record)}"


def iteration(record: Record) -> str:
    names = list(dict.fromkeys(part["part"] for row in record["rows"] for part in row["parts"]))
    body = []
    for row in record["rows"]:
        parts = {part["part"]: part for part in row["parts"]}
        shares = [f"{parts[name]['share']:.0%}" if name in parts else "" for name in names]
        body.append([row["name"], 1e3 * row["seconds"], *shares])
    text = "Where the time of the lanes' threads goes, in int8; waiting is in the part that waited.\n\n"
    return f"{text}{table(['work', 'ms', *names], body)}\n\n{taken(record)}"


def lanes(record: Record) -> str:
    loads = ["all full" if load["rows"] is None else f"{load['rows']} rows" for load in record["rows"][0]["loads"]]
    body = [
        [
            row["model"],
            row["cores"],
            row["chosen"],
            *(f"{load['best']} ({load['regret']:.0%})" for load in row["loads"]),
        ]
        for row in record["rows"]
    ]
    steps = [
        [model["model"], step["rows"], step["serial_ms"], step["parallel_ms"], step["python_ms"]]
        for model in record["measured"]
        for step in model["steps"]
    ]
    threads = " and ".join(map(str, record["measured_threads"]))
    share = record["serial"]
    divided = " threads" if share is None else f" thread, {share:.0%} of a step taken to be serial"
    parts = [
        "A simulation, from times measured here; with more cores than this machine has it is an extrapolation, and "
        "`attendant bench` measures. A step lasts serial + parallel / threads; the Python of all lanes runs one at a "
        f"time; each lane reads all weights in each step, from a memory of {record['bandwidth_gb_s']:g} GB/s here, "
        "taken to grow with the cores up to 16. For each number of rows in flight: the lanes with the most tokens a "
        "second, and what the lanes that the service chooses lose against them.",
        table(["model", "cores", "chosen", *loads], body),
        f"Measured in int8, with {threads}{divided}:",
        table(["model", "rows", "serial, ms", "parallel, ms", "Python, ms"], steps),
        taken(record),
    ]
    return "\n\n".join(parts)


def lengths(record: Record) -> str:
    return f"As many source tokens as forced target tokens.\n\n{race(record['rows'])}\n\n{taken(record)}"


def serving(record: Record) -> str:
    goals = [
        [
            row["name"],
            row["ours"],
            row["theirs"],
            f"{row['ratio']}x",
            "" if row["goal"] is None else f"{row['goal']:g}x",
            verdict(row["ratio"], row["goal"]),
        ]
        for row in record["goals"]
    ]
    body = [
        [
            row["load"],
            row["server"] + (f", {row['way']}" if "way" in row else ""),
            row["requests_per_second"],
            row["tokens_per_second"],
            *row["latency_ms"].values(),
            row["first_token_ms"]["p50"],
            row["first_token_ms"]["p99"],
            sum(row["errors"].values()),
            row["mean_target_tokens"],
            round(row["memory"]["peak"] / 1e6) if "memory" in row else None,
        ]
        for row in record["rows"]
    ]
    heads = [
        "load",
        "server",
        "requests/s",
        "tokens/s",
        "p50, ms",
        "p95",
        "p99",
        "first token p50",
        "p99",
        "errors",
        "tokens an answer",
        "peak MB",
    ]
    tried = [[row["way"], row["requests_per_second"], row["latency_ms"]["p99"]] for row in record["tried"]]
    complaints = [
        f"- {row['server']}, {row['load']}: {row['held_up_by_generator']}."
        for row in record["rows"]
        if row["held_up_by_generator"]
    ]
    parts = [
        "The same requests, from a seed, against `attendant serve` and against CTranslate2 behind a thin FastAPI app "
        "that batches concurrent requests: sources of 4 to 60 tokens, a quarter of them with beam 4, answers that end "
        "by themselves and are as long as their sources, on both sides. CTranslate2's app does not stream: its first "
        "token is its whole answer.",
        table(["measure", "ours", "CTranslate2", "ratio", "goal", "reached"], goals),
        table(heads, body),
        "CTranslate2's ways to serve 32 clients, of which the best is compared:",
        table(["way", "requests/s", "p99, ms"], tried),
        *(["The load generator itself was too slow here:\n\n" + "\n".join(complaints)] if complaints else []),
        taken(record),
    ]
    return "\n\n".join(parts)


def roofline(record: Record) -> str:
    limits = record["limits"]
    body = [
        [
            row["precision"],
            row["rows"],
            row["step_ms"],
            row["stream_ms"],
            row["multiply_ms"],
            f"{row['times_limit']}x",
            f"{row['goal']:g}x" if row["goal"] else "",
            verdict(row["times_limit"], row["goal"], most=True) if row["goal"] else "",
        ]
        for row in record["rows"]
    ]
    heads = ["precision", "rows", "step, ms", "its weights from memory, ms", "its multiply-adds, ms", "over the larger"]
    shares = [
        [row["precision"], row["rows"], ", ".join(f"{o['operator']} {o['share']:.0%}" for o in row["operators"][:7])]
        for row in record["rows"]
    ]
    parts = [
        f"A decoder step alone (12 tokens cached, source 20) of {limits['step_parameters']:,} weights, against what "
        f"our own products ({limits['path']}) reached at best in the same run: {limits['bandwidth_gb_s']:g} GB/s of "
        f"weights from memory, {limits['int8_gop_s']:g} GOP/s in int8 and "
        f"{limits['fp32_gop_s']:g} in f32 from the cache.",
        table([*heads, "goal", "reached"], body),
        "Where a step's time goes, by onnxruntime's profiler:",
        table(["precision", "rows", "operators"], shares),
        taken(record),
    ]
    return "\n\n".join(parts)


def growth(record: Record) -> str:
    body = [[row["sweep"], row["value"], row["ms"], row["peak_mb"], row["loaded_mb"]] for row in record["rows"]]
    attention = [
        [
            f"{row['sweep']}^{row['expected']}",
            f"{row['sweep']}^{row['exponent']}",
            ", ".join(f"{value}: {number(taken_ms)}" for value, taken_ms in row["ms"].items()),
        ]
        for row in record["attention"]
    ]
    parts = [
        "One size at a time, from the same point: one request, greedy, source 20, 24 forced target tokens, 6 layers, "
        f"width 512, in {record['rows'][0]['precision']}."
        if record["rows"]
        else "",
        "![time and memory against each size](plots/growth.png)",
        table(["what grows", "to", "ms", "peak MB", "MB when loaded"], body),
        "Self-attention by itself, without its projections. The complexity table gives it length^2 x width operations.",
        table(["by the table", "measured", "milliseconds"], attention),
        "![self-attention against length and width](plots/attention.png)",
        taken(record),
    ]
    return "\n\n".join(part for part in parts if part)


def embedded(record: Record) -> str:
    body = [
        [
            row["name"],
            f"{number(row['value'])} {row['unit']}",
            f"{row['sense']} {number(row['goal'])}",
            verdict(row["value"], row["goal"], most=row["sense"] != "at least"),
        ]
        for row in record["rows"]
    ]
    loads = [
        [name, load["load"], load["requests_per_second"], load["latency_ms"]["p50"], load["latency_ms"]["p99"]]
        for name in ("served", "bare")
        for load in (record[name]["alone"], record[name]["many"])
    ]
    text = table(["", "measured", "goal", "reached"], body)
    text += f"\n\nA request through the engine alone takes {record['engine_ms']:g} ms.\n\n"
    text += table(["", "load", "requests/s", "p50, ms", "p99, ms"], loads)
    return f"{text}\n\n{taken(record)}"


def huggingface(record: Record) -> str:
    rows = record["rows"]
    kinds = [kind for kind in rows[0]["by_precision"] if kind != "ours"]
    body = [
        [
            row["name"],
            *(row["by_precision"][kind]["fp32"] for kind in kinds),
            " / ".join(number(value) for value in row["by_precision"]["ours"].values()),
            f"{row['ratio']}x",
        ]
        for row in rows
    ]
    text = (
        "The same weights as a Marian model, with Hugging Face's `generate`, on torch and on onnxruntime, both in f32. "
        "The ratio is the faster of them over ours in int8.\n\n"
    )
    text += table(
        ["work", *(f"{kind}, ms" for kind in kinds), "ours f32 / int8, ms", "faster of them / ours int8"], body
    )
    return f"{text}\n\n{taken(record)}"


def peers(record: Record) -> str:
    body = [
        [
            row["requests"],
            row["beam_size"],
            row["source_length"],
            row["length"],
            f"{row['same']} of {row['requests']}",
            f"{row['score_distance']:.1e}",
        ]
        for row in record["rows"]
    ]
    heads = ["requests", "beam", "source tokens", "target tokens", "same tokens", "largest distance of a score"]
    return f"{table(heads, body)}\n\n{taken(record)}"
