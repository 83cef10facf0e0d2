"""LibreTranslate's API: its published clients work by changing an address; errors and keys are in its own form."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI

from attendant.service.language_pairs import LanguagePair
from tests.support.serving import Running, Service, in_process, running

PAIRS = (LanguagePair("fake", "en", "de"),)
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
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    assert client.detect("Bonjour le monde, comment allez-vous ?")[0]["language"] == "fr"


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
