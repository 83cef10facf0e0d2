"""The page in Firefox: every view is drawn, with nothing on the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.http.page.firefox import MISSING, Firefox
from tests.support.browsing import serving

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
VIEWS = {
    "map": ".diagram .head-map", "next": ".bar", "attention": "canvas.map", "head": ".head-table",
    "alignment": ".alignment .line", "beam": ".tree .node", "whatif": ".switches .toggle",
    "embeddings": ".plane .point", "compare": "form.pair", "model": ".tile",
}  # fmt: skip


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    found = Firefox(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as process:
        yield process.port


def test_every_view_is_drawn_in_firefox_and_nothing_is_wrong(firefox: Firefox, port: int) -> None:
    firefox.open(f"http://127.0.0.1:{port}/#source=facade&off=[%22head%20cross%200%201%22]")
    firefox.until("document.querySelectorAll('#result .token.mark').length > 0")
    for tab, drawn in VIEWS.items():
        firefox.run(f"document.querySelector('#tab-{tab}').click()")
        firefox.until(f"document.querySelector('#panel > div:only-child {drawn}') !== null")
        assert firefox.run("document.querySelector('#panel .error[role=alert]')") is None, tab
    assert firefox.run("[...document.querySelectorAll('#result .token')].map((x) => x.textContent).slice(0, 5)") == [
        "F", "AH0", "S", "AA1", "D",
    ]  # fmt: skip
    assert firefox.errors == []
