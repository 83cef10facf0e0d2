"""Screenshots of the page into docs/screenshots, with Chromium, from a service that is started for it.

Chinese needs a font that has it (Debian: fonts-wqy-microhei, or fonts-noto-cjk).
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from bench.http.servers import ROOT, serving

DESKTOP, PHONE = 1180, 390  # pixels across
LARGEST = 200_000  # bytes of a file
HEAD = {"source": "facade", "kind": "cross", "layer": 0, "head": 1, "step": 4}
OFF = {"source": "facade", "off": ["head cross 0 1", "layer encoder 1"], "step": 4}
BEAM = {"source": "facade", "mode": "beam", "count": 4}

# name: width, dark, what must be there, the state of the page, and where to point
SHOTS: dict[str, tuple[int, bool, str, dict[str, Any], str | None]] = {
    "map": (DESKTOP, False, ".diagram .head-map", {"source": "facade", "tab": "map"}, None),
    "head": (DESKTOP, False, ".matrix", {**HEAD, "tab": "head"}, None),
    "what-if": (DESKTOP, False, ".switches", {**OFF, "tab": "whatif"}, None),
    "embeddings": (DESKTOP, False, ".plane", {"source": "facade", "tab": "embeddings"}, None),
    "next-token": (DESKTOP, False, ".cut", {"source": "facade", "tab": "next"}, None),
    "attention": (DESKTOP, False, "canvas.map", {"source": "attendant", "tab": "attention"}, ".side:last-child .token"),
    "attention-dark": (DESKTOP, True, "canvas.map", {"source": "attendant", "tab": "attention"}, "canvas.map"),
    "alignment": (DESKTOP, False, ".alignment", {"source": "attendant", "tab": "alignment"}, None),
    "beam": (DESKTOP, False, ".tree", {**BEAM, "tab": "beam"}, None),
    "beam-dark": (DESKTOP, True, ".tree", {**BEAM, "tab": "beam"}, None),
    "compare": (DESKTOP, False, ".pair canvas", {"source": "tear", "source2": "tier", "tab": "compare"}, None),
    "model": (DESKTOP, False, ".tile", {"source": "facade", "tab": "model"}, None),
    "chinese": (DESKTOP, False, ".cut", {"source": "facade", "tab": "next", "lang": "zh"}, None),
    "phone": (PHONE, False, ".cut", {"source": "facade", "tab": "next"}, None),
    "phone-dark": (PHONE, True, "canvas.map", {"source": "facade", "tab": "attention"}, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    parser.add_argument("--only", choices=SHOTS, action="append")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    driver = start()
    try:
        with serving(["-m", "attendant", "serve", "--log-level", "warning"]) as server:
            for name in arguments.only or SHOTS:
                shoot(driver, server.port, arguments.out / f"{name}.png", *SHOTS[name])
    finally:
        driver.quit()


def start() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--lang=en"):
        options.add_argument(flag)
    options.add_argument("--hide-scrollbars")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def shoot(
    driver: Any, port: int, path: Path, width: int, dark: bool, wanted: str, state: dict[str, Any], point: str | None
) -> None:
    """The whole page, as high as it is."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    resize(driver, width, 900)
    driver.get("about:blank")
    parts = {key: each if isinstance(each, str) else json.dumps(each) for key, each in state.items()}
    driver.get(f"http://127.0.0.1:{port}/#{urlencode(parts)}")
    script = "return document.querySelector(arguments[0]) && document.querySelector('#result .token.mark')"
    WebDriverWait(driver, 30).until(lambda _: driver.execute_script(script, wanted))
    time.sleep(5 if wanted == ".tile" else 0.5)  # transitions, and the first looks at the metrics
    resize(driver, width, driver.execute_script("return document.body.scrollHeight"))
    if point:
        element = driver.find_element("css selector", point)
        webdriver.ActionChains(driver).move_to_element(element).perform()
    time.sleep(0.3)
    driver.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > LARGEST:
        raise SystemExit(f"{path} has {size:,} bytes; at most {LARGEST:,} are to be committed.")


def resize(driver: Any, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


if __name__ == "__main__":
    main()
