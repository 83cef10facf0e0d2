"""The page's controls in Chromium: what is typed and focused stays, and a late answer is not taken for a newer one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browsing import MISSING, Page, driver, explained, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
RIGHT, ALL = "\ue014", "\ue009a\ue000"  # the second is Control and A
# Answers to requests whose body has a text come late: as many as there are in `late`.
LATE = """
const wanted = arguments[0]; window.late = arguments[1]; const send = window.fetch;
window.fetch = async (path, options) => {
  const answer = await send(path, options);
  if (options?.body?.includes(wanted) && window.late-- > 0) await new Promise((run) => setTimeout(run, 700));
  return answer;
};
"""
# Answers to requests at a path are a refusal, as long as there are any in `refusals`.
REFUSED = """
const wanted = arguments[0]; window.refusals = 1; const send = window.fetch;
window.fetch = async (path, options) => {
  if (path !== wanted || window.refusals-- <= 0) return send(path, options);
  return new Response(JSON.stringify({ error: { message: "Not now." } }), { status: 422 });
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
    page.until(lambda: page.one("#source").get_property("value") == page.texts("#examples button")[0])  # a first visit
    page.one("#source").clear()
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
    ready(page, source="tea", tab="next", walk=[])
    page.until(lambda: page.text(".bar .name") == "T")
    page.press(".bar", "\n")
    page.until(lambda: page.text(".bar .name") == "IY1")
    page.until(lambda: page.run("return document.activeElement.closest('.bars') !== null"))


def test_the_seed_of_samples_is_shown_and_another_one_samples_anew(page: Page) -> None:
    ready(page, source="internationalization", mode="sample", temperature=3, samples=4)
    page.until(lambda: len(page.all(".hypothesis")) == 4)
    seed = page.one("input[name=seed]").get_property("value")
    page.until(lambda: f"seed={seed}" in page.driver.current_url)
    before = page.texts(".hypothesis .words")
    page.run("const x = document.querySelector('input[name=seed]'); x.value = 7; x.dispatchEvent(new Event('change'))")
    page.until(lambda: len(page.all(".hypothesis")) == 4 and page.texts(".hypothesis .words") != before)
    page.until(lambda: "seed=7" in page.driver.current_url)


def test_a_tree_that_comes_late_is_not_shown_under_another_output(page: Page) -> None:
    ready(page, source="facade", mode="beam")
    explained(page)
    page.run(LATE, '"attention":[]', 1)
    page.click("#tab-beam")
    page.type("tea")
    page.until(lambda: page.texts(".tree .node.best text:not(.chance)")[:2] == ["T", "IY1"])
    page.until(lambda: page.run("return window.late") < 0)
    assert page.texts(".tree .node.best text:not(.chance)")[:2] == ["T", "IY1"]


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


def test_enter_in_an_option_asks_with_it(page: Page) -> None:
    ready(page, source="facade", mode="beam")
    explained(page)
    page.press("input[name=beam]", ALL, "2", "\n")
    page.until(lambda: len(page.all(".hypothesis")) == 2)
    explained(page)
    assert not page.one("#stop").is_displayed()


def test_a_run_is_stopped_and_asked_for_again(page: Page) -> None:
    ready(page)
    page.run(LATE, '"stream":true', 1)
    page.type("tea")
    page.click("#stop")
    assert not page.one("#stop").is_displayed()
    assert page.one("#output").get_attribute("aria-busy") == "false"
    page.click("#go")
    explained(page)
    assert page.texts("#result .token")[:2] == ["T", "IY1"]
    assert page.text("#spoken") == "T IY1"


def test_an_option_that_is_emptied_is_as_by_default(page: Page) -> None:
    ready(page, mode="beam", beam=7)
    page.press("input[name=beam]", ALL, "\ue003", "\t")  # backspace
    page.until(lambda: page.one("input[name=beam]").get_property("value") == "4")
    page.until(lambda: "beam=7" not in page.driver.current_url)


def test_the_caption_of_the_search_chooses_nothing(page: Page) -> None:
    ready(page, mode="beam")
    page.click("#mode-name")
    assert page.one("input[value=beam]").is_selected()


def test_back_shows_the_options_that_were_chosen_then(page: Page) -> None:
    ready(page, source="facade", mode="beam", beam=3)
    explained(page)
    page.type("tea")
    explained(page)
    page.press("input[name=beam]", ALL, "2", "\t")
    page.until(lambda: "beam=2" in page.driver.current_url)
    page.driver.back()
    page.until(lambda: page.one("input[name=beam]").get_property("value") == "3")
    page.until(lambda: page.texts("#result .token")[:2] == ["F", "AH0"])
    page.until(lambda: len(page.all(".hypothesis")) == 3)


def test_what_streams_stays_whatever_else_is_chosen(page: Page) -> None:
    ready(page)
    page.run(LATE, '"stream":true', 1)
    page.type("tea")
    page.click("#theme")
    page.click("#tab-model")
    page.click("#language")
    assert page.all("#result .streaming")
    explained(page)


def test_a_source_typed_to_be_compared_has_its_own_output(page: Page) -> None:
    ready(page, source="facade", mode="beam", count=3, tab="compare")
    explained(page)
    page.click(".hypothesis:nth-child(2)")
    page.until(lambda: page.all(".hypothesis.chosen:nth-child(2)"))
    page.press("#panel input[name=source]", ALL, "tea", "\t")
    page.until(lambda: page.texts("#result .token")[:2] == ["T", "IY1"])
    explained(page)
    page.until(lambda: "target=" not in page.driver.current_url)
    assert page.all(".hypothesis.chosen:nth-child(1)")


def test_a_second_click_does_not_take_a_token_twice(page: Page) -> None:
    ready(page, source="tea")
    for selector in (".bar", "#panel .actions button"):
        page.open(source="tea", tab="next", walk=[])
        page.until(lambda: page.text(".bar .name") == "T")
        page.run("const x = document.querySelector(arguments[0]); x.click(); x.click()", selector)
        page.until(lambda: page.text(".bar .name") == "IY1")
        assert page.texts(".crumb") == ["start", "T"]


def test_after_a_next_token_that_is_refused_one_goes_back(driver: Any, port: int) -> None:
    page = Page(driver, port)
    ready(page, source="tea", tab="next", walk=[])
    page.until(lambda: page.text(".bar .name") == "T")
    page.run(REFUSED, "/v1/next-token")
    page.click(".bar")
    page.until(lambda: page.text(".bars .error") == "Not now.")
    assert page.texts(".crumb") == ["start", "T"]
    page.click("#panel .actions button:nth-child(3)")
    page.until(lambda: page.text(".bar .name") == "T")


def test_an_address_that_cannot_be_written_changes_nothing_else(page: Page) -> None:
    ready(page, source="facade", tab="next", walk=["F", "AH0"])
    page.until(lambda: page.all(".cut"))
    few = len(page.all(".bar:not(.out)"))
    page.run("history.replaceState = history.pushState = () => { throw new Error('too often') }")
    page.run("const s = document.querySelector('input[name=p]'); s.value = 1; s.dispatchEvent(new Event('input'))")
    assert len(page.all(".bar:not(.out)")) > few
    page.click("#tab-model")
    page.until(lambda: page.all(".tile"))


def test_a_link_to_a_model_and_a_language_that_are_gone_is_answered(page: Page) -> None:
    ready(page, source="tea", model="gone", to="xx", mode="constructor", tab="toString")
    explained(page)
    assert "gone, xx" in page.text("#notice")
    page.until(lambda: "gone" not in page.driver.current_url)


def test_a_tree_is_moved_through_as_far_as_it_is_shown(page: Page) -> None:
    ready(page, source="facade", mode="beam", tab="beam", step=1)
    page.until(lambda: page.all(".tree .node"))
    page.run("document.querySelector('.tree .node').focus()")
    for _ in range(6):
        page.driver.switch_to.active_element.send_keys(RIGHT)
    assert page.run("return document.activeElement.dataset.step") == "1"
    assert len(page.all(".tree .node:not(.later)[tabindex='0']")) == 1


def test_a_part_that_is_drawn_anew_while_it_waits_is_drawn(page: Page) -> None:
    ready(page, source="facade")
    explained(page)
    page.run(LATE, '"attention":["cross"]', 1)
    page.click("#tab-attention")
    page.click("#theme")
    page.one("canvas.map")
    assert len(page.all("#panel > div")) == 1


def test_a_connection_that_ends_within_an_answer_is_told_in_a_sentence(page: Page) -> None:
    ready(page)
    page.run(
        "window.fetch = async () => new Response(new ReadableStream({ start: (x) => x.error(new TypeError('lost')) }))"
    )
    assert page.module("api.js", "m.request('/v1/info').catch((e) => e.message)") == (
        "The connection ended before the answer was complete."
    )


def test_the_attention_that_is_asked_for_is_as_much_as_is_answered(page: Page) -> None:
    ready(page, source="tea")
    explained(page)
    code = (
        "[1e6, 500, 100].map((most) => { m.session.info = { bundle: { sizes: { heads: 4, encoder_layers: 4,"
        " decoder_layers: 2 } }, limits: { max_explain_values: most } }; m.session.answer = { usage: { source_tokens:"
        " 9 }, outputs: [{ hypotheses: [{ tokens: ['T', 'IY1', 'T', 'IY1', 'T', 'IY1', 'T', 'IY1', 'T'] }] }] };"
        " return m.mapWanted(); })"
    )
    assert page.module("generate.js", code) == [
        {"attention": ["cross"]},
        {"attention": ["cross"], "layers": [0]},
        {"attention": ["cross"], "layers": [0], "average": "heads"},
    ]


def test_the_traffic_counts_every_dialect(page: Page) -> None:
    ready(page)
    text = (
        r'attendant_request_seconds_count{endpoint="/v2/models/{name}/infer",status="200"} 2\n'
        r'attendant_request_seconds_count{endpoint="/v1/generate",status="200"} 3\n'
        r'attendant_request_seconds_count{endpoint="/metrics",status="200"} 5\n'
    )
    assert page.module("model.js", f"m.read('{text}')") == {"attendant_request_seconds_count": 5}
