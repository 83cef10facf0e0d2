"""Bulk: files in, shards out, in order, in constant memory, and the same bytes after any number of kills."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai.types
import pyarrow
import pyarrow.parquet
import pytest

from attendant.cli import Parser
from attendant.service.bulk import progress
from attendant.service.bulk.command import BulkUsageError, SetAsideError
from attendant.service.bulk.pipeline import Item, Window, answered
from attendant.service.bulk.progress import Progress
from attendant.service.bulk.shards import PROGRESS, OutputError
from attendant.service.bulk.texts import plan_text
from attendant.service.commands import generate as room
from attendant.service.commands.generate import GenerateUsageError, generate, run
from attendant.service.engine import collect
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import PATIENCE, in_process, wait_for

ROOT = Path(__file__).parents[3]
FORMATS = ("text", "tsv", "jsonl", "openai", "parquet")
SUFFIXES = {"text": "txt", "tsv": "tsv", "jsonl": "jsonl", "openai": "jsonl", "parquet": "parquet"}
WORDS = [a + b * (i % 7) for i, a in enumerate("abcdefghijklmnop") for b in "qrst"]
Bulk = Callable[..., Path]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    made = FakeEngine(make_bundle(tmp_path / "bundle"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bulk:
    """Runs the command on files, with an engine of its own; the output's directory."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")

    def load(_: Any) -> FakeEngine:
        made = FakeEngine(make_bundle(tmp_path / "bundle"))
        made.start()
        return made

    monkeypatch.setattr(room, "load_engine", load)

    def call(inputs: Sequence[Path], *flags: str, out: str = "out") -> Path:
        arguments = ["--input", *map(str, inputs), "--output", str(tmp_path / out), "--shard-lines", "10", *flags]
        generate(Parser(prog="attendant generate"), arguments)
        return tmp_path / out

    return call


def write(directory: Path, form: str, texts: Sequence[str], name: str = "in") -> Path:
    """A file of texts in some format."""
    path = directory / f"{name}.{SUFFIXES[form]}"
    if form == "parquet":
        columns = {"text": list(texts), "number": list(range(len(texts)))}
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
        return path
    lines = {
        "text": list(texts),
        "tsv": [f"{text}\tX Y" for text in texts],
        "jsonl": [json.dumps({"text": text, "number": i}) for i, text in enumerate(texts)],
        "openai": [batch_line(f"id-{i}", text) for i, text in enumerate(texts)],
    }[form]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def batch_line(custom_id: str, prompt: str, **body: Any) -> str:
    request = {"model": "fake", "prompt": prompt, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": request})


def flags_of(form: str) -> list[str]:
    return ["--format", "openai"] if form == "openai" else []


def shards(directory: Path) -> dict[str, bytes]:
    """Every file that a run is for."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("part-*")) if path.suffix != ".new"}


def answers(directory: Path, form: str) -> list[str]:
    """The best text of every record, in order; "" where there is none."""
    paths = [path for path in sorted(directory.glob("part-*")) if ".errors." not in path.name]
    if form == "parquet":
        rows = [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]
        return [row["hypotheses"][0]["text"] if row["hypotheses"] else "" for row in rows]
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    if form == "jsonl":
        return [json.loads(line).get("hypotheses", [{"text": ""}])[0]["text"] for line in lines]
    if form == "openai":
        bodies = [json.loads(line)["response"]["body"] for line in lines]
        return [body["choices"][0]["text"] if "choices" in body else "" for body in bodies]
    return lines


def errors(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(directory.glob("part-*.errors.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def one_by_one(engine: FakeEngine, texts: Sequence[str]) -> list[str]:
    """What lines through standard input give."""
    out = io.BytesIO()
    served = ServedModel(engine)
    run(served, GenerateRequest(inputs=["-"]), [text.encode() for text in texts], out, "text", False)
    return out.getvalue().decode().split("\n")[:-1]


def test_errors_of_an_attempt_that_was_killed_do_not_stay_beside_a_shard_without_any(
    tmp_path: Path, bulk: Bulk
) -> None:
    out = bulk([write(tmp_path, "text", WORDS)])
    progress = (out / PROGRESS).read_text(encoding="utf-8").splitlines(keepends=True)
    (out / PROGRESS).write_text("".join(progress[:2]), encoding="utf-8")
    (out / "part-00002.errors.jsonl").write_text("{}\n", encoding="utf-8")
    assert errors(bulk([write(tmp_path, "text", WORDS)])) == []


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_answers_as_lines_do_and_in_order(
    form: str, tmp_path: Path, engine: FakeEngine, bulk: Bulk
) -> None:
    out = bulk([write(tmp_path, form, WORDS)], *flags_of(form))
    assert answers(out, form) == one_by_one(engine, WORDS)
    assert len(shards(out)) == 7  # of 64 records, 10 each


def test_files_follow_each_other_and_share_no_shard(tmp_path: Path, engine: FakeEngine, bulk: Bulk) -> None:
    first, second = write(tmp_path, "text", WORDS[:13], "a"), write(tmp_path, "text", WORDS[13:20], "b")
    out = bulk([first, second])
    assert answers(out, "text") == one_by_one(engine, WORDS[:20])
    assert [content.count(b"\n") for content in shards(out).values()] == [10, 3, 7]


def test_an_empty_file_gives_no_shard(tmp_path: Path, bulk: Bulk) -> None:
    assert shards(bulk([write(tmp_path, "text", [])])) == {}


def test_fields_and_columns_of_the_input_are_passed_on(tmp_path: Path, bulk: Bulk) -> None:
    out = bulk([write(tmp_path, "jsonl", ["cat", "dog"])], out="a")
    lines = [json.loads(line) for line in (out / "part-00000.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["text"], line["number"]) for line in lines] == [("cat", 0), ("dog", 1)]
    table = pyarrow.parquet.read_table(
        bulk([write(tmp_path, "parquet", ["cat", "dog"])], out="b") / "part-00000.parquet"
    )
    assert table.column_names == ["text", "number", "hypotheses", "error"]
    assert table.column("number").to_pylist() == [0, 1]


def test_another_field_may_have_the_texts(tmp_path: Path, engine: FakeEngine, bulk: Bulk) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"source": "cat"}\n', encoding="utf-8")
    assert answers(bulk([path], "--field", "source"), "jsonl") == one_by_one(engine, ["cat"])


def test_options_of_the_search_hold_for_every_line(tmp_path: Path, bulk: Bulk) -> None:
    flags = ["--beam-size", "3", "--num-hypotheses", "2", "--json", "--logprobs"]
    out = bulk([write(tmp_path, "text", ["cat", "dog"])], *flags)
    for line in (out / "part-00000.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)["hypotheses"]
        assert len(found) == 2
        assert found[0]["logprobs"]


@pytest.mark.parametrize("form", FORMATS)
def test_bad_records_are_set_aside_and_the_rest_go_on(
    form: str, tmp_path: Path, engine: FakeEngine, bulk: Bulk
) -> None:
    texts = ["cat", "", "CAT", "x" * 17, "dog"]
    with pytest.raises(SetAsideError, match=r"3 of 5 lines could not be answered; part-\*\.errors\.jsonl") as caught:
        bulk([write(tmp_path, form, texts)], *flags_of(form))
    assert caught.value.exit_code == 3
    found = answers(tmp_path / "out", form)
    assert [bool(text) for text in found] == [True, False, False, False, True]
    assert [found[0], found[4]] == one_by_one(engine, ["cat", "dog"])
    aside = errors(tmp_path / "out")
    assert [(entry["line"], entry["type"]) for entry in aside] == [(n, "invalid_field") for n in (2, 3, 4)]
    assert {entry["file"] for entry in aside} == {f"in.{SUFFIXES[form]}"}
    for entry, sentence in zip(aside, ("is empty", "vocabulary lacks", "has 17 tokens"), strict=True):
        assert sentence in entry["message"]
    assert "CAT" in aside[1]["input"]


def test_lines_are_numbered_in_their_own_file(tmp_path: Path, bulk: Bulk) -> None:
    first, second = write(tmp_path, "text", ["cat"] * 12, "a"), write(tmp_path, "text", ["cat", ""], "b")
    with pytest.raises(SetAsideError):
        bulk([first, second])
    (entry,) = errors(tmp_path / "out")
    assert (entry["file"], entry["line"]) == ("b.txt", 2)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "is not JSON: "),
        (b"[1]", "is no JSON object."),
        (b'{"tekst": "cat"}', "has no text in its field 'text'; --field names another one."),
        (b'{"text": 1}', "has no text in its field 'text'"),
        (b"\xff", "is not UTF-8"),
        (b'{"text": "\\ud800"}', "cannot be written again"),
        (b"[" * 100_000, "is JSON that is nested too deeply."),
    ],
)
def test_a_line_that_is_no_record_is_set_aside(line: bytes, sentence: str, tmp_path: Path, bulk: Bulk) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(SetAsideError):
        bulk([path])
    assert sentence in errors(tmp_path / "out")[0]["message"]
    assert sentence in json.loads((tmp_path / "out/part-00000.jsonl").read_bytes())["error"]["message"]


def test_a_line_that_is_too_long_says_so_and_what_to_do(tmp_path: Path, bulk: Bulk) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "' + b"x " * 2**19 + b'"}\n')
    with pytest.raises(SetAsideError):
        bulk([path])
    message = errors(tmp_path / "out")[0]["message"]
    assert message.removeprefix("inputs ") == "has 1,048,575 bytes or more; divide it into several lines."


def test_a_batch_is_answered_as_openai_s_api_does(tmp_path: Path, bulk: Bulk) -> None:
    path = tmp_path / "batch.jsonl"
    bodies = [
        {"prompt": "cat"},
        {"prompt": ["dog", "horse"], "n": 2, "logprobs": 1},
        {"prompt": "cow", "temperature": 1.0, "seed": 3},
    ]
    path.write_text("".join(batch_line(f"id-{i}", **body) + "\n" for i, body in enumerate(bodies)), encoding="utf-8")
    lines = (bulk([path], "--format", "openai") / "part-00000.jsonl").read_text(encoding="utf-8").splitlines()
    with in_process(tmp_path / "served") as service:
        for i, (line, body) in enumerate(zip(map(json.loads, lines), bodies, strict=True)):
            assert (line["custom_id"], line["error"]) == (f"id-{i}", None)
            assert line["response"]["status_code"] == 200
            found = line["response"]["body"]
            expected = service.post("/v1/completions", model="fake", **body).json()
            assert {**found, "id": "", "created": 0} == {**expected, "id": "", "created": 0}
            openai.types.Completion.model_validate(found)
            assert found["created"] == 1700000000


@pytest.mark.parametrize(
    ("line", "status", "sentence"),
    [
        (batch_line("a", "cat", model="other"), 404, "There is no model 'other' here; there is 'fake'."),
        (batch_line("a", "cat", n=0), 400, "n takes a whole number from 1"),
        (batch_line("a", "cat", stream=True), 400, "stream is not for a batch"),
        (batch_line("a", "cat").replace("/v1/completions", "/v1/embeddings"), 400, "method and url take POST and"),
        (batch_line("a", "cat")[:-1] + ', "priority": 1}', 400, "priority is no field of a batch's line"),
    ],
)
def test_a_request_of_a_batch_that_is_refused_keeps_its_custom_id(
    line: str, status: int, sentence: str, tmp_path: Path, bulk: Bulk
) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(SetAsideError):
        bulk([path], "--format", "openai")
    found = json.loads((tmp_path / "out/part-00000.jsonl").read_bytes())
    assert (found["custom_id"], found["response"]["status_code"]) == ("a", status)
    assert sentence in found["response"]["body"]["error"]["message"]


def stopped_after(directory: Path, count: int) -> None:
    """As a run that was killed while it wrote the shard after so many."""
    lines = (directory / "progress.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "progress.jsonl").write_bytes(b"".join(lines[:count]) + lines[count][:9])
    for path in list(directory.glob("part-*")):
        if int(path.name[5:10]) >= count:
            path.unlink()
    (directory / f"part-{count:05d}.txt.new").write_bytes(b"half")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_run_that_goes_on_gives_the_same_bytes(form: str, count: int, tmp_path: Path, bulk: Bulk) -> None:
    texts = [*WORDS[:37], "", *WORDS[37:50]]
    path = write(tmp_path, form, texts)
    for out in ("whole", "stopped"):
        with pytest.raises(SetAsideError):
            bulk([path], *flags_of(form), out=out)
    stopped_after(tmp_path / "stopped", count)
    with pytest.raises(SetAsideError, match="1 of 51 lines"):
        bulk([path], *flags_of(form), out="stopped")
    assert shards(tmp_path / "stopped") == shards(tmp_path / "whole")


def test_samples_without_a_seed_are_the_same_when_the_run_goes_on(tmp_path: Path, bulk: Bulk) -> None:
    path = write(tmp_path, "text", WORDS[:40])
    before = shards(bulk([path], "--temperature", "1.0"))
    stopped_after(tmp_path / "out", 2)
    assert shards(bulk([path], "--temperature", "1.0")) == before
    assert shards(bulk([path], "--temperature", "1.0", out="other")) != before


def test_a_finished_run_does_nothing_more(tmp_path: Path, bulk: Bulk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "text", WORDS)
    before = shards(bulk([path]))
    monkeypatch.setattr(FakeEngine, "submit", lambda *_: pytest.fail("nothing is left to decode"))
    assert shards(bulk([path])) == before


SLOW_COMMAND = """
import sys, time
from pathlib import Path
import attendant
from attendant.service.commands import generate
from tests.support.fake_engine import FakeEngine, make_bundle

class Slow(FakeEngine):
    def _extend(self, *arguments):
        time.sleep(0.001)
        return super()._extend(*arguments)

def load(_):
    engine = Slow(make_bundle(Path(sys.argv[1])))
    engine.start()
    return engine

generate.load_engine = load
sys.exit(attendant.main(["generate", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(("form", "kills"), [("text", 2), ("parquet", 1)])
def test_after_a_kill_the_same_command_gives_what_an_uninterrupted_run_does(
    form: str, kills: int, tmp_path: Path, bulk: Bulk
) -> None:
    path = write(tmp_path, form, WORDS * 12)
    command = [sys.executable, "-c", SLOW_COMMAND, str(tmp_path / "killed"), "--input", str(path)]
    command += ["--output", str(tmp_path / "resumed"), "--shard-lines", "10"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    log = tmp_path / "resumed/progress.jsonl"
    for kill in range(kills):
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        wait_for(lambda kill=kill: log.exists() and log.read_bytes().count(b"\n") >= 3 * (kill + 1))
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert log.read_bytes().count(b"\n") < 77  # shards
    assert shards(bulk([path], out="resumed")) == shards(bulk([path], out="whole"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--beam-size", "2"],
            "was begun with beam_size null, and this run has 2; give the same, or another",
        ),
        (["--shard-lines", "20"], "was begun with shard_lines 10, and this run has 20"),
        (["--json"], "was begun with json false, and this run has true"),
        (["--format", "tsv"], 'was begun with format "text", and this run has "tsv"'),
        (["--seed", "5", "--temperature", "1.0"], "was begun with temperature null, and this run has 1.0"),
    ],
)
def test_a_run_does_not_go_on_with_other_options(flags: list[str], sentence: str, tmp_path: Path, bulk: Bulk) -> None:
    path = write(tmp_path, "text", WORDS)
    bulk([path])
    with pytest.raises(OutputError) as caught:
        bulk([path], *flags)
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_run_does_not_go_on_without_the_options_that_it_was_begun_with(tmp_path: Path, bulk: Bulk) -> None:
    path = write(tmp_path, "text", WORDS)
    bulk([path], "--beam-size", "1")  # a model may have another default
    with pytest.raises(OutputError, match="was begun with beam_size 1, and this run has null"):
        bulk([path])


def test_a_run_does_not_go_on_with_another_input(tmp_path: Path, bulk: Bulk) -> None:
    path = write(tmp_path, "text", WORDS)
    bulk([path])
    path.write_bytes(path.read_bytes().replace(b"a", b"b"))
    with pytest.raises(OutputError, match="was begun with inputs"):
        bulk([path])


def test_a_run_does_not_go_on_where_a_shard_was_changed(tmp_path: Path, bulk: Bulk) -> None:
    path = write(tmp_path, "text", WORDS)
    (bulk([path]) / "part-00002.txt").write_bytes(b"x")
    with pytest.raises(OutputError, match=r"part-00002.txt has 1 bytes, and \d+ were written"):
        bulk([path])


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path, bulk: Bulk) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"has other files and no manifest\.json"):
        bulk([write(tmp_path, "text", WORDS)])


def test_two_processes_do_not_write_one_directory(tmp_path: Path, bulk: Bulk) -> None:
    from attendant.service.bulk.shards import Output

    held = Output(tmp_path / "out", "txt")
    with pytest.raises(OutputError, match="is being written by another process"):
        bulk([write(tmp_path, "text", WORDS)])
    held.close()


def failing_with(number: int) -> Callable[..., None]:
    """A call that the operating system refuses with this error."""

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_where_files_cannot_be_locked_a_run_goes_on_without(
    number: int, tmp_path: Path, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", failing_with(number))
    assert len(answers(bulk([write(tmp_path, "text", WORDS)]), "text")) == len(WORDS)


def test_a_lock_that_fails_otherwise_is_told_as_it_is(
    tmp_path: Path, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", failing_with(errno.EIO))
    with pytest.raises(OutputError, match="out cannot be locked: Input/output error"):
        bulk([write(tmp_path, "text", WORDS)])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--input", "FILE"], "--input and --output belong together"),
        (["--output", "out"], "--input and --output belong together"),
        (["--input", "missing.txt", "--output", "out"], "--input: there is no file missing.txt."),
        (["--input", "FILE", "--output", "out", "--shard-lines", "0"], "--shard-lines takes a whole number from 1"),
        (["cat", "--input", "FILE", "--output", "out"], "give either texts or --input, not both."),
        (["--input", "FILE", "JSONL", "--output", "out"], "--input has files of several formats (jsonl, text)"),
        (["--input", "JSONL", "--output", "out", "--json"], "--json is for lines of text"),
        (["--input", "FILE", "--output", "out", "--logprobs"], "--logprobs is for JSON"),
        (["--input", "JSONL", "--output", "out", "--format", "openai", "--beam-size", "2"], "--beam-size is not for"),
    ],
)  # fmt: skip
def test_bad_usage_is_told_before_anything_is_loaded(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    files = {"FILE": str(write(tmp_path, "text", WORDS)), "JSONL": str(write(tmp_path, "jsonl", WORDS))}
    with pytest.raises(BulkUsageError) as caught:
        generate(Parser(prog="attendant generate"), [files.get(word, word) for word in arguments])
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_option_that_the_model_cannot_honour_is_bad_usage(tmp_path: Path, bulk: Bulk) -> None:
    with pytest.raises(GenerateUsageError, match="--max-length takes a whole number from 1 to 20"):
        bulk([write(tmp_path, "text", WORDS)], "--max-length", "21")
    assert not (tmp_path / "out").exists()


def test_where_pyarrow_is_missing_parquet_says_so(tmp_path: Path, bulk: Bulk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "parquet", WORDS)
    monkeypatch.delitem(sys.modules, "attendant.service.bulk.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BulkUsageError, match=r"pip install 'attendant-transformer\[parquet\]'"):
        bulk([path])


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"words": ["cat"]}, "has no column 'text' of texts; --field names another one."),
        ({"text": [1]}, "has no column 'text' of texts"),
        ({"text": ["cat"], "error": [""]}, "has a column 'error', which the output adds; rename it."),
    ],
)
def test_a_parquet_file_without_texts_is_bad_usage(
    columns: dict[str, Any], sentence: str, tmp_path: Path, bulk: Bulk
) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "in.parquet")
    with pytest.raises(Exception, match=sentence) as caught:
        bulk([tmp_path / "in.parquet"])
    assert getattr(caught.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    "content",
    [b"cat\n" * 100, b"PAR1" + b"\xff" * 64 + b"\x40\0\0\0PAR1", b""],
    ids=["text", "a damaged footer", "empty"],
)
def test_a_file_that_is_no_parquet_is_bad_usage(content: bytes, tmp_path: Path, bulk: Bulk) -> None:
    (tmp_path / "in.parquet").write_bytes(content)
    with pytest.raises(Exception, match=r"in\.parquet is no Parquet file") as caught:
        bulk([tmp_path / "in.parquet"])
    assert getattr(caught.value, "exit_code", None) == 2


def test_a_refused_file_does_not_begin_a_run(tmp_path: Path, bulk: Bulk) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"words": ["cat"]}), tmp_path / "in.parquet")
    with pytest.raises(Exception, match="--field names another one"):
        bulk([tmp_path / "in.parquet"])
    bulk([tmp_path / "in.parquet"], "--field", "words")
    assert len(answers(tmp_path / "out", "parquet")) == 1


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_every_type_of_arrow_for_texts_is_read(kind: str, tmp_path: Path, bulk: Bulk) -> None:
    texts = ["cat", "dog", "cat"]
    wanted = answers(bulk([write(tmp_path, "text", [*texts, *texts[1:]])], out="plain"), "text")
    words = pyarrow.array(texts).dictionary_encode() if kind == "dictionary" else pyarrow.array(texts, kind)
    for name, part in (("in", words), ("more", words[1:])):
        pyarrow.parquet.write_table(pyarrow.table({"text": part}), tmp_path / f"{name}.parquet")
    found = bulk([tmp_path / "in.parquet", tmp_path / "more.parquet"])
    assert answers(found, "parquet") == wanted


def test_results_of_a_run_before_do_not_stay_beside_the_new_ones(tmp_path: Path, bulk: Bulk) -> None:
    old = {"hypotheses": [{"text": "OLD"}], "error": {"type": "x", "message": "old"}, "id": 1}
    lines = [json.dumps({"text": text, **old}) for text in ("cat", "")]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(SetAsideError):
        bulk([tmp_path / "in.jsonl"])
    answered, refused = map(json.loads, (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines())
    assert (set(answered), set(refused)) == ({"text", "id", "hypotheses"}, {"text", "id", "error"})
    assert "old" not in json.dumps([answered, refused]).lower()


def test_an_output_that_is_a_file_is_bad_usage(tmp_path: Path, bulk: Bulk) -> None:
    (tmp_path / "out").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="is a file; name an empty directory"):
        bulk([write(tmp_path, "text", WORDS)])


def test_null_in_a_column_of_texts_is_set_aside(tmp_path: Path, bulk: Bulk) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["cat", None]}), tmp_path / "in.parquet")
    with pytest.raises(SetAsideError, match="1 of 2"):
        bulk([tmp_path / "in.parquet"])
    assert errors(tmp_path / "out")[0]["message"] == "has null in its column 'text'; give a text."


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_a_value_that_is_not_utf_8_in_a_column_of_texts_is_set_aside(kind: str, tmp_path: Path, bulk: Bulk) -> None:
    binary = pyarrow.array([b"cat", b"d\xffg", b"cow"], pyarrow.binary())
    texts = pyarrow.Array.from_buffers(pyarrow.string(), len(binary), binary.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts.cast(kind)}), tmp_path / "in.parquet")
    with pytest.raises(SetAsideError, match="1 of 3"):
        bulk([tmp_path / "in.parquet"])
    [entry] = errors(tmp_path / "out")
    assert entry["input"] == "d\\xffg"
    assert entry["message"] == "is not UTF-8: its byte 2 cannot be read."
    table = pyarrow.parquet.read_table(tmp_path / "out" / "part-00000.parquet")
    assert [len(found.as_py() or ()) for found in table["hypotheses"]] == [1, 0, 1]


def test_no_more_records_are_read_than_may_wait(engine: FakeEngine) -> None:
    """So memory does not grow with the input, were the engine ever so slow."""
    served, request = ServedModel(engine), GenerateRequest(inputs=["-"])
    engine.pause_after = 0
    read = 0

    def records() -> Iterator[tuple[str, int]]:
        nonlocal read
        while read < 500:
            read += 1
            yield "cat", 3

    found = answered(engine, records(), lambda text: (plan_text(request, served, text, 0).tasks, None), 8)
    consumer = threading.Thread(target=lambda: sum(1 for _ in found))
    consumer.start()
    wait_for(lambda: read >= 8)
    time.sleep(0.05)  # more would have been read by now
    assert read <= 8 + 2  # one in the reader's hands, one in the consumer's
    engine.resume()
    consumer.join()
    assert read == 500


def test_records_wait_by_their_bytes_too() -> None:
    window: Window[str] = Window(items=100, size=1000)
    window.put(Item("large", 5000))  # alone it fits
    late = threading.Thread(target=window.put, args=(Item("next", 10),))
    late.start()
    late.join(0.05)
    assert late.is_alive()
    assert isinstance(window.get(), Item)
    late.join()
    for _ in range(99):
        window.put(Item("small", 10))  # and the one before
    blocked = threading.Thread(target=window.put, args=(Item("small", 10),))
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    window.close()
    blocked.join()


def test_progress_tells_the_rate_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter(range(21))
    shown = Progress("line", shows=True, total=1000, initial=200, clock=lambda: float(next(times)))
    for _ in range(20):
        shown.add(20)
    shown.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first == "10 lines, 1 lines/s, 40.0 %, 0:00:30 left"
    assert second == "20 lines, 1 lines/s, 60.0 %, 0:00:20 left"


def test_a_run_says_how_far_it_is_and_how_much_it_did(
    tmp_path: Path, bulk: Bulk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    out = bulk([write(tmp_path, "text", WORDS)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(WORDS) + 1
    assert "100.0 %, 0:00:00 left" in lines[-2]
    assert lines[-1] == f"64 lines in 7 shards in {out}."


def test_a_full_queue_is_waited_for_and_a_request_that_is_larger_than_it_is_decoded_in_parts(
    tmp_path: Path, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "RETRY_SECONDS", 0.001)
    path = tmp_path / "batch.jsonl"
    lines = [batch_line("large", ["cat"] * 1025), *(batch_line(str(i), ["cat"] * 600) for i in range(4))]  # type: ignore[arg-type]
    path.write_text("\n".join(lines), encoding="utf-8")
    bulk([path], "--format", "openai")
    found = [json.loads(line) for line in (tmp_path / "out/part-00000.jsonl").read_bytes().splitlines()]
    assert [len(each["response"]["body"].get("choices", ())) for each in found] == [1025, 600, 600, 600, 600]
