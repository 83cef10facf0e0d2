"""Commands in the documentation succeed, and those that are not run here have a reason."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import ROOT, Command, Shell, commands_of, same_numbers_aside

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "model/default/README.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMANDS = {page: commands_of(page) for page in PAGES}

# What is not run: (page, the beginning of the command, why not).
NOT_RUN = [
    ("", r"attendant .*(\b[A-Z_]{3,}\b|\.\.\.)", "a form with placeholders, not a command"),
    ("", r"attendant import ", "reads someone else's model; tests/model/importers makes such files"),
    ("README.md", r"attendant (export|serve).* runs/en-de", "needs the imported model"),
    ("", r"attendant (serve|generate --model) Helsinki-NLP/", "downloads a model; tests/hub/test_named.py"),
    ("docs/import.md", r"curl .*source_language", "needs a model with languages; tests/service/text/test_languages.py"),
    (
        "docs/operations.md",
        r"(attendant serve --models|curl .*de-en)",
        "needs those models; tests/service/models/test_models.py",
    ),
    (
        "docs/training.md",
        r"attendant (distill|train --distilled)",
        "needs two teachers; tests/model/distillation/test_distill.py",
    ),
    ("docs/training.md", r"attendant train --init-from", "needs a trained model; tests/model/training/test_initial.py"),
    ("model/default/README.md", r"attendant (train|distill|release)", "trains for hours"),
    ("docs/texts.md", r"attendant evaluate", "takes long for so weak a model; docs/tutorial.md has it"),
    ("docs/texts.md", r"attendant generate .*--glossary", "needs its file; tests/service/text/test_glossary.py"),
    ("docs/scaling.md", r"python -m bench\.", "measures for many minutes"),
    ("docs/scaling.md", r"(python -m attendant\.service\.ray|curl .*ADDRESS)", "needs Ray; make ray-check"),
]

# Less work than the pages ask for: only that the commands work is to be shown, not what the model learns. What has
# learnt so little is not the same in int8.
LESS = {
    "attendant train --preset tiny": ["--set", "steps=20", "--set", "validate_every=20"],
    "attendant export": ["--precision", "fp32"],
}


def reason_not_to_run(command: Command) -> str | None:
    for page, beginning, reason in NOT_RUN:
        if page in ("", command.page) and re.match(beginning, command.text):
            return reason
    if command.words[0] in ("curl", "node") and not shutil.which(command.words[0]):
        return f"{command.words[0]} is not installed"
    return None


def runnable(page: Path) -> list[Command]:
    return [command for command in COMMANDS[page] if reason_not_to_run(command) is None]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("docs"), LESS)
    yield shell
    shell.close()


@pytest.mark.timeout(600)  # on a machine that is busy with other work
@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_page_succeed(page: Path, shell: Shell) -> None:
    for command in runnable(page):
        try:
            printed = shell.run(command)
        except (AssertionError, SystemExit) as error:
            pytest.fail(f"{command}\n{error}")
        if command.printed is not None:
            assert same_numbers_aside(printed, command.printed), f"{command}\nprints\n{printed}"
        if command.answer is not None:
            assert json.loads(printed).keys() == command.answer.keys(), command


@pytest.mark.parametrize("line", ["attendant generate --wide cat", "curl localhost:8000/v1/generat", "bash no.sh"])
def test_a_command_that_fails_is_noticed(line: str, shell: Shell) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        shell.run(Command("page", 1, line))


def test_the_documentation_has_commands_of_every_kind_that_run() -> None:
    run = [command for page in PAGES for command in runnable(page)]
    assert len(run) >= 30
    assert sum(command.printed is not None for command in run) >= 4
    assert sum(command.answer is not None for command in run) >= 4


@pytest.mark.parametrize(("page", "beginning", "reason"), NOT_RUN)
def test_an_exclusion_is_of_a_command_that_is_there(page: str, beginning: str, reason: str) -> None:
    there = [command for commands in COMMANDS.values() for command in commands if page in ("", command.page)]
    assert any(re.match(beginning, command.text) for command in there)
