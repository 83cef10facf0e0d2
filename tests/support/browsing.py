"""Chromium at the page of a service, for tests that use it as a person would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.processes import Process

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER and find_spec("selenium") else "chromium, chromedriver or selenium is not installed"
PATIENCE = 30.0  # seconds, for what must come


class Page:
    """A browser at the page of a service."""

    def __init__(self, driver: Any, port: int) -> None:
        self.driver, self.port = driver, port

    def open(self, **state: Any) -> None:
        """At the link of a state."""
        parts = {key: each if isinstance(each, str) else json.dumps(each) for key, each in state.items()}
        self.driver.get("about:blank")
        self.driver.get(f"http://127.0.0.1:{self.port}/#{urlencode(parts)}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.until(lambda: next(iter(self.all(selector)), None))

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((x) => x.textContent)", selector))

    def until(self, condition: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import ElementNotInteractableException, StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        drawn_anew = [ElementNotInteractableException, StaleElementReferenceException]
        wait = WebDriverWait(self.driver, PATIENCE, 0.05, drawn_anew)
        return wait.until(lambda _: condition())

    def click(self, selector: str) -> None:
        self.one(selector)
        self.run("document.querySelector(arguments[0]).click()", selector)

    def press(self, selector: str, *keys: str) -> None:
        """Keys for an element, which the page may draw anew at any moment."""

        def pressed() -> bool:
            self.one(selector).send_keys(*keys)
            return True

        self.until(pressed)

    def type(self, text: str) -> None:
        """At once, in place of what is there: a first visit's example may come at any moment."""
        source = self.one("#source")
        self.run("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", source, text)
        source.send_keys("\n")

    def module(self, name: str, code: str) -> Any:
        """What an expression of a module of the page gives."""
        return self.driver.execute_async_script(
            f"const done = arguments[0]; import('/page/{name}').then((m) => done({code}), (e) => done(String(e)))"
        )

    def log(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> set[str]:
        """Addresses that were asked for since the last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if not url.startswith(("data:", "about:", "blob:"))}


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--lang=en")
    for flag in (*flags, "--window-size=1200,1000", "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    found.set_script_timeout(PATIENCE)
    yield found
    found.quit()


@contextmanager
def serving(*flags: str) -> Iterator[Process]:
    process = Process(None, *flags)
    try:
        yield process
    finally:
        process.stop()


def explained(page: Page) -> None:
    """Wait until the output has its end token, which only an explanation shows."""
    page.until(lambda: page.all("#result .token.mark"))
