"""LibreTranslate's API: its published clients work by changing an address; errors and keys are in its own form."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI

from attendant.service.http.endpoints.libretranslate import _detected
from attendant.service.language_pairs import LanguagePair
from attendant.service.libretranslate.languages import Pair
from attendant.service.libretranslate.requests import read_translation
from tests.support.serving import Running, Service, in_process, running

NPM = Path(__file__).parents[4] / ".venv" / "libretranslate"  # its clients of npm
PAIRS = (LanguagePair("fake", "en", "de"),)
needs_npm = pytest.mark.skipif(
    not ((NPM / "node_modules").is_dir() and shutil.which("node")),
    reason="make .venv/libretranslate; needs npm and node",
)
ON: dict[str, Any] = {"libretranslate": True, "language_pairs": PAIRS}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundle")


@pytest.fixture(scope="module")
def service(directory: Path) -> Iterator[Service]:
    with in_process(directory, **ON) as found:
        yield found


@pytest.fixture(scope="module")
def keyed(directory: Path) -> Iterator[Running]:
    with running(directory, api_keys=("secret",), **ON) as (server, _):
        yield server


def native(service: Service, text: str) -> str:
    found: str = service.generate(inputs=text).json()["outputs"][0]["hypotheses"][0]["text"]
    return found


def test_its_python_client_translates_detects_and_lists_with_its_key(keyed: Running, service: Service) -> None:
    client = LibreTranslateAPI(f"http://127.0.0.1:{keyed.port}", "secret")
    assert client.translate("cat", "en", "de") == native(service, "cat")
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["de"]},
        {"code": "en", "name": "English", "targets": ["de", "en"]},
    ]
    assert client.detect("Bonjour le monde, comment allez-vous ?")[0]["language"] == "fr"


@needs_npm
def test_its_javascript_clients_translate_detect_and_list(keyed: Running, service: Service, directory: Path) -> None:
    best = native(service, "cat")
    found = from_npm(keyed, "secret", "cat")
    assert found["libretranslate-ts"] == {"status": 200, "translatedText": best}
    assert found["translate"] == best
    assert found["detected"]["status"] == 200
    assert [each["code"] for each in found["languages"]] == ["de", "en"]
    with running(directory, **ON) as (server, _):
        assert from_npm(server, "", "cat")["libretranslate"] == best


@needs_npm
def test_its_javascript_client_tells_what_is_wrong_with_the_key(keyed: Running) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        from_npm(keyed, "wrong", "cat")
    assert "Error: Invalid API key" in caught.value.stderr


def from_npm(server: Running, key: str, text: str) -> Any:
    """What the clients answer; their own program says which."""
    program = Path(__file__).with_name("libretranslate_clients.mjs")
    command = ["node", str(program), str(NPM), f"http://127.0.0.1:{server.port}", key, text]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("key", "status"), [(None, 400), ("wrong", 403)])
def test_its_python_client_is_refused_without_the_key(keyed: Running, key: str | None, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        LibreTranslateAPI(f"http://127.0.0.1:{keyed.port}", key).translate("cat", "en", "de")
    assert caught.value.code == status
    assert set(json.loads(caught.value.read())) == {"error"}


def test_languages_need_no_key_and_detection_does(directory: Path) -> None:
    with in_process(directory, api_keys=("secret",), **ON) as keyed:
        assert [keyed.client.request(method, "/languages").status_code for method in ("GET", "HEAD")] == [200, 200]
        assert keyed.client.get("/frontend/settings").json()["keyRequired"]
        assert keyed.client.post("/detect", json={"q": "cat"}).status_code == 400


def test_a_list_a_form_and_json_are_answered_alike(service: Service) -> None:
    best = native(service, "cat")
    fields = {"q": "cat", "source": "en", "target": "de"}
    assert service.client.post("/translate", data=fields).json() == {"translatedText": best}
    assert (
        service.client.post("/translate", files={k: (None, v) for k, v in fields.items()}).json()["translatedText"]
        == best
    )
    body = {"q": ["cat", "", "cat"], "source": "auto", "target": "de", "format": "html"}
    found = service.client.post("/translate", json=body).json()
    assert found["translatedText"] == [best, "", best]
    assert found["detectedLanguage"] == [{"confidence": 100.0, "language": "en"}] * 3


def test_a_text_in_the_language_that_is_asked_for_is_its_own_translation(service: Service) -> None:
    body = {"q": ["gar nicht", ""], "source": "de", "target": "de", "alternatives": 1}
    assert service.client.post("/translate", json=body).json() == {
        "translatedText": ["gar nicht", ""],
        "alternatives": [[], []],
    }


def test_a_language_that_a_model_reads_too_is_detected_as_itself() -> None:
    there_and_back = [Pair("en", "de", "one", None, None), Pair("de", "en", "other", None, None)]
    asked = read_translation(
        {"q": "Das Haus ist sehr alt und der Garten ist klein.", "source": "auto", "target": "de"}, 0
    )
    assert _detected(asked, there_and_back).language == "de"


def test_alternatives_are_others(service: Service) -> None:
    found = service.client.post(
        "/translate", json={"q": "cat", "source": "en", "target": "de", "alternatives": 2}
    ).json()
    assert found["translatedText"] not in found["alternatives"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "en", "target": "de"}, "missing q"),
        ({"q": "cat", "target": "de"}, "missing source"),
        ({"q": "cat", "source": "en", "target": "xx"}, "xx is not supported"),
        ({"q": "cat", "source": "en", "target": "de", "format": "pdf"}, "pdf format is not supported"),
        ({"q": "cat", "source": "en", "target": "de", "alternatives": "x"}, "not a number"),
        ({"q": [1], "source": "en", "target": "de"}, "not a text"),
    ],
)
def test_errors_are_in_its_form(service: Service, fields: dict[str, Any], message: str) -> None:
    answer = service.client.post("/translate", json=fields)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_requests_are_counted_with_the_others(service: Service) -> None:
    before = service.outcomes().get(("/translate", "ok"), 0)
    service.client.post("/translate", json={"q": "cat", "source": "en", "target": "de"})
    assert service.outcomes()["/translate", "ok"] == before + 1


def test_nothing_is_there_unless_it_is_switched_on(directory: Path) -> None:
    with in_process(directory) as off:
        assert off.client.post("/translate", json={"q": "cat"}).status_code == 404
        assert off.client.get("/languages").status_code == 404
        assert off.client.head("/languages").status_code == 404


def test_the_settings_of_its_page_are_told(service: Service) -> None:
    assert service.client.get("/frontend/settings").json()["language"]["target"] == {"code": "de", "name": "German"}
