"""Places that repeat the version have the one of attendant/common/version.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attendant.common.version import DISTRIBUTION, VERSION, install_command

ROOT = Path(__file__).parents[3]
NUMBER = r"(\d+\.\d+\.\d+)"
IMAGE = rf"\battendant(?:-with-bundle)?:{NUMBER}"

# (file, what the version stands in, how often)
COPIES = [
    ("Makefile", IMAGE, 1),
    ("docker-compose.yml", IMAGE, 3),
    ("deploy/Dockerfile", rf'image\.version="{NUMBER}"', 1),
    ("deploy/kubernetes/base/deployment.yaml", IMAGE, 1),
    ("deploy/kubernetes/overlays/hpa/kustomization.yaml", rf"{IMAGE}|newTag: {NUMBER}", 2),
    ("docs/deploy.md", IMAGE, 9),
    ("docs/api.md", rf'"version":"{NUMBER}"', 1),
]


def versions(text: str, form: str) -> list[str]:
    return ["".join(found.groups(default="")) for found in re.finditer(form, text)]


@pytest.mark.parametrize(("file", "form", "count"), COPIES, ids=[file for file, _, _ in COPIES])
def test_a_file_that_repeats_the_version_has_this_one(file: str, form: str, count: int) -> None:
    assert versions((ROOT / file).read_text(encoding="utf-8"), form) == [VERSION] * count


def test_no_other_file_of_the_deployment_names_a_version_of_the_image() -> None:
    known = {ROOT / file for file, _, _ in COPIES}
    others = [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path not in known]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in others if path.suffix != ".pyc"}
    assert [str(path) for path, text in texts.items() if versions(text, IMAGE)] == []


def test_the_changelog_begins_with_it() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[?(\d\S*?)\]? - \d{4}-\d\d-\d\d$", page, re.MULTILINE)[0] == VERSION


def test_an_extra_is_installed_by_the_name_that_pip_knows() -> None:
    assert install_command("train") == f"pip install '{DISTRIBUTION}[train]'"
