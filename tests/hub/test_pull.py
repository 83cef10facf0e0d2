"""From a name to a bundle in the cache, with stand-ins for import and export: what is taken is whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attendant.cli import main
from attendant.hub import cache as caches
from attendant.hub import pull as pulling
from attendant.hub.cache import find, list_models
from attendant.hub.children import run_command
from attendant.hub.errors import ChildFailedError, HubError
from attendant.hub.pull import Making, pull
from tests.hub.loopback import NAME, Hub
from tests.support.children import started
from tests.support.serving import wait_for

FILES = {"config.json": b'{"model_type": "marian"}', "model.safetensors": b"weights"}


class Commands:
    """In place of `attendant import` and `attendant export`, which write what they are given."""

    def __init__(self) -> None:
        self.run: list[list[str]] = []
        self.before: Callable[[str], Any] = lambda _: None

    def __call__(self, arguments: list[str], _: int | None, say: Callable[[str], None]) -> None:
        self.run.append(arguments)
        out = Path(arguments[arguments.index("--out") + 1])
        if arguments[0] == "export":
            (out / "fp32").mkdir(parents=True)
            (out / "fp32" / "weights.bin").write_bytes((Path(arguments[1]) / "weights").read_bytes())
            self.before("export")
            (out / "manifest.json").write_text("{}")
        else:
            out.mkdir()
            self.before("import")
            (out / "weights").write_bytes((Path(arguments[1]) / "model.safetensors").read_bytes())
        if arguments[0] == "import":
            say("  next: attendant export")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    commands = Commands()
    monkeypatch.setattr(pulling, "run_command", commands)
    return commands


@pytest.fixture(autouse=True)
def listed(hub: Hub) -> str:
    """The first commit."""
    return hub.commit(dict(FILES))


def weights(directory: Path) -> bytes:
    return (directory / "fp32" / "weights.bin").read_bytes()


def test_a_bundle_is_kept_under_its_commit_and_nothing_else_stays(
    hub: Hub, listed: str, commands: Commands, tmp_path: Path
) -> None:
    directory = pull(tmp_path, NAME)
    assert directory == tmp_path / "acme--tiny" / listed == find(tmp_path, NAME) == find(tmp_path, NAME, listed)
    kept = {path.name for path in directory.parent.iterdir()}
    assert kept == {listed, f"{listed}.json", "revisions.json", "lock"}
    assert [arguments[0] for arguments in commands.run] == ["import", "export"]
    assert commands.run[1][-3:] == ["--name", "tiny", "--force"]


def test_what_is_there_is_asked_for_but_not_made_again_and_if_missing_asks_nobody(
    hub: Hub, commands: Commands, tmp_path: Path
) -> None:
    pull(tmp_path, NAME)
    asked = len(hub.asked)
    pull(tmp_path, NAME)
    assert (len(hub.asked), len(commands.run)) == (asked + 1, 2)
    pull(tmp_path, NAME, if_missing=True)
    assert (len(hub.asked), len(commands.run)) == (asked + 1, 2)
    pull(tmp_path, NAME, force=True)
    assert len(commands.run) == 4


def test_a_new_commit_is_made_beside_the_old_one(hub: Hub, listed: str, commands: Commands, tmp_path: Path) -> None:
    old = pull(tmp_path, NAME)
    hub.commit({**FILES, "model.safetensors": b"better"})
    assert find(tmp_path, NAME) == old  # until it is asked for
    new = pull(tmp_path, NAME)
    assert (weights(old), weights(new)) == (b"weights", b"better")
    assert (find(tmp_path, NAME), find(tmp_path, NAME, listed)) == (new, old)


@pytest.mark.parametrize("where", ["import", "export"])
def test_a_crash_leaves_nothing_that_is_used_and_the_next_start_downloads_nothing_again(
    where: str, hub: Hub, commands: Commands, tmp_path: Path
) -> None:
    def crash(command: str) -> None:
        if command == where:
            raise HubError("killed")

    commands.before = crash
    with pytest.raises(HubError, match="killed"):
        pull(tmp_path, NAME)
    assert find(tmp_path, NAME) is None
    assert [model.whole for model in list_models(tmp_path)] == [False]
    commands.before = lambda _: None
    downloaded = len(hub.contents())
    # What export leaves behind if it is killed is removed by its --force; here it is a stand-in.
    for left in tmp_path.glob("*/*.partial/bundle"):
        subprocess.run(["rm", "-r", left], check=True)
    assert weights(pull(tmp_path, NAME)) == b"weights"
    assert len(hub.contents()) == downloaded
    assert [model.whole for model in list_models(tmp_path)] == [True]


def test_two_at_once_make_it_once(hub: Hub, commands: Commands, tmp_path: Path) -> None:
    begun, go_on, said = threading.Event(), threading.Event(), list[str]()
    commands.before = lambda _: (begun.set(), go_on.wait(20))
    found: list[Path] = []
    first = threading.Thread(target=lambda: found.append(pull(tmp_path, NAME)))
    first.start()
    assert begun.wait(20)
    second = threading.Thread(target=lambda: found.append(pull(tmp_path, NAME, if_missing=True, say=said.append)))
    second.start()
    wait_for(lambda: said)
    go_on.set()
    first.join(20)
    second.join(20)
    assert said == [f"another process makes {NAME}; waiting for its end."]
    assert len(commands.run) == 2
    assert len(set(found)) == 1


def test_what_a_bundle_is_made_with_is_passed_on_and_another_wish_makes_another(
    hub: Hub, commands: Commands, tmp_path: Path
) -> None:
    pull(tmp_path, NAME, making=Making(target_language="fra"))
    assert commands.run[0][-2:] == ["--target-language", "fra"]
    pull(tmp_path, NAME, making=Making(target_language="fra"))
    pull(tmp_path, NAME)  # takes what is there
    assert len(commands.run) == 2
    pull(tmp_path, NAME, making=Making(target_language="deu"))
    assert len(commands.run) == 4


def test_without_the_train_extra_the_sentence_says_what_to_install_before_anything_is_downloaded(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "NEEDED", ("json", "no_torch"))
    with pytest.raises(HubError, match=r"needs no_torch; run: pip install 'attendant-transformer\[train\]'"):
        pull(tmp_path, NAME)
    assert hub.contents() == []


def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HubError, match=r"the cache .*file cannot be written: .*; see --cache-dir"):
        pull(tmp_path / "file", NAME)


def test_the_command_lists_pulls_and_removes(
    hub: Hub, listed: str, commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = ["--cache-dir", str(tmp_path)]
    assert main(["models", *cache]) == 0
    assert f"there is no model in {tmp_path}" in capsys.readouterr().out
    assert main(["models", "pull", NAME, *cache]) == 0
    printed = capsys.readouterr().out
    assert f"{NAME} is ready" in printed
    assert "next:" not in printed
    hub.commit({**FILES, "model.safetensors": b"better"}, "v2")
    assert main(["models", "pull", NAME, "--revision", "v2", *cache]) == 0
    capsys.readouterr()
    assert main(["models", "--json", *cache]) == 0
    held = {tuple(model["revisions"]): model for model in json.loads(capsys.readouterr().out)}
    assert held.keys() == {("main",), ("v2",)}
    assert held["main",]["commit"] == listed
    assert main(["models", "remove", NAME, "--revision", "v2", *cache]) == 0
    assert (find(tmp_path, NAME, "v2"), find(tmp_path, NAME)) == (None, tmp_path / "acme--tiny" / listed)
    assert main(["models", "remove", NAME, *cache]) == 0
    assert list(tmp_path.iterdir()) == []
    assert main(["models", "remove", NAME, *cache]) == 1
    assert f"{NAME} is not in the cache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pull"], "attendant models pull takes a NAME"),
        (["list", NAME], "attendant models list takes no name"),
        (["remove", NAME, "--force"], "--force is for attendant models pull"),
        (["pull", "t5"], "'t5' is no name of a model on Hugging Face"),
        (["pull", NAME, "--revision", "a b"], "--revision takes a branch, a tag or a commit"),
    ],
)
def test_bad_usage_is_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_model_that_is_being_made_is_not_removed(tmp_path: Path, hub: Hub, commands: Commands) -> None:
    pull(tmp_path, NAME)
    with caches.locked(tmp_path / "acme--tiny", None), pytest.raises(HubError, match="in use by another process"):
        caches.remove(tmp_path, NAME)
    assert find(tmp_path, NAME) is not None


def test_the_cache_is_the_setting_else_xdg_s_else_the_home_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert caches.cache_directory(None, {}) == tmp_path / ".cache" / "attendant"
    assert caches.cache_directory(None, {"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "attendant"
    assert caches.cache_directory(None, {"XDG_CACHE_HOME": "/x"}) == Path("/x/attendant")
    assert caches.cache_directory(None, {"XDG_CACHE_HOME": "/x", "ATTENDANT_CACHE_DIR": "/y"}) == Path("/y")
    assert caches.cache_directory(Path("/z"), {"ATTENDANT_CACHE_DIR": "/y"}) == Path("/z")


def test_a_command_s_lines_are_passed_on_and_its_failure_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    run_command(["--version"], None, lines.append)
    assert lines[0].startswith("attendant ")
    with pytest.raises(ChildFailedError):
        run_command(["info", "nowhere"], None, lines.append)
    assert capfd.readouterr().err.count("nowhere") == 1


def test_a_signal_that_ends_the_process_ends_the_command_too(tmp_path: Path) -> None:
    code = (
        "import sys; from attendant.hub.children import run_command; from attendant.hub.errors import HubError\n"
        "try: run_command(['generate'], None, print)\n"
        "except HubError as error: sys.exit(error.exit_code)"
    )
    options = {"stdin": subprocess.PIPE, "env": {**os.environ, "PYTHONUNBUFFERED": "1"}, "stdout": subprocess.PIPE}
    with started([sys.executable, "-c", code], **options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("cat\n" * 2000)
        process.stdin.flush()
        assert process.stdout.readline()  # the command runs, and waits for more
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
