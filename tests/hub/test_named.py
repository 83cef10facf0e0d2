"""`attendant serve OWNER/NAME` as a user runs it: from a hub to answers, and again without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attendant.cli import main
from attendant.hub import cache as caches
from attendant.hub.cache import list_models
from tests.hub.conftest import SECRET
from tests.hub.loopback import NAME, Hub, files_of, serving
from tests.model.importers.test_marian import make_marian
from tests.support.processes import Process

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "attendant"]
TEXT, LANGUAGE = "the of and", "fra"


@dataclass
class Made:
    """What two processes said that were started at once, with an empty cache, and the hub that they asked."""

    hub: Hub
    cache: Path
    environment: dict[str, str]
    answers: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    directory = tmp_path_factory.mktemp("named")
    make_marian(directory / "model")
    cache = directory / "cache"
    with serving(Hub(token=SECRET)) as hub:
        hub.commit({**files_of(directory / "model"), "pytorch_model.bin": b"pickle"})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATTENDANT_", "HF_"))}
        environment = kept | {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": SECRET,
            "HF_HOME": str(directory / "hf"),
            "XDG_CACHE_HOME": str(directory),
            "ATTENDANT_CACHE_DIR": str(cache),
            "OMP_NUM_THREADS": "1",
        }
        command = [*COMMAND, "generate", "--model", NAME, "--target-language", LANGUAGE, TEXT]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        both = [subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) for _ in range(2)]
        found = [process.communicate(timeout=170) for process in both]
        assert [process.returncode for process in both] == [0, 0], found
        yield Made(hub, cache, environment, [out for out, _ in found], [err for _, err in found])


def test_two_first_starts_at_once_answer_and_make_the_model_once(made: Made) -> None:
    assert made.answers[0] == made.answers[1] != ""
    assert sum("is ready" in text for text in made.errors) == 1
    assert made.hub.contents().count("model.safetensors") == 1
    (model,) = list_models(made.cache)
    assert model.whole
    assert [path.name for path in model.directory.parent.iterdir() if path.suffix == caches.PARTIAL] == []


def test_nothing_that_is_not_needed_is_downloaded_and_the_token_is_nowhere(made: Made) -> None:
    assert not {"pytorch_model.bin", "README.md"} & set(made.hub.contents())
    assert SECRET not in "".join([*made.answers, *made.errors])
    written = [path for path in made.cache.parent.rglob("*") if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


def test_the_next_start_serves_it_without_asking_the_hub(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cache cannot be written, as a read-only volume."""
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = len(made.hub.asked)
    service = Process(None, NAME, "--cache-dir", str(made.cache))
    try:
        status, answer = service.post("/v1/generate", {"inputs": TEXT, "target_language": LANGUAGE})
        assert status == 200
        loaded = Path(f"/proc/{service.pid}/maps").read_text(encoding="utf-8") if Path("/proc").is_dir() else ""
        assert "torch" not in loaded
    finally:
        service.stop()
    found = json.loads(answer)
    assert found["model"] == "tiny"
    assert found["outputs"][0]["hypotheses"][0]["text"] == made.answers[0].rstrip("\n")
    assert len(made.hub.asked) == asked


def test_info_finds_it_by_name_and_says_what_to_do_where_it_is_not(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTENDANT_CACHE_DIR", str(made.cache))
    assert main(["info", NAME]) == 0
    assert capsys.readouterr().out.startswith(f"tiny: {made.cache}")
    assert main(["info", "acme/other"]) == 1
    assert "attendant models pull acme/other puts it there" in capsys.readouterr().err


def test_import_takes_a_name_too_and_leaves_no_download(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.setenv(name, made.environment[name])
    assert main(["import", NAME, "--out", str(tmp_path / "run"), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert [path.name for path in (tmp_path / "cache" / "acme--tiny").iterdir()] == [caches.LOCK]


def test_a_first_start_offline_is_one_sentence(made: Made, tmp_path: Path) -> None:
    offline = made.environment | {"HF_HUB_OFFLINE": "1", "ATTENDANT_CACHE_DIR": str(tmp_path)}
    command = [*COMMAND, "serve", NAME, "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True, timeout=170)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith(f"attendant models: {NAME} is not in the cache, and HF_HUB_OFFLINE forbids")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", NAME, "--bundle", "x"], f"{NAME} and --bundle are both given"),
        (["serve", "nowhere"], "nowhere is neither a bundle's directory nor the name of a model"),
        (["serve", "--model", "nowhere"], "'nowhere' is no name of a model on Hugging Face"),
        (["serve", "--revision", "v1"], "--revision is for a model by name; give one with --model"),
        (["generate", "--model", NAME, "--bundle", "x", "a"], "--model and --bundle are both given; leave one out"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert complaint.count("\n") == 1
