"""The page's form for what must and must not come and for whole texts, in Chromium, with a glossary of the model's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.http.page.bundles import byte_bundle
from tests.support.browsing import MISSING, Page, driver, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    bundle = byte_bundle(tmp_path_factory.mktemp("bytes"))
    glossaries = bundle.with_name(f"{bundle.name}.glossaries")
    glossaries.mkdir()
    (glossaries / "office.tsv").write_text("hello\tworld\nmorning\thello\n", encoding="utf-8")
    with serving("--bundle", str(bundle)) as process:
        yield process.port


@pytest.fixture
def page(driver: Any, port: int) -> Iterator[Page]:
    found = Page(driver, port)
    found.log()
    yield found
    assert found.log() == []


def choose(page: Page, field: str, value: str) -> None:
    """Give the form's field with this label a value, as a person who then leaves it does."""
    script = (
        "const all = [...document.querySelectorAll('#demands .field')];"
        "const each = all.find((x) => x.textContent.startsWith(arguments[0]))?.querySelector('select, textarea');"
        "if (!each) return false; each.value = arguments[1];"
        "each.dispatchEvent(new Event('change', { bubbles: true })); return true"
    )
    page.until(lambda: page.run(script, field, value))


def test_a_phrase_that_must_come_is_searched_with_a_beam_and_comes(page: Page) -> None:
    page.open(source="hello", max_length=24)
    choose(page, "must come", "hello = world | worlds")
    page.until(lambda: page.texts(".terms-met .term.met") == ["hello → world ✓"])
    assert page.one("input[value=beam]").is_selected()


def test_a_glossary_of_the_models_is_chosen_by_its_name(page: Page) -> None:
    page.open(source="good morning", max_length=24)
    choose(page, "glossary", "office")
    page.until(lambda: page.texts(".terms-met .term.met") == ["morning → hello ✓"])
    assert "office (2)" in page.texts("#demands option")


def test_an_answer_is_one_of_the_choices(page: Page) -> None:
    page.open(source="hello")
    choose(page, "one of these answers", "hello\nworld")
    page.until(lambda: page.text("#result .tokens").startswith(("hello", "world")))
    assert page.one("textarea[name=terms]").get_property("disabled")


def test_a_text_is_split_and_each_part_can_be_chosen(page: Page) -> None:
    page.open(source="hello\n\nworld", max_length=8)
    choose(page, "split into", "lines")
    page.until(lambda: len(page.all("#result .segment")) == 2)
    page.run("document.querySelectorAll('#result .segment')[1].click()")
    page.until(lambda: "Part 2 of 2" in page.text("#result"))
