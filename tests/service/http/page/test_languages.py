"""A translation model's page in Chromium: languages by name, swapped, detected; copied, answered while typing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.http.page.bundles import LANGUAGES, RIGHT_TO_LEFT, byte_bundle
from tests.support.browsing import MISSING, Page, driver, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SENTENCE = "Das ist ein ganz gewöhnlicher Satz in deutscher Sprache."


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a model that names its languages and has learnt nothing."""
    with serving("--bundle", str(byte_bundle(tmp_path_factory.mktemp("bytes"), LANGUAGES))) as process:
        yield process.port


@pytest.fixture
def page(driver: Any, port: int) -> Iterator[Page]:
    found = Page(driver, port)
    found.log()
    yield found
    assert found.log() == []


def answered(page: Page) -> None:
    """The output is there with its explanation; it may have no end token."""
    page.until(lambda: page.module("generate.js", "m.session.explained !== null"))


def chosen(page: Page) -> list[str]:
    return list(
        page.run("return [...document.querySelectorAll('#options select')].map((x) => x.selectedOptions[0].text)")
    )


def choose(page: Page, place: int, value: str) -> None:
    page.one("#options select")
    script = "const s = document.querySelectorAll('#options select')[arguments[0]]; s.value = arguments[1]"
    page.run(f"{script}; s.dispatchEvent(new Event('change'))", place, value)


def test_languages_have_names_in_the_language_of_the_page(page: Page) -> None:
    page.open()
    page.until(lambda: len(page.all("#options select")) == 2)
    assert page.texts("#options select:first-of-type option")[:2] == ["detect", "Arabic (ar)"]
    assert chosen(page) == ["detect", "German (de)"]
    page.click("#language")
    page.until(lambda: chosen(page)[1] == "德语 (de)")


def test_languages_are_swapped_and_the_output_becomes_the_source(page: Page) -> None:
    page.open(source="hello", **{"from": "en", "to": "ar"})
    answered(page)
    output = page.run("return document.querySelector('#result .tokens').textContent").removesuffix("⟨end⟩")
    page.click(".swap")
    page.until(lambda: chosen(page) == ["Arabic (ar)", "English (en)"])
    answered(page)
    assert page.one("#source").get_property("value")[:5] == output[:5] != "hello"


def test_a_language_that_is_not_chosen_is_detected_and_said(page: Page) -> None:
    page.open(source=SENTENCE)
    answered(page)
    assert page.text(".detected").startswith("Detected: German (de), ")
    page.click("#tab-next")
    page.until(lambda: page.all(".bar"))  # explained in the language that was detected
    page.click("#curl")
    assert '"source_language":"de"' in page.texts("dialog pre")[-1]


def test_an_output_is_copied_as_it_is_written(page: Page) -> None:
    origin = {"origin": f"http://127.0.0.1:{page.port}", "permissions": ["clipboardReadWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", origin)
    page.open(source="hello", **{"from": "en"})
    answered(page)
    page.click("#copy")
    page.until(lambda: page.text("#said") == "Copied.")
    copied = page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == page.module("generate.js", "m.session.answer.outputs[0].hypotheses[0].text") != ""


def test_a_text_is_answered_while_it_is_typed_where_that_is_asked_for(page: Page) -> None:
    page.open(**{"from": "en"})
    answered(page)  # the example of a first visit
    example = page.module("state.js", "m.state.source")
    source = page.one("#source")
    source.clear()
    source.send_keys("hello")
    page.driver.execute_async_script("setTimeout(arguments[0], 600)")  # longer than the pause after a key
    assert page.module("state.js", "m.state.source") == example
    page.click("#live")
    source.send_keys(" you")
    page.until(lambda: "source=hello+you" in page.driver.current_url)
    answered(page)


def test_a_source_from_right_to_left_is_typed_and_shown_so(page: Page) -> None:
    page.open(source=RIGHT_TO_LEFT, **{"from": "ar", "to": "en"}, tab="attention")
    answered(page)
    direction = "return getComputedStyle(document.querySelector(arguments[0])).direction"
    assert page.run(direction, "#source") == "rtl"
    page.one(".side:first-child .token")
    assert page.run(direction, ".side:first-child .tokens") == "rtl"
    lefts = page.run(
        "return [...document.querySelectorAll('.side:first-child .token')].map((x) => x.getBoundingClientRect().left)"
    )
    assert lefts[0] > lefts[2]
