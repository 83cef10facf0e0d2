"""The page's controls in Chromium: what is typed and focused stays, and a late answer is not taken for a newer one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browsing import MISSING, Page, driver, explained, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
RIGHT = "\ue014"
# Answers to requests whose body has a text come late: as many as there are in `late`.
LATE = """
const wanted = arguments[0]; window.late = arguments[1]; const send = window.fetch;
window.fetch = async (path, options) => {
  const answer = await send(path, options);
  if (options?.body?.includes(wanted) && window.late-- > 0) await new Promise((run) => setTimeout(run, 700));
  return answer;
};
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as process:
        yield process.port


@pytest.fixture
def page(driver: Any, port: int) -> Iterator[Page]:
    found = Page(driver, port)
    found.log()
    yield found
    assert found.log() == []


def ready(page: Page, **state: Any) -> None:
    page.open(**state)
    page.until(lambda: page.all("#examples button"))  # the model is known, and the page is not drawn anew for it


def test_what_was_typed_stays_whatever_else_is_chosen(page: Page) -> None:
    ready(page)
    page.one("#source").send_keys("hello")
    page.click("input[value=beam]")
    page.click("#theme")
    page.click("#tab-model")
    assert page.one("#source").get_property("value") == "hello"


def test_skipping_to_the_output_leaves_it_there(page: Page) -> None:
    ready(page, source="facade", mode="beam", tab="alignment")
    explained(page)
    before = page.driver.current_url
    page.click(".skip")
    assert page.run("return document.activeElement.id") == "output"
    assert page.driver.current_url == before
    assert page.texts("#result .token")[:2] == ["F", "AH0"]


def test_the_way_of_searching_is_chosen_with_arrow_keys_alone(page: Page) -> None:
    ready(page, source="facade")
    explained(page)
    page.one("input[value=greedy]").send_keys(RIGHT)
    page.until(lambda: page.run("return document.activeElement.value") == "beam")
    page.driver.switch_to.active_element.send_keys(RIGHT)
    page.until(lambda: "mode=sample" in page.driver.current_url)
    page.until(lambda: page.run("return document.activeElement.value") == "sample")


def test_a_hypothesis_that_is_chosen_keeps_the_focus(page: Page) -> None:
    ready(page, source="facade", mode="beam", count=3)
    explained(page)
    page.press(".hypothesis:nth-child(2)", "\n")
    page.until(lambda: page.all(".hypothesis.chosen:nth-child(2)"))
    assert page.run("return document.activeElement.matches('.hypothesis.chosen')")


def test_a_token_that_is_taken_passes_the_focus_on(page: Page) -> None:
    ready(page, source="tea")
    page.until(lambda: page.text(".bar .name") == "T")
    page.press(".bar", "\n")
    page.until(lambda: page.text(".bar .name") == "IY1")
    page.until(lambda: page.run("return document.activeElement.closest('.bars') !== null"))


def test_the_seed_of_samples_is_shown_and_another_one_samples_anew(page: Page) -> None:
    ready(page, source="internationalization", mode="sample", temperature=3, samples=4)
    page.until(lambda: len(page.all(".hypothesis")) == 4)
    seed = page.one("input[name=seed]").get_property("value")
    assert f"seed={seed}" in page.driver.current_url
    before = page.texts(".hypothesis .words")
    page.run("const x = document.querySelector('input[name=seed]'); x.value = 7; x.dispatchEvent(new Event('change'))")
    page.until(lambda: len(page.all(".hypothesis")) == 4 and page.texts(".hypothesis .words") != before)
    assert "seed=7" in page.driver.current_url


def test_a_tree_that_comes_late_is_not_shown_under_another_output(page: Page) -> None:
    ready(page, source="facade", mode="beam")
    explained(page)
    page.run(LATE, '"attention":[]', 1)
    page.click("#tab-beam")
    page.type("tea")
    page.until(lambda: page.texts(".tree .node.best text")[:2] == ["T", "IY1"])
    page.until(lambda: page.run("return window.late") < 0)
    assert page.texts(".tree .node.best text")[:2] == ["T", "IY1"]


def test_an_explanation_that_comes_late_is_not_shown_as_another_hypothesis(page: Page) -> None:
    ready(page, source="facade", mode="beam", count=3)
    explained(page)
    first, second = page.texts(".hypothesis .words")[:2]
    page.run(LATE, '"target_tokens"', 1)
    page.click(".hypothesis:nth-child(2)")
    page.click(".hypothesis:nth-child(1)")
    page.until(lambda: page.all(".hypothesis.chosen:nth-child(1)"))
    page.driver.execute_async_script("setTimeout(arguments[0], 1000)")  # until the late one is there
    assert " ".join(page.texts("#result .token:not(.mark)")) == first != second


def test_the_curl_command_asks_for_the_alignment_that_is_shown(page: Page) -> None:
    ready(page, source="facade", tab="alignment", align="mutual")
    explained(page)
    page.click("#curl")
    assert '"alignment_method":"mutual"' in page.texts("dialog pre")[1]
