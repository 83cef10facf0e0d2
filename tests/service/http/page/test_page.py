"""The page's files over HTTP: open, with its policy, without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from attendant.service.http.page.page import DIRECTORY
from tests.support.serving import Service, in_process

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = sorted(path.name for path in DIRECTORY.iterdir())
PATHS = ["/", *(f"/page/{name}" for name in FILES)]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with in_process(tmp_path_factory.mktemp("bundle"), api_keys=("the-key",)) as service:
        yield service


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_response_of_the_page_is_open_and_has_its_policy(path: str, method: str, keyed: Service) -> None:
    first = keyed.client.request(method, path)
    again = keyed.client.request(method, path, headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code) == (200, 304)
    for answer in (first, again):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("form", "status"),
    [("*", 304), ("W/{}", 304), ('"other", {}', 304), ('W/"other",W/{} , "third"', 304), ('"other"', 200), ("", 200)],
)
@pytest.mark.parametrize("path", ["/", "/page/main.js"])
def test_a_file_that_the_client_has_is_not_sent_again(path: str, form: str, status: int, keyed: Service) -> None:
    etag = keyed.client.get(path).headers["etag"]
    assert keyed.client.get(path, headers={"If-None-Match": form.format(etag)}).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/page/nothing.js", 404), ("POST", "/", 405), ("POST", "/page/main.js", 405)]
)
def test_a_refusal_of_the_page_has_its_policy_too(method: str, path: str, status: int, keyed: Service) -> None:
    answer = keyed.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/v1/info", "/v1/models", "/metrics"])
def test_the_data_of_the_page_needs_the_key(path: str, keyed: Service) -> None:
    assert keyed.client.get(path).status_code == 401


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpage.py", "__init__.py"])
def test_only_files_of_the_page_are_served(name: str, keyed: Service) -> None:
    assert keyed.client.get(f"/page/{name}", headers={"Authorization": "Bearer the-key"}).status_code == 404


def test_the_page_is_not_in_openapi(keyed: Service) -> None:
    paths = keyed.client.get("/openapi.json", headers={"Authorization": "Bearer the-key"}).json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/page")]


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_no_other_host_and_writes_no_markup(name: str) -> None:
    text = (DIRECTORY / name).read_text(encoding="utf-8")
    hosts = set(re.findall(r"https?://[^\s\"'`$:<]+", text))
    assert hosts <= {"http://www.w3.org/2000/svg", "http://127.0.0.1" if name.endswith(".html") else ""}
    assert not re.findall(
        r"innerHTML\s*=|insertAdjacentHTML|document\.write|(?<!\.)\beval\(|setAttribute\(\"style\"", text
    )


def test_every_word_is_in_both_languages() -> None:
    text = (DIRECTORY / "i18n.js").read_text(encoding="utf-8")
    known = set(re.findall(r"(?:^|[{,]) +(\w+): \[\s*\"", text, re.MULTILINE))
    used = set()
    for path in DIRECTORY.iterdir():
        content = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"\bt\(\"(\w+)\"", content)) | set(re.findall(r"data-t(?:-\w+)?=\"(\w+)\"", content))
    assert used <= known


def test_modules_are_small() -> None:
    modules = [name for name in FILES if name.endswith((".js", ".css"))]
    assert {name for name in modules if len((DIRECTORY / name).read_text(encoding="utf-8").splitlines()) > 250} == set()
