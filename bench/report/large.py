"""The sections of docs/performance.md about large models."""

from __future__ import annotations

from typing import Any

from bench.report.goals import goal_of
from bench.report.sections import Record, race
from bench.report.text import number, table, taken, verdict

EXPORT_SECONDS, EXPORT_MEMORY = "export of {}, seconds", "export, times the weights"  # names of goals


def large(record: Record) -> str:
    shape, (*raced, held) = record["shape"], record["rows"]
    about = (
        f"Random weights: {shape['layers']} + {shape['layers']} layers, d_model {shape['d_model']:,}, d_ff "
        f"{shape['d_ff']:,}, {shape['heads']} heads, a shared vocabulary of {shape['vocabulary']:,}. Source "
        f"{record['source_length']} tokens, {record['target_length']} forced target tokens, in one process each. In "
        f"f32 both sides gave the same answers of {record['checked']} tokens; longer ones were not compared, nor any "
        "in int8. Ours was timed in int8 alone."
    )
    memory = f"{held['name']}: ours {number(held['ours'])} MB, CTranslate2 {number(held['theirs'])} MB"
    memory += f", {held['ratio']}x (goal {held['goal']:g}x)."
    return f"{about}\n\n{race(raced)}\n\n{memory}\n\n{taken(record)}"


def import_large(record: Record) -> str:
    shapes = [row for row in record["rows"] if "works" in row]
    about = (
        "Random weights in the files of Hugging Face's library, and the paper's base model, which is only exported. "
        "Each command is a process of its own; seconds of export are those until it ends, with its proof. The server "
        "is `attendant serve` in int8, from the start of its process."
    )
    parts = [about, exports(record["rows"])]
    if shapes:
        against = (
            f"Against CTranslate2 on the same files, by its own converter: source {record['source_length']} tokens, "
            f"{record['target_length']} forced target tokens, in one process each. In f32 both sides gave the same "
            f"answers of {record['checked']} tokens; ours was timed in int8 alone."
        )
        parts += [served(shapes), against, race(named(shapes, raced=True)), memory(named(shapes, raced=False))]
    return "\n\n".join([*parts, taken(record)])


def named(shapes: list[dict[str, Any]], raced: bool) -> list[dict[str, Any]]:
    """The works of all shapes, or what they held in memory, by names that say the shape."""
    works = [(row["name"], work) for row in shapes for work in row["works"] if ("by_precision" in work) == raced]
    return [{**work, "name": f"{shape}: {work['name']}"} for shape, work in works]


def exports(rows: list[dict[str, Any]]) -> str:
    body = []
    for row in rows:
        if "export" not in row:
            read = [row["import"][name] for name in ("seconds", "peak_mb")]
            body.append([row["name"], row["weights_mb"], *read, "not taken", *[""] * 7])
            continue
        found, most = row["export"], goal_of("import_large", EXPORT_SECONDS.format(row["name"]))
        times, ceiling = found["peak_mb"] / row["weights_mb"], goal_of("import_large", EXPORT_MEMORY)
        body.append(
            [
                row["name"],
                row["weights_mb"],
                row.get("import", {}).get("seconds"),
                row.get("import", {}).get("peak_mb"),
                found["seconds"],
                found["processor_seconds"],
                most,
                verdict(found["seconds"], most, most=True),
                found["peak_mb"],
                f"{times:.2f}x",
                f"{ceiling:g}x",
                verdict(times, ceiling, most=True),
            ]
        )
    heads = ["model", "weights in f32, MB", "import, s", "its peak, MB", "export, s", "its processor, s", "goal, s"]
    return table([*heads, "reached", "its peak, MB", "over the weights", "goal", "reached"], body)


def served(shapes: list[dict[str, Any]]) -> str:
    body = [
        [
            row["name"],
            *(row["bundle_mb"][precision] for precision in ("fp32", "int8")),
            *(row[f"ctranslate2_{precision}"]["mb"] for precision in ("fp32", "int8")),
            ", ".join(row.get("export", {}).get("variants", [])) or "none",
            row["serve"]["ready_seconds"],
            row["serve"]["resident_mb"],
        ]
        for row in shapes
    ]
    heads = ["model", "bundle, f32, MB", "int8, MB", "CTranslate2's, f32, MB", "int8, MB", "proven"]
    text = (
        "Random weights may drift in int8, and be rounded in f32, by more than the proof admits. What is proven is "
        "told; where int8 is not, what is served is written without the proof.\n\n"
    )
    return text + table([*heads, "ready after, s", "resident then, MB"], body)


def memory(rows: list[dict[str, Any]]) -> str:
    body = [
        [row["name"], row["ours"], row["theirs"], f"{row['ratio']}x", row["goal"], verdict(row["ratio"], row["goal"])]
        for row in rows
    ]
    return table(["", "ours, MB", "CTranslate2, MB", "ratio", "goal", "reached"], body)
