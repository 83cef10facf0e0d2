"""The page in Chromium, as a person uses it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attendant.service.settings import DEFAULT_BUNDLE
from tests.support.browsing import MISSING, Page, driver, explained, serving

__all__ = ["driver"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of the embedded model."""
    with serving() as process:
        yield process.port


@pytest.fixture
def page(driver: Any, port: int) -> Iterator[Page]:
    """Whatever is done with it: no error on the console, no request to elsewhere."""
    found = Page(driver, port)
    found.log()
    found.requested()
    yield found
    assert found.log() == []
    assert {url for url in found.requested() if not url.startswith(f"http://127.0.0.1:{port}/")} == set()


def test_what_is_typed_is_answered_token_by_token(page: Page) -> None:
    page.open()
    page.type("facade")
    explained(page)
    assert page.texts("#result .token") == ["F", "AH0", "S", "AA1", "D", "⟨end⟩"]
    doubts = page.run(
        "return [...document.querySelectorAll('#result .token')]"
        ".map((x) => Number(x.style.getPropertyValue('--doubt')))"
    )
    assert doubts[3] > 0.2  # AA1, which could be another vowel
    assert max(doubts[0], doubts[2], doubts[5]) < 0.1 < doubts[3]  # unlike F, S and the end
    assert "ms decode" in page.text("#result")


def test_the_first_token_is_shown_before_the_last_has_come(page: Page) -> None:
    page.open(walk=[])
    explained(page)
    page.run("window.seen = []; new MutationObserver(() => { const x = document.querySelector('.streaming'); "
             "if (x) seen.push(x.children.length); }).observe(document.querySelector('#result'), "
             "{ childList: true, subtree: true });")  # fmt: skip
    page.type("internationalization")
    explained(page)
    counts = page.run("return seen")
    assert counts == sorted(counts)
    assert len(set(counts)) > 3  # it grew as tokens came
    assert counts[-1] > 10


def test_a_beam_has_hypotheses_and_another_one_can_be_chosen(page: Page) -> None:
    page.open(source="facade", mode="beam", count=3)
    page.until(lambda: len(page.all(".hypothesis")) == 3)
    explained(page)
    second = page.texts(".hypothesis .words")[1]
    page.click(".hypothesis:nth-child(2)")
    page.until(lambda: " ".join(page.texts("#result .token:not(.mark)")) == second)
    assert "target=" in page.driver.current_url


def test_samples_are_the_same_again_at_their_link(page: Page) -> None:
    page.open(source="facade", mode="sample", temperature=2, samples=4)
    page.until(lambda: len(page.all(".hypothesis")) == 4)
    page.until(lambda: "seed=" in page.driver.current_url)
    link, samples = page.driver.current_url, page.texts(".hypothesis .words")
    page.driver.get("about:blank")
    page.driver.get(link)
    page.until(lambda: len(page.all(".hypothesis")) == 4)
    assert page.texts(".hypothesis .words") == samples


def test_one_walks_through_the_decoding_by_hand(page: Page) -> None:
    page.open(source="tea", tab="next", walk=[])
    for token in ("T", "IY1", "⟨end⟩"):
        page.until(lambda token=token: page.text(".bar .name") == token)
        page.press(".bar", "\n")
    page.until(lambda: page.all("#panel .done"))
    assert page.texts(".crumb") == ["start", "T", "IY1", "⟨end⟩"]
    page.driver.back()
    page.until(lambda: page.text(".bar .name") == "⟨end⟩")


def test_the_sliders_move_the_cut_without_a_request(page: Page) -> None:
    page.open(source="facade", tab="next", walk=["F", "AH0"])
    page.until(lambda: page.all(".cut"))
    few = len(page.all(".bar:not(.out)"))
    page.requested()
    page.run("const s = document.querySelector('input[name=p]'); s.value = 1; s.dispatchEvent(new Event('input'))")
    assert len(page.all(".bar:not(.out)")) > few
    assert page.requested() == set()


def test_temperature_in_the_browser_is_that_of_the_service(page: Page) -> None:
    page.open(source="facade", tab="next")
    page.one(".bar")
    found = page.driver.execute_async_script(
        "const done = arguments[0]; const ask = (temperature) => fetch('/v1/next-token', {method: 'POST', "
        "body: JSON.stringify({source: 'facade', prefix: 'F', top_k: 0, temperature})}).then((x) => x.json());"
        "Promise.all([import('/page/nexttoken.js'), ask(1), ask(1.7)]).then(([m, a, b]) => "
        "done([m.reheat(a.tokens, 1.7), b.tokens.map((x) => x.probability)]))"
    )
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_top_p_keeps_the_fewest_tokens_that_have_it(page: Page) -> None:
    page.open()
    assert page.module("nexttoken.js", "[0.1, 0.5, 0.500001, 0.8, 1].map((p) => m.kept([0.5, 0.3, 0.2], p))") == [
        1, 1, 2, 2, 3,
    ]  # fmt: skip


def test_pointing_at_a_token_lights_what_it_looks_at_in_text_and_map(page: Page) -> None:
    from selenium.webdriver import ActionChains

    page.open(source="attendant", tab="attention")
    explained(page)
    page.one("canvas.map")
    lit = (
        "return [...document.querySelectorAll('.side:first-child .token')]"
        ".map((x) => Number(x.style.getPropertyValue('--lit') || 0))"
    )
    before = page.run("return document.querySelector('canvas.map').toDataURL()")
    ActionChains(page.driver).move_to_element(page.all(".side:last-child .token")[0]).perform()
    page.until(lambda: sum(page.run(lit)) > 0.9)
    assert sum(page.run(lit)) == pytest.approx(1, abs=0.03)  # a row, from bytes
    assert page.run("return document.querySelector('canvas.map').toDataURL()") != before
    assert page.text("#panel .detail").startswith("AH0 → a ")


def test_pointing_at_a_cell_of_the_map_names_both_tokens(page: Page) -> None:
    from selenium.webdriver import ActionChains

    page.open(source="attendant", tab="attention")
    explained(page)
    canvas = page.one("canvas.map")
    page.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    ActionChains(page.driver).move_to_element(canvas).perform()
    page.until(lambda: " looks at " in page.text("#panel .detail"))
    assert len(page.all(".token.here")) == 2
    canvas.send_keys("")
    page.run("document.querySelector('canvas.map').focus()")
    before = page.text("#panel .detail")
    page.driver.switch_to.active_element.send_keys("\ue014")  # arrow right
    assert page.text("#panel .detail") != before


def test_every_kind_layer_and_head_has_its_map(page: Page) -> None:
    for kind, maps in (("cross", 2 * 4), ("encoder", 4 * 4), ("decoder", 2 * 4)):
        page.open(source="tea", tab="attention", kind=kind)
        page.until(lambda maps=maps: len(page.all(".small-map")) == maps)
    page.click(".small-map:nth-child(3)")
    page.until(lambda: "head=2" in page.driver.current_url)
    page.until(lambda: page.all(".small-map.chosen:nth-child(3)"))


def test_the_alignment_is_drawn_between_tokens(page: Page) -> None:
    page.open(source="tea", tab="alignment")
    page.until(lambda: page.all(".alignment .line"))
    assert page.texts(".alignment .node text") == ["t", "e", "a", "⟨end⟩", "T", "IY1", "⟨end⟩"]


def test_the_beam_is_a_tree_that_grows_step_by_step(page: Page) -> None:
    page.open(source="facade", mode="beam", beam=3, tab="beam")
    page.until(lambda: page.all(".tree .node"))
    assert page.all(".tree .pruned")
    assert page.texts(".tree .node.best text:not(.chance)")[:5] == ["F", "AH0", "S", "AA1", "D"]
    page.run("const s = document.querySelector('.stepper input'); s.value = 2; s.dispatchEvent(new Event('input'))")
    steps = page.run("return [...document.querySelectorAll('.tree .node:not(.later)')].map((x) => x.dataset.step)")
    assert set(steps) == {"1", "2"}
    page.until(lambda: "step=2" in page.driver.current_url)


def test_two_sources_are_shown_side_by_side(page: Page) -> None:
    page.open(source="tear", source2="tier", tab="compare")
    page.until(lambda: len(page.all(".pair canvas")) == 2)
    assert page.texts(".pair .given") == ["tear", "tier"]


def test_the_model_and_its_traffic_are_shown(page: Page) -> None:
    page.open(tab="model")
    page.until(lambda: len(page.all(".tile")) == 5)
    assert "int8" in page.text("#panel")
    assert "16 samples" in page.text("#panel")


def test_an_example_of_the_bundle_is_one_click(page: Page) -> None:
    page.open()
    page.click(".chip")
    explained(page)
    assert page.one("#source").get_attribute("value") == page.text("#examples button")


def test_the_page_speaks_chinese(page: Page) -> None:
    page.open(source="tea")
    explained(page)
    page.click("#language")
    page.until(lambda: page.text("#go") == "生成")
    assert page.run("return document.documentElement.lang") == "zh-CN"
    page.until(lambda: "⟨结束⟩" in page.texts("#result .token"))
    page.until(lambda: "lang=zh" in page.driver.current_url)


def test_the_theme_is_toggled(page: Page) -> None:
    page.open()
    page.one("#tab-next")
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != before


def test_the_curl_command_is_the_request(page: Page) -> None:
    page.open(source="it's", mode="beam")
    page.click("#curl")
    command = page.texts("dialog pre")[0]
    assert command.startswith(f"curl http://127.0.0.1:{page.port}/v1/generate -d '")
    assert "it'\\''s" in command
    assert '"beam_size":4' in command


def test_a_view_is_saved_as_one_html_file_and_as_a_picture(page: Page, tmp_path: Path) -> None:
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    page.open(source="tea", tab="attention")
    explained(page)
    page.one("canvas.map")
    page.click("#save-html")
    page.click("#save-png")
    html, png = tmp_path / "attendant-attention.html", tmp_path / "attendant-attention.png"
    page.until(lambda: html.exists() and png.exists() and png.stat().st_size > 0)
    assert png.read_bytes().startswith(b"\x89PNG")
    saved = html.read_text(encoding="utf-8")
    assert "IY1" in saved
    assert "<script" not in saved
    assert not re.findall(r'(?:src|href)="(?!data:)', saved)


def test_tabs_are_moved_through_with_arrow_keys(page: Page) -> None:
    page.open()
    page.until(lambda: page.all("#examples button"))  # the model is known, and the page is not drawn anew for it

    def moved() -> bool:
        if page.driver.switch_to.active_element.get_attribute("id") == "tab-attention":
            return True
        page.press("#tab-next", "\ue014")
        return False

    page.until(moved)


def test_tokens_are_moved_through_with_arrow_keys(page: Page) -> None:
    page.open(source="tea")
    explained(page)
    page.run("document.querySelector('#result .token').focus()")
    page.driver.switch_to.active_element.send_keys("\ue014")
    assert page.text("#result .detail").startswith("IY1: probability ")


def test_on_a_phone_nothing_is_wider_than_the_screen(page: Page) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for tab in ("next", "attention", "alignment", "beam", "compare", "model"):
            page.open(source="internationalization", mode="beam", count=4, tab=tab)
            explained(page)
            page.until(lambda: page.text("#panel"))
            assert page.run("return document.documentElement.scrollWidth") <= 390, tab
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


HOSTILE = "<img src=x onerror=alert(1)>"


def test_text_that_is_markup_is_shown_as_text(page: Page) -> None:
    page.open()
    side = json.dumps({"text": HOSTILE, "tokens": [{"text": HOSTILE, "start": 0, "end": len(HOSTILE)}]})
    code = f"((e) => [e.textContent, e.querySelectorAll('img').length])(m.tokenText({side}))"
    assert page.module("text.js", code) == [HOSTILE, 0]


def test_a_source_that_is_refused_has_the_service_s_sentence(driver: Any, port: int) -> None:
    page = Page(driver, port)
    page.open()
    page.type(HOSTILE)
    page.until(lambda: page.text("#error"))
    assert "<" in page.text("#error")
    assert not page.all("main img")
    page.log()  # Chromium logs the status 422


def test_bytes_of_a_character_are_shown_apart_and_code_points_counted(page: Page) -> None:
    page.open()
    tokens = [
        {"text": "😀", "start": 0, "end": 1},
        {"text": "<0xE6>", "start": 1, "end": 2},
        {"text": "<0xB0>", "start": 1, "end": 2},
        {"text": "مرحبا", "start": 3, "end": 8},
        {"text": "<end of text>", "start": None, "end": None},
    ]
    side = json.dumps({"text": "😀水 مرحبا", "tokens": tokens})
    found = page.module("text.js", f"m.pieces({side}).map((x) => x[1])")
    assert found == ["😀", "<0xE6>", "<0xB0>", " ", "مرحبا", "<end of text>"]
    assert page.module("text.js", f"m.tokenText({side}).dir") == "auto"


def test_a_map_of_500_tokens_is_drawn_with_cells_that_can_be_seen(page: Page) -> None:
    page.open()
    code = (
        "((names) => { const canvas = document.createElement('canvas'); const place = m.layout(names, names, 700);"
        "const cells = m.bitmap(500, 500, (i, j) => (i === j ? 1 : 0)); const y = place.top + place.cell * 499 + 3;"
        "m.draw(canvas, place, names, names, cells, { row: 3, column: null });"
        "const row = canvas.getContext('2d').getImageData(0, y, place.width, 1);"
        "const at = (j) => row.data[4 * (place.left + place.cell * j + 3)];"
        "return [place.cell, at(499) !== at(10)]; })"
        "(Array.from({ length: 500 }, (_, i) => `token${i}`))"
    )
    cell, is_drawn = page.module("heatmap.js", code)
    assert cell >= 6
    assert is_drawn


def test_the_key_is_typed_once_and_kept_nowhere(driver: Any) -> None:
    with serving("--api-keys", "the-key") as process:
        page = Page(driver, process.port)
        page.open()
        page.until(lambda: page.one("#key-form").is_displayed())
        assert page.text("#error") == "This service wants an API key. Type it above."
        page.press("#key", "ключ", "\n")
        page.until(lambda: "a request cannot carry" in page.text("#error"))
        page.press("#key", "wrong", "\n")
        page.until(lambda: "does not know this API key" in page.text("#error"))
        page.press("#key", "the-key", "\n")
        page.until(lambda: not page.one("#key-form").is_displayed())
        page.type("tea")
        explained(page)
        kept = page.run(
            "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
        assert "the-key" not in kept
        page.log()  # Chromium logs the status 401


def test_the_api_s_documentation_asks_for_the_key_too(driver: Any) -> None:
    with serving("--api-keys", "the-key") as process:
        page = Page(driver, process.port)
        page.open()
        page.click("a[href='/docs/index.html']")
        page.until(lambda: page.text("#reason") == "This service wants an API key.")
        page.press("#key", "wrong", "\n")
        page.until(lambda: page.text("#reason") == "The service does not know this API key.")
        page.press("#key", "the-key", "\n")
        page.until(lambda: "/v1/generate" in page.text("#swagger-ui"))
        assert not page.one("#key-form").is_displayed()
        assert [line for line in page.log() if "401" not in line] == []  # Chromium logs the status


def test_the_api_s_documentation_is_read_without_a_key_where_there_is_none(page: Page) -> None:
    page.driver.get(f"http://127.0.0.1:{page.port}/docs")
    page.until(lambda: "/v1/generate" in page.text("#swagger-ui"))
    page.click("[id$='get_healthz'] button, .opblock-get button")
    page.click(".try-out__btn")
    page.click(".execute")
    page.until(lambda: "200" in page.text(".responses-table.live-responses-table"))


def test_a_server_that_is_gone_is_told_in_a_sentence(driver: Any) -> None:
    with serving() as process:
        page = Page(driver, process.port)
        page.open(source="tea")
        explained(page)
    page.type("coffee")
    page.until(lambda: "does not answer" in page.text("#error"))
    page.log()  # Chromium logs that the connection was refused


# The model "one" is chosen, and what is known of it comes late; then "two".
LATE_INFO = """
const send = window.fetch;
window.fetch = async (path, options) => {
  if (path.endsWith("model=one")) await new Promise((run) => setTimeout(run, 700));
  return send(path, options);
};
for (const name of ["one", "two"]) {
  const choice = document.querySelector("#options select");
  choice.value = name;
  choice.dispatchEvent(new Event("change"));
}
"""


def test_of_several_models_one_is_chosen(driver: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(DEFAULT_BUNDLE, target_is_directory=True)
    with serving("--models", str(tmp_path)) as process:
        page = Page(driver, process.port)
        page.open(source="tea")
        explained(page)
        assert page.text("#model-name").startswith("one ")
        choose = "s.value = 'two'; s.dispatchEvent(new Event('change'))"
        page.run(f"const s = document.querySelector('#options select'); {choose}")
        page.until(lambda: page.text("#model-name").startswith("two "))
        explained(page)
        page.until(lambda: "model=two" in page.driver.current_url)
        page.run(LATE_INFO)
        page.until(lambda: page.text("#model-name").startswith("two "))
        page.driver.execute_async_script("setTimeout(arguments[0], 1000)")  # until the late one is there
        assert page.text("#model-name").startswith("two ")
        assert page.log() == []


def test_a_model_that_is_not_loaded_is_chosen_and_asked_all_the_same(driver: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(DEFAULT_BUNDLE, target_is_directory=True)
    with serving("--models", str(tmp_path), "--load", "lazy", "--max-loaded", "1") as process:
        page = Page(driver, process.port)
        page.open(source="tea")
        page.until(lambda: page.text("#model-name").startswith("one "))
        explained(page)
        choose = "s.value = 'two'; s.dispatchEvent(new Event('change'))"
        page.run(f"const s = document.querySelector('#options select'); {choose}")
        page.until(lambda: page.text("#model-name").startswith("two "))
        explained(page)
        page.log()  # Chromium logs the status 503


def test_greedy_is_greedy_where_the_models_own_default_is_a_beam(driver: Any, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(DEFAULT_BUNDLE, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    (bundle / "manifest.json").write_text(json.dumps(manifest | {"generation": {"beam_size": 4}}), encoding="utf-8")
    with serving("--bundle", str(bundle)) as process:
        page = Page(driver, process.port)
        page.open(source="tea")
        explained(page)
        page.click("#curl")
        page.until(lambda: '"beam_size":1' in page.text("body").replace(" ", ""))
        page.log()


def test_of_weights_that_are_too_many_the_mean_is_shown(driver: Any) -> None:
    with serving("--max-explain-values", "20") as process:
        page = Page(driver, process.port)
        page.open(source="tea", tab="attention")
        explained(page)
        page.one("#panel canvas.map")
        assert not page.all(".small-map")
        assert page.log() == []


def test_without_explanations_the_output_is_shown_and_the_reason(driver: Any) -> None:
    with serving("--explain", "false") as process:
        page = Page(driver, process.port)
        page.open(source="tea")
        page.until(lambda: "explain" in page.text("#result .detail"))
        assert page.texts("#result .token") == ["T", "IY1"]
        page.click("#tab-attention")
        page.until(lambda: "explain" in page.text("#panel .error"))
        page.log()  # Chromium logs the status 404
