"""The views that look into the model, in Chromium: the map, a head, what if, embeddings; and a first visit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.browsing import MISSING, Page, driver, explained, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
OFF = ["head cross 0 1", "layer encoder 1"]
TABS = ["map", "next", "attention", "head", "alignment", "beam", "whatif", "embeddings", "compare", "model"]
BUDGET = 300_000  # bytes of the page's files


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the embedded model."""
    with serving() as process:
        yield process.port


@pytest.fixture
def page(driver: Any, port: int) -> Iterator[Page]:
    found = Page(driver, port)
    found.log()
    yield found
    assert found.log() == []


@contextmanager
def window(page: Page, width: int) -> Iterator[None]:
    """A window of that many pixels across, and 900 high."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def box(page: Page, selector: str) -> dict[str, float]:
    """Where an element is in the window."""
    return dict(page.run("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector))


def test_a_first_visit_shows_a_result_and_typing_replaces_it(page: Page) -> None:
    page.open()
    explained(page)
    page.until(lambda: page.all(".diagram .softmax, .diagram .mini-bar"))
    assert page.text("#about") != ""
    assert "source=" not in page.driver.current_url
    assert "ARPAbet" in page.text("#legend")
    source = page.one("#source")
    page.run("arguments[0].focus()", source)
    source.send_keys("tea\n")
    page.until(lambda: page.texts("#result .token")[:2] == ["T", "IY1"])


def test_the_map_has_every_layer_and_head_and_plays_step_by_step(page: Page) -> None:
    page.open(source="facade", tab="map", step=2)
    page.until(lambda: page.all(".diagram"))
    assert len(page.all(".diagram .layer")) == 6
    assert len(page.all(".diagram .head-map")) == 4 * (4 + 2 + 2)
    assert len(page.all(".diagram .stream")) == (1 + 2 * 4) + (1 + 3 * 2)
    assert len(page.all(".diagram .stack > .norm")) == 2  # pre-norm: each stack ends with one
    assert "256 → 73" in page.text(".stack:nth-child(2)")  # the linear layer
    assert page.texts(".stack:nth-child(2) .flow-token.later") == ["AH0", "S", "AA1", "D"]
    page.run("const s = document.querySelector('.stepper input'); s.value = 6; s.dispatchEvent(new Event('input'))")
    assert page.all(".flow-token.later") == []
    assert page.text(".mini-bar.chosen bdi") == "⟨end⟩"
    page.click(".stack:nth-child(2) .block:last-child .block-name")  # the softmax
    page.until(lambda: page.texts(".crumb") == ["start", "F", "AH0", "S", "AA1", "D"])


def test_a_head_shows_the_numbers_that_give_its_weights(page: Page) -> None:
    page.open(source="facade", tab="head", kind="cross", layer=0, head=1, step=4)
    page.until(lambda: len(page.all(".head-table tbody tr")) == 7)
    products, scores = (
        [float(text.replace("\u2212", "-")) for text in page.texts(f".head-table tbody td:nth-of-type({column})")]
        for column in (2, 3)
    )
    assert scores == pytest.approx([product / 8 for product in products], abs=0.011)  # d is 64
    weights = [float(text) for text in page.texts(".split > div:last-child tr.chosen td")]
    assert sum(weights) == pytest.approx(1, abs=0.04)
    assert (
        max(range(7), key=scores.__getitem__) == max(range(7), key=weights.__getitem__) == 3
    )  # AA1 looks at the second a
    page.click(".matrix tr:first-child .crumb")
    page.until(lambda: "The query of F" in page.text("#panel"))


def test_a_decoder_head_does_not_see_what_is_not_read_yet(page: Page) -> None:
    page.open(source="facade", tab="head", kind="decoder", layer=1, head=0, step=2)
    page.until(lambda: page.all(".matrix"))
    assert len(page.all(".head-table tr.masked")) == 4
    assert page.texts(".split > div:first-child tr:nth-child(1) td.masked") == ["\u2212∞"] * 5


def test_parts_that_are_switched_off_change_the_answer_beside_the_served_one(page: Page) -> None:
    page.open(source="facade", tab="whatif", off=OFF, step=4)
    page.until(lambda: page.all(".switches"))
    served, without = (text.split() for text in page.texts("#panel .pair .tokens"))
    assert served == ["F", "AH0", "S", "AA1", "D"] != without
    assert len(page.all(".toggle.off")) == 2
    page.click(".toggle.off")
    page.until(lambda: len(page.all(".toggle.off")) == 1)
    assert page.texts("#result .token")[:5] == served  # what is served is as it was
    page.click("#panel .actions button:last-child")
    page.until(lambda: len(set(page.texts("#panel .pair .tokens"))) == 1)


def test_the_switches_and_what_they_do_are_seen_together(page: Page) -> None:
    with window(page, 1200):
        page.open(source="facade", tab="whatif", off=["layer encoder 1"])
        page.until(lambda: page.all(".results .mini-bar"))
        switches, results = (box(page, each) for each in (".switches", ".results"))
        assert results["left"] >= switches["right"]
        assert not page.one(".outcome").is_displayed()


@pytest.mark.parametrize("width", [360, 390])
def test_on_a_phone_the_answer_stays_in_the_window_while_a_part_is_switched_off(page: Page, width: int) -> None:
    with window(page, width):
        page.open(source="facade", tab="whatif")
        page.click("[aria-label='encoder 2, feed-forward']")
        page.until(lambda: page.all(".outcome bdi"))
        page.run("document.querySelector('.switches').scrollIntoView()")
        assert 0 < box(page, ".outcome")["bottom"] <= 900
        assert page.text(".outcome bdi") == page.texts("#panel .pair .tokens")[1]
        heights = page.run("return [...document.querySelectorAll('.switches .toggle')].map((x) => x.clientHeight)")
        assert max(heights) < 48  # no name is broken into letters


def test_another_letter_is_answered_beside_the_text(page: Page) -> None:
    page.open(source="tear", source2="tier", tab="whatif")
    page.until(lambda: page.texts("#panel .given") == ["tear", "tier"])


def test_embeddings_have_neighbours_a_plane_and_positions_that_turn(page: Page) -> None:
    page.open(source="facade", tab="embeddings", column=0, offset=3)
    page.until(lambda: page.all(".plane"))
    assert len(page.all(".point")) == 72
    assert set(page.texts(".point.used text")) == {"F", "AH0", "S", "AA1", "D", "⟨end⟩"}
    assert page.text(".nearest > div:last-child tr:nth-child(4) .near bdi") in ("AA2", "AE1", "AO1")  # of AA1
    assert "172°" in page.text(".turn")


def test_names_in_the_plane_do_not_cover_each_other(page: Page) -> None:
    page.open(source="facade", tab="embeddings")
    page.until(lambda: page.all(".plane"))
    boxes = page.run(
        "return [...document.querySelectorAll('.point:not(.used) text')].map((x) => x.getBoundingClientRect())"
        ".map((x) => [x.left + 1, x.right - 1, x.top + 2, x.bottom - 2])"
    )
    assert len(boxes) > 60  # of 66
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
    assert not [1 for a, b in pairs if a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]]


def test_the_next_token_opens_at_the_least_certain_one(page: Page) -> None:
    page.open(source="facade", tab="next")
    page.until(lambda: page.texts(".crumb")[0:] == ["start", "F"])  # AH0 comes next, of 74 %
    assert page.text(".bar .name") == "AH0"


def test_layers_and_heads_are_counted_from_one(page: Page) -> None:
    page.open(source="facade", tab="attention")
    page.until(lambda: page.all(".small-map"))
    assert page.texts(".small-map span")[0] == "1.1"
    assert page.texts("#panel select")[1] == "12"
    assert len(page.all(".scale-step")) > 3


def test_an_error_of_the_text_is_in_the_pages_own_words(driver: Any, port: int) -> None:
    page = Page(driver, port)
    page.open(source="hello world")
    page.until(lambda: "one word at a time" in page.text("#error"))
    assert "inputs" not in page.text("#error")
    page.log()


def test_a_node_of_the_beam_has_its_probability_and_the_search_its_end(page: Page) -> None:
    page.open(source="facade", mode="beam", tab="beam")
    page.until(lambda: page.all(".tree .chance"))
    assert "search ended" in page.text(".stepper output")
    assert all(re.fullmatch(r"[\d.]+ %", text) for text in page.texts(".tree .chance"))


@pytest.mark.parametrize("width", [360, 390, 1200])
def test_no_view_is_wider_than_the_window_and_all_tabs_are_seen(page: Page, width: int) -> None:
    with window(page, width):
        page.open(source="internationalization")
        for tab in TABS:
            page.click(f"#tab-{tab}")
            page.until(lambda: page.all("#panel > div:only-child > *"))
            assert page.run("return document.documentElement.scrollWidth") <= width, tab
        edges = page.run(
            "return [...document.querySelectorAll('[role=tab]')].map((x) => x.getBoundingClientRect().right)"
        )
        assert max(edges) <= width


def test_the_page_stays_within_its_budget(page: Page) -> None:
    page.driver.get(f"http://127.0.0.1:{page.port}/")
    explained(page)
    sizes = page.run(
        "return performance.getEntriesByType('resource').filter((x) => /page/.test(x.name))"
        ".map((x) => x.decodedBodySize)"
    )
    assert 50_000 < sum(sizes) < BUDGET
