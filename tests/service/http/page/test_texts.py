"""The page in Chromium with texts that are hard to show: from right to left, half characters, hundreds of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.http.page.bundles import RIGHT_TO_LEFT, TOKENIZER, byte_bundle
from tests.support.browsing import MISSING, Page, driver, explained, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

CHARACTER = "水"  # no token of its own: its bytes are
LONG = " ".join(["hello", CHARACTER, "שלום"] * 45)
HELLO = TOKENIZER.pieces("hello world")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving("--bundle", str(byte_bundle(tmp_path_factory.mktemp("bytes")))) as process:
        yield process.port


@pytest.fixture
def page(driver: Any, port: int) -> Iterator[Page]:
    found = Page(driver, port)
    found.log()
    yield found
    assert found.log() == []


def test_bytes_of_a_character_are_shown_and_no_character_twice(page: Page) -> None:
    page.open(source=f"a{CHARACTER}b", target=HELLO, tab="attention")
    explained(page)
    page.one("canvas.map")
    shown = page.text(".side:first-child .tokens")
    assert "<0xE6>" in shown
    assert CHARACTER not in shown


def test_an_alignment_is_drawn_in_the_direction_of_its_text(page: Page) -> None:
    page.open(source=RIGHT_TO_LEFT, target=HELLO, tab="alignment")
    explained(page)
    page.until(lambda: page.all(".alignment .line"))
    places = page.run(
        "return [...document.querySelectorAll('.alignment .node rect')].map((x) => [Number(x.getAttribute('y')),"
        " Number(x.getAttribute('x'))])"
    )
    source = [x for y, x in places if y == places[0][0]]
    target = [x for y, x in places if y != places[0][0]]
    assert source == sorted(source, reverse=True)
    assert target == sorted(target)


def test_a_token_that_is_a_space_can_be_seen(page: Page) -> None:
    page.open()
    assert page.module("text.js", "[' ', 'a', ' b', '<0xE6>'].map((text) => m.nameOf({ text }))") == [
        "␣", "a", " b", "<0xE6>",
    ]  # fmt: skip


def test_bytes_beside_letters_from_right_to_left_keep_their_order(page: Page) -> None:
    page.open()
    assert page.module("text.js", "m.nameOf({ text: 'ש<0xD7>' })") == "ש\u2066<0xD7>\u2069"


def test_hundreds_of_tokens_stay_within_the_page(page: Page) -> None:
    for tab, drawn in (("attention", "canvas.map"), ("alignment", ".alignment .line"), ("beam", ".tree .node")):
        page.open(source=LONG, tab=tab)
        explained(page)
        page.one(drawn)
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth"), tab


def test_of_a_source_of_hundreds_of_tokens_and_a_short_target_both_beginnings_are_seen(page: Page) -> None:
    page.open(source=LONG, target=HELLO, tab="alignment")
    explained(page)
    page.one(".alignment .line")
    lefts = page.run(
        "return [...document.querySelectorAll('.alignment .node rect')].map((x) => x.getBoundingClientRect().left)"
    )
    assert len(lefts) > 480
    assert lefts[0] == pytest.approx(lefts[-len(HELLO) - 1], abs=2)  # the end token is one more


def test_bytes_that_make_no_character_are_shown_as_bytes(page: Page) -> None:
    page.open()
    side = '{ text: "a\ufffd", tokens: [{ text: "a", start: 0, end: 1 }, { text: "<0xE6>", start: 1, end: 2 }] }'
    assert page.module("text.js", f"m.pieces({side}).map((x) => x[1])") == ["a", "<0xE6>"]


def test_bytes_that_are_not_explained_yet_share_their_character(page: Page) -> None:
    page.open()
    texts = "['a', '<0xE6>', '<0xB0>', '<0xB4>', 'b', ' ', '<0x21>', '<unk>']"
    found = page.module("text.js", f"m.placed('a水b !', {texts}).map((x) => [x.start, x.end])")
    assert found == [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5]]
    shown = page.module(
        "text.js", f"m.pieces({{ text: 'a水b !', tokens: m.placed('a水b !', {texts}) }}).map((x) => x[1])"
    )
    assert shown == ["a", "<0xE6>", "<0xB0>", "<0xB4>", "b", " ", "<0x21>", "<unk>"]


def test_a_canvas_has_as_many_pixels_as_a_phone_draws(page: Page) -> None:
    page.open()
    assert page.module("heatmap.js", "m.ratioWithin(700, 700, 2)") == 2
    assert page.module("heatmap.js", "5000 * 5000 * m.ratioWithin(5000, 5000, 2) ** 2") == pytest.approx(2**24)


def test_a_source_that_is_too_long_is_refused_in_a_sentence(driver: Any, port: int) -> None:
    page = Page(driver, port)
    page.open(source=LONG * 3)
    page.until(lambda: "this model reads at most 511" in page.text("#error"))
    page.log()  # Chromium logs the status 422


def test_columns_of_a_narrow_model_are_four_different_ones(page: Page) -> None:
    page.open(source="hello", target=HELLO, tab="embeddings", column=20)  # of 16
    explained(page)
    page.until(lambda: page.all(".key.line"))
    assert page.texts(".key.line") == [f"column {n}" for n in range(12, 16)]


def test_tokens_so_far_are_shown_as_in_the_output(page: Page) -> None:
    page.open(source="hello", target=TOKENIZER.pieces(CHARACTER), tab="next", walk=TOKENIZER.pieces(CHARACTER))
    explained(page)
    page.until(lambda: page.texts(".crumb") == ["start", "<0xE6>", "<0xB0>", "<0xB4>"])
