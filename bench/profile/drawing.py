"""How soon the page's map is drawn, as Chromium tells it, and how much the page loads.

    python -m bench.profile.drawing [--times 9]

The map of the embedded model with a text of 64 tokens. The page is opened anew each time: nothing is compiled or
kept from before. What the service computes is apart: the drawing is from its answer to the first frame.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from selenium.webdriver.support.wait import WebDriverWait

from bench.default_model.screenshots import DESKTOP, resize, start
from bench.http.servers import attendant, serving
from bench.report.goals import goal_of, goal_text
from bench.report.record import RESULTS_HERE, write_record
from bench.versus.words import EMBEDDED

TEXT = ("pneumonoultramicroscopicsilicovolcanoconiosis" * 2)[:63]  # and the end token
DRAWN = "return document.querySelector('#panel [data-drawn]')?.dataset.drawn"
ASKED = "return document.querySelector('#panel [data-drawn]').dataset.asked"
FILES = (
    "return performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
    ".filter((x) => x.name.includes('/page/') || x.entryType === 'navigation')"
    ".reduce((all, x) => all + x.decodedBodySize, 0)"
)
PATIENCE = 30.0  # seconds


def measure(times: int) -> list[dict[str, Any]]:
    """A row each for the drawing, for what the service computes, and for the files: their median and their most."""
    found: dict[str, list[float]] = {"drawing": [], "answer": [], "files": []}
    driver = start()
    try:
        with serving(attendant(EMBEDDED)) as server:
            resize(driver, DESKTOP, 900)
            for _ in range(times):
                driver.get("about:blank")
                driver.get(f"http://127.0.0.1:{server.port}/#{urlencode({'source': TEXT, 'tab': 'map'})}")
                WebDriverWait(driver, PATIENCE).until(lambda page: page.execute_script(DRAWN))
                found["drawing"].append(float(driver.execute_script(DRAWN)))
                found["answer"].append(float(driver.execute_script(ASKED)))
                found["files"].append(driver.execute_script(FILES) / 1000)
    finally:
        driver.quit()
    return [row(name, values) for name, values in found.items()]


def row(name: str, values: list[float]) -> dict[str, Any]:
    unit = "kB" if name == "files" else "ms"
    median, most = (round(value, 1) for value in (statistics.median(values), max(values)))
    goal = goal_of("drawing", name)
    return {"name": name, "unit": unit, "median": median, "most": most, "times": len(values), "goal": goal}


def main() -> None:
    parser = argparse.ArgumentParser(description="How soon the page's map of 64 tokens is drawn, and what it loads.")
    parser.add_argument("--times", type=int, default=9, help="how often the page is opened")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "drawing.json")
    options = parser.parse_args()
    rows = measure(options.times)
    write_record(options.out, "bench.profile.drawing", rows)
    for each in rows:
        print("{name}: {median} {unit} (most {most})".format(**each) + goal_text(each["goal"]))


if __name__ == "__main__":
    main()
