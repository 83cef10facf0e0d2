"""docs/performance.md is what its command makes of the results, and says of each figure how it was taken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.http.servers import ctranslate2
from bench.http.serving import best_way, better, headline, unequal_lengths, way_of
from bench.report.machine import cpu_kind
from bench.report.record import RESULTS, facts, write_json, write_record
from bench.report.report import INTRODUCTION, PAGE, SECTIONS, page
from bench.report.text import number, table, verdict
from bench.versus import large
from bench.versus.lengths import works
from bench.versus.quick import WORKS, memory_row
from bench.versus.race import row_of

BEST = {("ours", "fp32"): 0.2, ("ours", "int8"): 0.1, ("ctranslate2", "fp32"): 0.3, ("ctranslate2", "int8"): 0.4}


def load_row(server: str, load: str, rate: float, p99: float, **more: Any) -> dict[str, Any]:
    return {
        "server": server,
        "load": load,
        "answered": 9,
        "errors": {"HTTP 429": 2},
        "seconds": 1.0,
        "requests_per_second": rate,
        "tokens_per_second": 100.0,
        "mean_target_tokens": 20.0,
        "latency_ms": {"p50": 10.0, "p95": 20.0, "p99": p99},
        "first_token_ms": {"p50": 5.0, "p95": 6.0, "p99": 7.0},
        "generator": {},
        "held_up_by_generator": None,
        "memory": {"peak": 3e8},
        **more,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """One of every result, small, of one kind of processor."""
    tmp_path /= "amd-avx2"
    about = {**facts("bench.versus.quick"), "threads": 2}
    memory = {"ours int8": {"peak": 100_000_000}, "ctranslate2 int8": {"peak": 150_000_000}}
    rows = [row_of(work, BEST, 3) for work in WORKS]
    write_json(
        tmp_path / "quick.json",
        [
            {**row, **about}
            for row in [*rows, memory_row("peak memory, int8", memory["ours int8"], memory["ctranslate2 int8"])]
        ],
    )
    write_record(tmp_path / "lengths.json", "bench.versus.lengths", [row_of(work, BEST, 3) for work in works()])
    slow = {("ours", "int8"): 0.1, ("transformers", "fp32"): 2.0, ("optimum", "fp32"): 3.0}
    write_record(tmp_path / "huggingface.json", "bench.versus.huggingface", [row_of(work, slow, 3) for work in WORKS])
    served = [load_row("attendant", "32 clients", 50.0, 100.0), load_row("ctranslate2", "32 clients", 10.0, 300.0)]
    write_record(
        tmp_path / "serving.json",
        "bench.http.serving",
        [*served, load_row("attendant", "8", 1.0, 1.0, way="streamed")],
        goals=headline(served, "32 clients"),
        tried=[load_row("ctranslate2", "32 clients", 10.0, 300.0, way="int8")],
    )
    step = {
        "name": "int8, 1 row",
        "precision": "int8",
        "rows": 1,
        "step_ms": 2.0,
        "stream_ms": 1.5,
        "multiply_ms": 0.1,
        "times_limit": 1.33,
        "goal": 1.5,
        "operators": [{"operator": "MatMul", "ms": 1.0, "share": 0.5}],
    }
    limits = {"path": "avx2", "bandwidth_gb_s": 20.0, "fp32_gop_s": 90.0, "int8_gop_s": 280.0, "step_parameters": 38}
    write_record(tmp_path / "roofline.json", "bench.profile.roofline", [step], limits=limits)
    attention = [{"sweep": "length", "ms": {"8": 1.0}, "exponent": 2.01, "expected": 2}]
    grown = [{"sweep": "batch", "value": 4, "precision": "int8", "ms": 9.0, "peak_mb": 99.0, "loaded_mb": 80.0}]
    write_record(tmp_path / "growth.json", "bench.profile.growth", grown, attention=attention)
    side = {"alone": load_row("", "1 clients", 1.0, 2.0), "many": load_row("", "16 clients", 1.0, 2.0)}
    goal = {"name": "resident memory", "value": 300, "unit": "MB", "goal": 250, "sense": "under"}
    write_record(tmp_path / "embedded.json", "bench.http.embedded", [goal], served=side, bare=side, engine_ms=1.5)
    case = {"requests": 2, "beam_size": 4, "source_length": 9, "length": 8, "same": 2, "score_distance": 1e-6}
    write_record(tmp_path / "peers.json", "bench.models.peers", [case])
    imported = {**facts("bench.versus.imported"), "threads": 2}
    write_json(tmp_path / "imported.json", [{**row, **imported} for row in rows])
    two = {**BEST, ("ctranslate2_two_workers", "fp32"): 0.5, ("ctranslate2_two_workers", "int8"): 0.25}
    of_words = {**facts("bench.versus.words"), "threads": 0}
    write_json(tmp_path / "words.json", [{**row_of(work, two, 3), **of_words} for work in WORKS])
    shape = {"vocabulary": 9, "d_model": 8, "d_ff": 16, "heads": 2, "layers": 3}
    int8_alone = {key: value for key, value in two.items() if key != ("ours", "fp32")}
    write_record(
        tmp_path / "large.json",
        "bench.versus.large",
        [
            *(row_of(work, int8_alone, 3) for work in large.works()),
            {**memory_row(large.MEMORY, memory["ours int8"], memory["ctranslate2 int8"])},
        ],
        shape=shape,
        source_length=20,
        target_length=24,
        checked=8,
    )
    write_import_large(tmp_path / "import_large.json", int8_alone, memory)
    write_texts(tmp_path)
    started = {"name": "base", "ready_seconds": 0.9, "median_seconds": 1.25, "resident_mb": 120, "peak_mb": 130}
    write_record(tmp_path / "start.json", "bench.http.start", [{**started, "goal": 5.0, "times": 5}])
    drawn = {"name": "drawing", "unit": "ms", "median": 70.0, "most": 90.0, "times": 9, "goal": 100.0}
    write_record(tmp_path / "drawing.json", "bench.profile.drawing", [drawn])
    over_http = [{"name": "16 clients", "ours": 90.0, "theirs": 50.0, "ratio": 1.8, "goal": 1.5}]
    write_record(tmp_path / "words_http.json", "bench.http.words_http", [], goals=over_http)
    parts = [{"part": "search", "share": 0.25, "microseconds_a_step": 9.0, "calls": 4, "waiting": 0.5}]
    write_record(
        tmp_path / "iteration.json", "bench.profile.iteration", [{"name": "1 word", "seconds": 0.002, "parts": parts}]
    )
    load = {"best": 4, "tokens_per_second": {"2": 8, "4": 9}, "step_ms": {"2": 1.0, "4": 1.5}, "regret": 0.111}
    loads = [{"rows": 24, **load, "best": 2, "regret": 0.0}, {"rows": None, **load}]
    steps = [{"rows": 1, "serial_ms": 0.5, "parallel_ms": 2.0, "python_ms": 0.2}]
    write_record(
        tmp_path / "lanes.json",
        "bench.profile.lanes",
        [{"model": "base", "cores": 8, "chosen": 2, "loads": loads}],
        bandwidth_gb_s=30.0,
        measured_threads=[1, 2],
        serial=None,
        measured=[{"model": "base", "weight_bytes": 10, "steps": steps}],
    )
    return tmp_path.parent


def write_texts(results: Path) -> None:
    asked = {"name": "base, terms", "model": "base", "requests": 1, "kind": "terms", "ms": 61.9, "tokens": 24}
    write_record(results / "constraints.json", "bench.profile.constraints", [{**asked, "ratio": 1.46, "goal": 1.3}])
    read = {"way": "sentences", "sentences": 10_000, "words": 130_000, "seconds": 40.0, "words_per_second": 3250.0}
    write_record(results / "texts.json", "bench.profile.texts", [{**read, "ratio": 1.02, "splitting_seconds": 0.9}])


def write_import_large(path: Path, best: dict[tuple[str, str], float], memory: dict[str, dict[str, int]]) -> None:
    """The base model, which was exported alone, and a shape that was served too."""
    exported = {"seconds": 90.0, "processor_seconds": 170.0, "peak_mb": 1000, "promised_mb": 1500, "variants": ["fp32"]}
    base = {"name": "base", "date": "2026-11-19", "load": 0.1, "weights_mb": 242, "export": exported}
    converted = {"seconds": 9.0, "processor_seconds": 9.0, "peak_mb": 900, "mb": 470}
    held = memory_row(large.MEMORY, memory["ours int8"], memory["ctranslate2 int8"])
    shape = {
        **base,
        "name": "NLLB-600M",
        "import": {"seconds": 20.0, "processor_seconds": 22.0, "peak_mb": 3000},
        **dict.fromkeys(("ctranslate2_fp32", "ctranslate2_int8"), converted),
        "bundle_mb": {"fp32": 480, "int8": 120},
        "serve": {"ready_seconds": 2.5, "resident_mb": 300, "peak_mb": 350},
        "works": [*(row_of(work, best, 3) for work in large.works()), held],
    }
    sizes = {"source_length": 20, "target_length": 24, "checked": 8}
    write_record(path, "bench.versus.import_large", [base, shape], **sizes)


def test_every_result_has_a_section_with_its_command(results: Path) -> None:
    made = page(results)
    for name, (title, _) in SECTIONS.items():
        assert f"## {title}\n" in made
        assert re.search(rf"`python -m bench\.\w+\.{name.removesuffix('.json')}\b", made), name


def test_kinds_of_processor_stand_apart(results: Path) -> None:
    write_record(
        results / "intel-vnni" / "lengths.json", "bench.versus.lengths", [row_of(work, BEST, 3) for work in works()]
    )
    section = page(results).partition("## Short and long\n")[2].partition("\n## ")[0]
    assert section.index("### AMD without VNNI") < section.index("### Intel with VNNI")
    assert section.count("| work |") == 2


@pytest.mark.parametrize(
    ("vendor", "flags", "kind"),
    [
        ("AuthenticAMD", "fma avx2", "amd-avx2"),
        ("AuthenticAMD", "avx2 avx512f avx512_vnni", "amd-vnni"),
        ("GenuineIntel", "avx2 avx_vnni", "intel-vnni"),
        ("GenuineIntel", "avx2 avx512f", "intel-avx512"),
    ],
)
def test_a_processor_is_of_a_kind(vendor: str, flags: str, kind: str) -> None:
    assert cpu_kind(vendor, flags) == kind


def test_a_benchmark_that_was_not_run_has_no_section(tmp_path: Path) -> None:
    assert page(tmp_path) == INTRODUCTION


def test_goals_reached_and_missed_are_told_apart(results: Path) -> None:
    made = page(results)
    greedy, many = "2.7x", "1.9x"
    assert f"| 32 requests, greedy | 300 / 400 | 200 / 100 | 3.0x | {many} | yes |" in made
    assert f"| 1 request, greedy | 300 / 400 | 200 / 100 | 3.0x | {greedy} | yes |" in made
    assert "| 1 word | 2 | 25% |" in made
    assert "| 16 clients | 90 | 50 | 1.8x |  |  |" in made  # without VNNI there is no goal
    assert "| base | 8 | 2 | 2 (0%) | 4 (11%) |" in made
    assert "| resident memory | 300 MB | under 250 | no |" in made
    assert "| base | 0.9 | 1.25 | 1 | yes | 120 |" in made
    assert "| int8 | 1 | 2 | 1.5 | 0.1 | 1.33x | 1.3x | no |" in made
    assert "| 8 requests, beam 4 | 300 / 400 | 500 / 250 | 100 | 2.5x |" in made
    assert "| base | 242 |  |  | 90 | 170 | 120 | yes | 1,000 | 4.13x | 4x | no |" in made
    assert "| NLLB-600M | 242 | 20 | 3,000 | 90 | 170 |  |  | 1,000 | 4.13x | 4x | no |" in made
    assert "| NLLB-600M | 480 | 120 | 470 | 470 | fp32 | 2.5 | 300 |" in made
    assert "| NLLB-600M: peak memory, int8, two lanes | 100 | 150 | 1.5x | 1 | yes |" in made
    assert "peak memory, int8, two lanes: ours 100 MB, CTranslate2 150 MB, 1.5x (goal 1x)." in made


def test_goals_are_those_of_the_kind_of_processor_and_of_today(results: Path) -> None:
    (results / "amd-avx2").rename(results / "amd-vnni")
    made = page(results)
    assert "| 1 request, greedy | 300 / 400 | 200 / 100 | 3.0x | 5x | no |" in made
    assert "| 16 clients | 90 | 50 | 1.8x | 1.4x | yes |" in made
    assert "| 8 requests, beam 4 | 300 / 400 | 500 / 250 | 100 | 2.5x | 2.2x | yes |" in made
    assert "| NLLB-600M: 8 requests, beam 4 | 300 / 400 | 500 / 250 | 100 | 2.5x | 1.5x | yes |" in made


def test_figures_of_another_version_say_so(results: Path) -> None:
    assert "Measured with version" not in page(results)
    path = results / "amd-avx2" / "lengths.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["versions"]["attendant"] = "0.0.9"
    write_json(path, record)
    section = page(results).partition("## Short and long\n")[2].partition("\n## ")[0]
    assert "### AMD without VNNI\n\n**Measured with version 0.0.9; this is " in section


def test_the_page_names_the_machine_and_the_versions(results: Path) -> None:
    made, about = page(results), facts("bench.versus.quick")
    assert about["machine"]["cpu"] in made
    assert f"onnxruntime {about['versions']['onnxruntime']}" in made
    assert about["date"] in made


def test_rows_of_quick_have_the_agreed_fields(results: Path) -> None:
    rows = json.loads((results / "amd-avx2" / "quick.json").read_text(encoding="utf-8"))
    assert all({"name", "ours", "theirs", "ratio", "goal", "machine"} <= row.keys() for row in rows)


def test_models_that_were_only_exported_have_no_table_of_answers(results: Path) -> None:
    path = results / "amd-avx2" / "import_large.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**record, "rows": record["rows"][:1]})
    section = page(results).partition("## Large models, from their files to answers\n")[2].partition("\n## ")[0]
    assert "| base | 242 |" in section
    assert "CTranslate2 on the same files" not in section


def test_a_large_model_that_was_not_exported_has_its_other_figures(results: Path) -> None:
    path = results / "amd-avx2" / "import_large.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["rows"][1]["export"]
    write_json(path, record)
    made = page(results)
    assert "| NLLB-600M | 242 | 20 | 3,000 | not taken |" in made
    assert "| NLLB-600M | 480 | 120 | 470 | 470 | none | 2.5 | 300 |" in made


def test_the_page_in_docs_is_made_from_the_results_that_are_there() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS)


def test_more_requests_and_a_shorter_tail_are_both_better() -> None:
    rows = [load_row("attendant", "32 clients", 50.0, 100.0), load_row("ctranslate2", "32 clients", 10.0, 300.0)]
    assert [row["ratio"] for row in headline(rows, "32 clients")] == [5.0, 3.0]


def test_of_two_turns_the_better_counts_by_rate_or_where_that_is_given_by_tail() -> None:
    slow, fast = load_row("a", "8 clients", 1.0, 5.0), load_row("a", "8 clients", 2.0, 9.0)
    assert better(fast, slow)
    late, soon = (load_row("a", "3 requests/s at random", 1.0, p99) for p99 in (9.0, 5.0))
    assert better(soon, late)


def test_servers_with_answers_of_other_lengths_are_told() -> None:
    rows = [load_row("a", "", 1.0, 1.0), load_row("b", "", 1.0, 1.0)]
    assert unequal_lengths(rows) is None
    rows[1]["mean_target_tokens"] = 30.0
    assert "tokens/s" in (unequal_lengths(rows) or "")


def test_memory_is_compared_as_theirs_over_ours() -> None:
    memory = {"ours int8": {"peak": 100_000_000}, "ctranslate2 int8": {"peak": 150_000_000}}
    assert memory_row("peak memory, int8", memory["ours int8"], memory["ctranslate2 int8"])["ratio"] == 1.5


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (1234.5, "1,234"), (1.23456, "1.23"), (1200, "1,200"), ("a", "a")]
)
def test_numbers_are_short(value: Any, text: str) -> None:
    assert number(value) == text


def test_a_table_has_a_line_for_each_row() -> None:
    assert table(["a", "b"], [[1, 2.0]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_a_goal_can_be_a_ceiling() -> None:
    assert [verdict(1, 2), verdict(1, 2, most=True), verdict(1, None)] == ["no", "yes", ""]


def test_the_best_way_to_serve_can_be_started_again_from_what_was_written() -> None:
    models = {"fp32": Path("f"), "int8": Path("i")}
    tried = [
        {"way": "fp32, 1 x 2 threads", "requests_per_second": 1.0},
        {"way": "int8, 2 x 1 threads", "requests_per_second": 2.0},
    ]
    assert way_of(best_way(tried), models, 2) == ctranslate2(Path("i"), "int8", 2, 1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--seconds 2 --parts 16 64 --rounds 3", "--seconds 2 --rounds 3"),
        ("--parts peers", ""),
        ("--rounds 3", "--rounds 3"),
    ],
)
def test_a_measurement_in_parts_is_told_as_one_command(given: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *given.split()])
    assert facts("bench.module")["command"] == f"python -m bench.module {told}".strip()


def test_constraints_are_held_to_their_goal_and_a_text_is_compared_with_bulk(results: Path) -> None:
    made = page(results)
    assert "| base | 1 | 2 terms of 2 tokens | 61.9 | 24 | 1.46x | 1.3x | no |" in made
    assert "| one text, split into sentences | 40 | 3,250 | 1.02x | 0.9 |" in made
