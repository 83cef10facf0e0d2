"""The OpenAPI document: valid, kept by the service, good enough to generate a client from; and its page, offline."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
from fastapi.testclient import TestClient
from openapi_spec_validator import validate

from attendant.export.bundle import BundleError
from attendant.model.text.tokenizer import learn
from attendant.service.errors import DeadlineError
from attendant.service.http.app import create_app
from attendant.service.http.openapi import BODIES
from attendant.service.requests import schemas
from attendant.service.requests.explain_schemas import ExplainResponse
from attendant.service.settings import Settings
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import Running, in_process, wait_for

ROOT = Path(__file__).parents[3]
EXAMPLES = 80  # an operation
KEY = "key"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


@contextmanager
def serving_any_text(directory: Path, **settings: Any) -> Iterator[Running]:
    """A server whose model takes any text, so that what a schema allows is mostly answered; it reloads nothing."""
    bundle = make_bundle(directory, source=2000, target=20)
    learn("bpe:300", ["the quick brown fox"]).save(directory / "source.json")
    engines = [FakeEngine(bundle)]
    engines[0].start()

    def load(asked: Path | None) -> FakeEngine:
        if not engines:
            raise BundleError(f"there is no bundle {asked}.")
        return engines.pop()

    server = Running(load, **settings)
    try:
        wait_for(lambda: server.lines or server.failure)
        yield server
    finally:
        server.stop()
        server.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_any_text(tmp_path_factory.mktemp("bundle")) as server:
        yield server


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    validate(document)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    assert references
    for reference in references:
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_every_operation_declares_its_errors_and_none_that_it_never_answers(document: dict[str, Any]) -> None:
    operations = {f"{method} {path}": o for path, item in document["paths"].items() for method, o in item.items()}
    for name, operation in operations.items():
        assert "HTTPValidationError" not in json.dumps(operation), name
    assert "404" in operations["get /v1/models/{name}"]["responses"]
    assert {"400", "404", "429"} <= set(operations["post /v1/completions"]["responses"])
    assert {"400", "403", "422"} <= set(operations["post /v1/reload"]["responses"])
    (parameter,) = operations["get /v1/models/{name}"]["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("name", "path", True)


def test_texts_that_must_not_be_empty_say_so(document: dict[str, Any]) -> None:
    models = document["components"]["schemas"]
    one, many = models["GenerateRequest"]["properties"]["inputs"]["anyOf"]
    assert (one["minLength"], many["minItems"], many["items"]["minLength"]) == (1, 1, 1)
    assert models["CompletionRequest"]["properties"]["prompt"]["anyOf"] == [one, many]
    for name in ("NextTokenRequest", "ScoreRequest"):
        assert models[name]["properties"]["source"]["minLength"] == 1
    assert "minLength" not in models["ScoreRequest"]["properties"]["target"]


def test_keys_are_declared_where_they_are_set(document: dict[str, Any]) -> None:
    assert "securitySchemes" not in document["components"]
    for settings, secured in (
        (Settings(api_keys=("key",)), ("/v1/generate", "/v1/completions", "/v1/models/{name}", "/v1/info", "/metrics")),
        (Settings(admin_keys=("key",)), ("/v1/reload",)),
    ):
        keyed = create_app(settings).openapi()
        assert keyed["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
        operations = {path: operation for path, item in keyed["paths"].items() for operation in item.values()}
        declared = {path for path, operation in operations.items() if "security" in operation}
        assert declared >= set(secured)
        assert not declared & {"/healthz", "/readyz"}
        assert ("/v1/generate" in declared) != ("/v1/reload" in declared)


def test_answers_are_what_their_models_say(tmp_path: Path) -> None:
    with in_process(tmp_path) as service:
        service.engine.failures = {service.engine.source_tokenizer.encode("dog"): DeadlineError("the deadline passed.")}
        for path, body, kind in (
            ("/v1/generate", {"inputs": ["cat", "dog"], "logprobs": True}, schemas.GenerateResponse),
            ("/v1/next-token", {"source": "cat", "temperature": 0.01, "top_k": 0}, schemas.NextTokenResponse),
            ("/v1/score", {"source": "cat", "target": "K"}, schemas.ScoreResponse),
            ("/v1/explain", {"source": "cat"}, ExplainResponse),
            ("/v1/explain", {"source": "cat", "target": "K", "encoding": "uint8"}, ExplainResponse),
        ):
            answer = service.post(path, **body)
            assert answer.status_code == 200
            found = kind.model_validate_json(answer.content, strict=True, extra="forbid")
            assert json.loads(found.model_dump_json(exclude_unset=True)) == answer.json()
        info = schemas.InfoResponse.model_validate_json(service.client.get("/v1/info").content, strict=True)
        assert info.model == "fake"


@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """With keys, so that it also looks for operations that do not check them."""
    settings = (ROOT / "schemathesis.toml").read_text(encoding="utf-8")
    (tmp_path / "schemathesis.toml").write_text('[parameters]\n"path.name" = "fake"\n\n' + settings, encoding="utf-8")
    command = [sys.executable, "-m", "schemathesis.cli", "run", "--checks", "all", "--max-examples", str(EXAMPLES)]
    command += ["--seed", "1", "--no-color", "--workers", "2", "--header", f"Authorization: Bearer {KEY}"]
    with serving_any_text(tmp_path / "bundle", api_keys=("other",), admin_keys=(KEY,)) as server:
        command.append(f"http://127.0.0.1:{server.port}/openapi.json")
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    count = sum(len(item) for item in create_app(Settings()).openapi()["paths"].values())
    assert f"{count} selected / {count} total" in found.stdout


@pytest.fixture(scope="module")
def generated_client(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    directory = tmp_path_factory.mktemp("client")
    (directory / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    (directory / "config.yml").write_text("post_hooks: []\n", encoding="utf-8")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    command += ["--path", "openapi.json", "--config", "config.yml", "--output-path", "attendant_client"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    sys.path.insert(0, str(directory))
    yield importlib.import_module("attendant_client")
    sys.path.remove(str(directory))


def test_a_generated_client_works(generated_client: ModuleType, server: Running) -> None:
    models = importlib.import_module("attendant_client.models")
    api = importlib.import_module("attendant_client.api")  # a package for each group of endpoints
    places = {each.name.rpartition(".")[2]: each.name for each in walk_packages(api.__path__, "attendant_client.api.")}
    with generated_client.Client(base_url=f"http://127.0.0.1:{server.port}") as client:

        def call(operation: str, **arguments: Any) -> Any:
            return importlib.import_module(places[operation]).sync(client=client, **arguments)

        answer = call("generate", body=models.GenerateRequest(inputs=["cat", "dog"], beam_size=2, num_hypotheses=2))
        assert [len(output.hypotheses) for output in answer.outputs] == [2, 2]
        best = answer.outputs[0].hypotheses[0]
        scored = call("score", body=models.ScoreRequest(source="cat", target=best.text))
        assert [token.token for token in scored.tokens[:-1]] == best.tokens
        assert len(call("next_token", body=models.NextTokenRequest(source="cat", top_k=3)).tokens) == 3
        completion = call("create_completion", body=models.CompletionRequest(model="fake", prompt="cat"))
        assert completion.choices[0].text
        assert call("get_model", name="fake") == call("list_models").data[0]
        assert call("info").model == "fake"
        refused = call("generate", body=models.GenerateRequest(inputs="cat", beam_size=0))
        assert refused.error.field == "beam_size"
        assert call("get_model", name="other").error.code == "model_not_found"


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app(Settings(api_keys=(KEY,))))


def test_the_page_of_the_document_needs_no_other_host(client: TestClient) -> None:
    page = client.get("/docs/index.html").text  # neither this page nor its files want a key
    assert client.get("/docs", headers={"Authorization": f"Bearer {KEY}"}).text == page
    own = client.get("/docs/docs.js")
    assert "SwaggerUIBundle" in own.text
    assert not re.findall(r"https?://|(?:src|href)=.//", page + own.text)
    files = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert files == ["/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/docs.js"]
    for path in files[:2]:
        for encoding in ("gzip", "identity"):
            answer = client.get(path, headers={"Accept-Encoding": encoding})
            assert answer.status_code == 200
            assert len(answer.content) > 100_000
            assert answer.headers["content-type"].startswith(("text/javascript", "text/css"))
    assert client.get("/docs/other.js").status_code == 404


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("gzip;q=0, identity", None),
        ("gzip; q=0.0", None),
        ("xgzip", None),
    ],
)
def test_a_file_comes_compressed_to_whoever_takes_it(accepted: str, coding: str | None, client: TestClient) -> None:
    answer = client.get("/docs/swagger-ui.css", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == coding


def test_the_page_of_the_document_is_open_and_the_document_is_not(client: TestClient) -> None:
    for path in ("/docs/index.html", "/docs/docs.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert client.get("/openapi.json").status_code == 401


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v1/info", "/v1/models", "/v1/models/fake", "/metrics"])
def test_what_takes_get_takes_head(path: str, server: Running) -> None:
    status, content = server.request("HEAD", path)
    assert (status, content) == (200, b"")
    assert server.request("HEAD", path + "/nothing" if path != "/v1/models/fake" else "/v1/nothing")[0] == 404


def test_a_wrong_method_is_told_all_that_the_path_takes(document: dict[str, Any], server: Running) -> None:
    for path, item in document["paths"].items():
        taken = {method.upper() for method in item} | ({"HEAD"} if "get" in item else set())
        connection = server.connect()
        connection.request("DELETE", path.replace("{name}", "fake"))
        answer = connection.getresponse()
        assert answer.status == 405
        assert set((answer.getheader("allow") or "").split(", ")) == taken
        error = json.loads(answer.read())["error"]
        assert error if path.startswith("/v2") else error["message"]
        connection.close()


def test_every_endpoint_is_in_a_group_that_is_described_and_has_an_example(document: dict[str, Any]) -> None:
    groups = {group["name"] for group in document["tags"] if group["description"]}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert set(operation["tags"]) <= groups
            assert "curl http://127.0.0.1:8000/" in operation["description"], path
            contents = operation.get("requestBody", {}).get("content", {}).values()
            places = [each for each in operation.get("parameters", []) if each["in"] == "path"]
            assert all("example" in each for each in [*contents, *places]), path


@pytest.mark.parametrize(
    "path", sorted({*BODIES} - {"/v1/reload"} - {path for path in BODIES if path.startswith("/v2")})
)
def test_the_example_of_an_endpoint_is_a_request_that_it_takes(path: str, tmp_path: Path) -> None:
    with in_process(tmp_path) as service:
        # The example is one for the default model, and this test's has another name and vocabulary.
        taken = {"allow_unknown": True} if path.startswith("/v1/") and "target" in BODIES[path] else {}
        answer = service.client.post(path, json=BODIES[path] | taken)
        assert answer.status_code in (200, 404), answer.text
