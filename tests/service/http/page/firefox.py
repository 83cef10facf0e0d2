"""Firefox over WebDriver BiDi, which it speaks itself: no driver is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
MISSING = "" if FIREFOX and find_spec("websocket") else "firefox-esr or websocket-client is not installed"
PATIENCE = 60.0  # seconds
QUIET = (
    'user_pref("app.update.enabled", false);',
    'user_pref("datareporting.policy.dataSubmissionEnabled", false);',
    'user_pref("network.captive-portal-service.enabled", false);',
    'user_pref("network.connectivity-service.enabled", false);',
    'user_pref("browser.safebrowsing.downloads.remote.enabled", false);',
    'user_pref("services.settings.server", "http://127.0.0.1:1");',
)


class Firefox:
    """A headless Firefox with a fresh profile, at one page."""

    def __init__(self, profile: Path) -> None:
        from websocket import create_connection

        (profile / "user.js").write_text("\n".join(QUIET), encoding="utf-8")
        assert FIREFOX is not None
        self._log = (profile / "log").open("w+", encoding="utf-8")
        command = [FIREFOX, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._count, self.errors = 0, list[str]()
        try:
            address = f"{self._address(profile / 'log')}/session"
            self._socket = create_connection(address, timeout=PATIENCE, suppress_origin=True)  # Firefox refuses others
        except BaseException:
            self._end()
            raise
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self.context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def _address(self, log: Path) -> str:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            found = re.search(r"WebDriver BiDi listening on (ws://\S+)", log.read_text(encoding="utf-8"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise AssertionError(log.read_text(encoding="utf-8"))

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; errors on the console that come meanwhile are kept."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] == "error":
                self.errors.append(answer["params"]["text"])
            if answer.get("id") == self._count:
                assert answer["type"] == "success", answer
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, address: str) -> None:
        self.send("browsingContext.navigate", context=self.context, url="about:blank", wait="complete")
        self.send("browsingContext.navigate", context=self.context, url=address, wait="complete")

    def run(self, expression: str) -> Any:
        """The value of an expression, which JSON can write."""
        wrapped = f"JSON.stringify({expression})"
        target = {"context": self.context}
        answer = self.send("script.evaluate", expression=wrapped, target=target, awaitPromise=True)
        assert answer["type"] == "success", answer
        return json.loads(answer["result"].get("value", "null"))

    def until(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(expression):
            assert time.monotonic() < end, (
                f"{expression} is not so; the page says {self.run('document.body.innerText')}"
            )
            time.sleep(0.05)

    def close(self) -> None:
        self._socket.close()
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._log.close()
