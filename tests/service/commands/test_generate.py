"""Lines in, lines out, in order, whatever some of them are."""

from __future__ import annotations

import io
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.cli import Parser, UsageError
from attendant.service.bulk import progress, texts
from attendant.service.bulk.texts import lines_of
from attendant.service.commands import generate as room
from attendant.service.commands.generate import FailedLinesError, GenerateUsageError, generate, read_arguments, run
from attendant.service.engine.tasks import Finished, Generate, Generated, NewTokens, Options
from attendant.service.errors import QueueFullError
from attendant.service.requests.planning import plan_generate
from attendant.service.requests.schemas import GenerateRequest
from attendant.service.requests.served import ServedModel
from attendant.service.settings import Settings, SettingsError
from tests.support.fake_engine import FakeEngine, make_bundle

ROOT = Path(__file__).parents[3]
LIMIT = 20


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    made = FakeEngine(make_bundle(tmp_path / "bundle", target=LIMIT))
    made.start()
    yield made
    made.close()


@pytest.fixture
def command(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[list[str], str]]:
    """Runs the command on some standard input; its output lines, and what it said on standard error."""
    monkeypatch.setattr(room, "load_engine", lambda _: engine)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[list[str], str]:
        monkeypatch.setattr(room, "_standard_input", lambda: io.BytesIO(stdin))
        try:
            generate(Parser(prog="attendant generate"), list(arguments))
        except FailedLinesError as error:
            print(error, file=sys.stderr)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        assert not out or out.endswith(b"\n")
        return out.decode().split("\n")[:-1], err.decode()

    return call


def expected(engine: FakeEngine, text: str, **options: Any) -> list[str]:
    """The texts of the engine's own answer."""
    heard: queue.SimpleQueue[NewTokens | Finished] = queue.SimpleQueue()
    task = Generate(source=engine.source_tokenizer.encode(text), options=Options(**{"max_length": LIMIT, **options}))
    engine.submit([task], heard.put)
    event = heard.get(timeout=20)
    assert isinstance(event, Finished)
    assert isinstance(event.answer, Generated)
    return [engine.target_tokenizer.decode(hypothesis.ids) for hypothesis in event.answer.hypotheses]


def test_lines_are_answered_in_their_order(tmp_path: Path, command: Callable[..., tuple[list[str], str]]) -> None:
    words = [a + b * (i % 7) for i, a in enumerate("abcdefghijklmnop") for b in "qrstuvwxyz"]
    lines, complaints = command(stdin="\n".join(words).encode())
    other = FakeEngine(make_bundle(tmp_path / "other", target=LIMIT))
    other.start()
    assert lines == [expected(other, word)[0] for word in words]
    assert complaints == ""
    other.close()


def test_texts_may_be_arguments(engine: FakeEngine, command: Callable[..., tuple[list[str], str]]) -> None:
    wanted = [expected(engine, text)[0] for text in ("cat", "horse")]
    assert command("cat", "horse", stdin=b"dog\n")[0] == wanted


def test_no_lines_give_no_lines(command: Callable[..., tuple[list[str], str]]) -> None:
    assert command() == ([], "")


def test_a_bad_line_is_told_and_the_rest_go_on(
    engine: FakeEngine, command: Callable[..., tuple[list[str], str]]
) -> None:
    cat, dog = expected(engine, "cat")[0], expected(engine, "dog")[0]
    lines, complaints = command(stdin=b"cat\n\nCAT\n\xff\n" + b"x" * 17 + b"\ndog\n")
    assert lines == [cat, "", "", "", "", dog]
    for sentence in (
        "line 2: is empty; give a text.",
        "line 3: has what the model's vocabulary lacks: 'C', 'A', 'T'",
        "line 4: is not UTF-8",
        "line 5: has 17 tokens; this model takes at most 16.",
        "4 of 6 lines could not be answered",
    ):
        assert sentence in complaints


def test_failed_lines_are_exit_1(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "load_engine", lambda _: engine)
    with pytest.raises(FailedLinesError, match="1 of 2 texts could not be answered") as caught:
        generate(Parser(prog="attendant generate"), ["cat", ""])
    assert caught.value.exit_code == 1


def test_json_lines_are_the_apis_outputs(command: Callable[..., tuple[list[str], str]]) -> None:
    lines, _ = command("--json", "--logprobs", "--beam-size", "3", "--num-hypotheses", "2", stdin=b"cat\n\nhorse\n")
    cat, empty, _ = map(json.loads, lines)
    assert set(cat["hypotheses"][0]) == {"text", "tokens", "score", "logprobs", "finish_reason"}
    assert len(cat["hypotheses"]) == 2
    assert len(cat["hypotheses"][0]["logprobs"]) == len(cat["hypotheses"][0]["tokens"]) + 1
    assert empty == {"error": {"type": "invalid_field", "message": "is empty; give a text."}}


def test_several_hypotheses_are_separated_by_tabs(
    engine: FakeEngine, command: Callable[..., tuple[list[str], str]]
) -> None:
    wanted = "\t".join(expected(engine, "cat", beam_size=4, num_hypotheses=3))
    assert command("--beam-size", "4", "--num-hypotheses=3", "cat")[0] == [wanted]


def test_breaks_inside_an_answer_keep_lines_in_step(
    engine: FakeEngine, command: Callable[..., tuple[list[str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.target_tokenizer, "decode", lambda _: "a\nb\tc\r")
    assert command("cat", "dog")[0] == ["a b c ", "a b c "]


def test_a_seed_samples_what_one_request_with_all_lines_would(
    engine: FakeEngine, command: Callable[..., tuple[list[str], str]]
) -> None:
    texts = ["cat", "cat", "dog"]
    request = GenerateRequest(inputs=texts, temperature=0.7, seed=5)
    wanted = plan_generate(request, ServedModel(engine), Settings())
    before = len(engine.submitted)
    command("--temperature", "0.7", "--seed", "5", stdin="\n".join(texts).encode())
    assert engine.submitted[before:] == wanted


def test_every_option_of_the_api_has_a_flag() -> None:
    parser = Parser(prog="attendant generate")
    read_arguments(parser, ["cat"])
    flags = {flag for action in parser._actions for flag in action.option_strings}
    fields = set(GenerateRequest.model_fields) - {"inputs", "stream", "all_or_nothing", "timeout_ms", "model"}
    assert {"--" + name.replace("_", "-") for name in fields} < flags
    assert {"--bundle", "--provider", "--precision", "--threads", "--json"} < flags


def test_flags_reach_the_engine(engine: FakeEngine, command: Callable[..., tuple[list[str], str]]) -> None:
    command(
        "--min-length=2",
        "--max-length",
        "9",
        "--length-penalty",
        "0.5",
        "--repetition-penalty",
        "1.5",
        "--no-repeat-ngram-size",
        "3",
        "--early-stopping",
        "never",
        "--target-prefix",
        "HH AA",
        "cat",
    )
    (task,) = engine.submitted
    assert isinstance(task, Generate)
    assert task.options == Options(
        min_length=2,
        max_length=9,
        length_penalty=0.5,
        early_stopping="never",
        repetition_penalty=1.5,
        no_repeat_ngram_size=3,
    )
    assert task.prefix == engine.target_tokenizer.encode("HH AA")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--beam-size", "0"], "--beam-size takes a whole number from 1, not 0."),
        (["--beam-size", "two"], '--beam-size takes a whole number from 1, not "two".'),
        (["--beam-size", "2.5"], "--beam-size takes a whole number from 1, not 2.5."),
        (["--beam-size", "10000"], "--beam-size takes a whole number from 1 to 64 here, not 10000."),
        (["--early-stopping", "yes"], '--early-stopping takes true, false or "never", not "yes".'),
        (["--temperature", "NaN"], "--temperature takes a number from 0.01 to 100"),
        (["--num-hypotheses", "2"], "--num-hypotheses is 2 and --beam-size 1; without temperature"),
        (["--top-k", "4"], "--top-k is for sampling"),
        (["--max-length", "21"], "--max-length takes a whole number from 1 to 20 with this model, not 21."),
        (["--target-prefix", "XX"], "--target-prefix has what the model's vocabulary lacks: 'XX'"),
        (["--logprobs"], "--logprobs is for --json"),
    ],
)
def test_bad_options_are_refused_before_any_line(
    arguments: list[str], sentence: str, engine: FakeEngine, command: Callable[..., tuple[list[str], str]]
) -> None:
    with pytest.raises(GenerateUsageError) as caught:
        command(*arguments, stdin=b"cat\n")
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2
    assert engine.submitted == []


def test_unknown_flags_and_settings_are_bad_usage(command: Callable[..., tuple[list[str], str]]) -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: --bogus"):
        command("--bogus", "1")
    with pytest.raises(SettingsError, match="--provider takes one of auto, cpu, cuda, not 'tpu'") as caught:
        command("--provider", "tpu", "cat")
    assert caught.value.exit_code == 2


def test_a_line_that_the_engine_fails_on_is_told(
    engine: FakeEngine, command: Callable[..., tuple[list[str], str]]
) -> None:
    engine.failure = RuntimeError("out of luck")
    lines, complaints = command(stdin=b"cat\n")
    assert lines == [""]
    assert "line 1: RuntimeError: out of luck" in complaints


def test_a_full_queue_is_waited_for(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, out = engine.submit, io.BytesIO()

    def refuse_once(*given: Any, **named: Any) -> Any:
        engine.refusal = None if engine.submissions else QueueFullError("The queue is full.", 1)
        return submit(*given, **named)

    monkeypatch.setattr(engine, "submit", refuse_once)
    assert run(ServedModel(engine), GenerateRequest(inputs=["-"]), [b"cat"], out, "text", False) == (0, 1)
    assert engine.submissions == 2
    assert out.getvalue().decode() == expected(engine, "cat")[0] + "\n"


def test_no_more_lines_are_read_than_may_wait(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory does not grow with the lines, were the engine ever so slow."""
    monkeypatch.setattr(texts, "LINES_AHEAD", 8)
    most, taken, out = 0, 0, io.BytesIO()

    def sources() -> Iterator[bytes]:
        nonlocal most, taken
        for taken in range(1, 501):
            most = max(most, taken - out.getvalue().count(b"\n"))
            yield b"cat"

    assert run(ServedModel(engine), GenerateRequest(inputs=["-"]), sources(), out, "line", False) == (0, 500)
    assert taken == 500
    assert most <= 8 + 2  # one in the reader's hands, one in the writer's


def test_an_answer_does_not_wait_for_the_next_line(engine: FakeEngine) -> None:
    class Output(io.BytesIO):
        flushed = threading.Event()

        def flush(self) -> None:
            if self.getvalue():
                self.flushed.set()

    def sources() -> Iterator[bytes]:
        yield b"cat"
        assert Output.flushed.wait(20)
        yield b"dog"

    assert run(ServedModel(engine), GenerateRequest(inputs=["-"]), sources(), Output(), "line", False) == (0, 2)


def test_lines_that_cannot_be_read_are_an_error_of_the_run(engine: FakeEngine) -> None:
    def sources() -> Iterator[bytes]:
        yield b"cat"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run(ServedModel(engine), GenerateRequest(inputs=["-"]), sources(), io.BytesIO(), "line", False)


def test_lines_lose_their_ends_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(lines_of(io.BytesIO(b"a\r\n\n b \nlast"))) == [b"a", b"", b" b ", b"last"]
    monkeypatch.setattr(texts, "LONGEST_LINE", 4)
    assert list(lines_of(io.BytesIO(b"aaaaaaaaaaa\nbb\ncccc\ndd"))) == [b"aaaa", b"bb", b"cccc", b"dd"]


def test_a_line_of_many_megabytes_is_refused_whole(
    engine: FakeEngine, command: Callable[..., tuple[list[str], str]]
) -> None:
    cat = expected(engine, "cat")[0]
    lines, complaints = command(stdin=b"a" * 3 * 2**20 + b"\ncat\n")
    assert lines == ["", cat]
    assert "line 1: has 1,048,575 bytes or more" in complaints


def test_progress_is_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[list[str], str]]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert "2 lines, " in command(stdin=b"cat\ndog\n")[1]


def test_a_few_texts_show_no_progress(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[list[str], str]]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert command("cat", "dog")[1] == ""


SCRIPT = """
import signal
import sys
from pathlib import Path
import attendant
from attendant.service.commands import serve as cli
from attendant.service.commands import generate
from tests.support.fake_engine import FakeEngine, make_bundle

def load(_):
    engine = FakeEngine(make_bundle(Path(sys.argv[1])))
    engine.start()
    return engine

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
generate.load_engine = load
attendant.cli.COMMANDS["generate"] = ("attendant.service.commands.generate", "")
sys.exit(attendant.main(["generate"]))
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command as its own process, which has answered its first line and waits for the next."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, **pipes) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write(b"cat\n")
        started.stdin.flush()
        assert started.stdout.readline().strip()
        yield started
        started.kill()


def test_an_interrupt_ends_it_cleanly(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_reader_that_leaves_ends_it_quietly(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write(b"dog\n" * 10)
    process.stdin.flush()
    assert process.wait(20) == 1
    assert process.stderr.read() == b""


def test_texts_are_answered_without_a_web_framework() -> None:
    blocked = (
        "import sys\nfor name in ('fastapi', 'starlette', 'uvicorn', 'prometheus_client'): sys.modules[name] = None\n"
    )
    code = blocked + "import attendant\nattendant.Model\nsys.exit(attendant.main(['generate', 'hello']))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()
