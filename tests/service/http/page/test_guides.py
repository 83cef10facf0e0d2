"""The tutorial and the walk as the page serves them: as docs has them, and linked from every view."""

from __future__ import annotations

import re

import pytest

from attendant.service.http.page.page import DIRECTORY
from deploy.render_guides import GUIDES, rendered

GUIDE_LINK = re.compile(r"\"((?:tutorial|walk)\.html)#([\w-]+)\"")


def served(name: str) -> str:
    return (DIRECTORY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_that_of_the_docs(name: str) -> None:
    assert served(f"{name}.html") == rendered(name), "run: make guides"


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_leads_to_nothing_that_is_not_served(name: str) -> None:
    links = re.findall(r"(?:href|src)=\"([^\"]*)\"", served(f"{name}.html"))
    paths = {link.partition("#")[0] for link in links} - {"data:,"}
    assert {path for path in paths if path not in ("/", "/docs") and not (DIRECTORY / path[6:]).is_file()} == set()
    assert served(f"{name}.html").count("<a ") == served(f"{name}.html").count("</a>")


def test_every_view_leads_to_a_section_that_is_there() -> None:
    sections = GUIDE_LINK.findall(served("intro.js"))
    views = re.findall(r"^  intro_(\w+):", served("i18n.js"), re.MULTILINE)
    assert len(sections) == len(views) == 10
    assert [anchor for guide, anchor in sections if f'id="{anchor}"' not in served(guide)] == []
