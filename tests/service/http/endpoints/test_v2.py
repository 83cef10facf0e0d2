"""The Open Inference Protocol V2: Triton's and KServe's own clients against the service, and what others may send."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from attendant.service.errors import DeadlineError, QueueFullError
from attendant.service.http.endpoints.v2 import generate_request
from attendant.service.http.endpoints.v2_schemas import InferRequest
from tests.support.fake_engine import FakeEngine
from tests.support.serving import Running, Service, in_process, running

INFER = "/v2/models/fake/infer"
KSERVE = Path(sys.prefix, "kserve")  # apart from other packages, which need a newer protobuf


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, FakeEngine]]:
    with running(tmp_path_factory.mktemp("bundle")) as both:
        yield both


@pytest.fixture
def triton(shared: tuple[Running, FakeEngine]) -> Iterator[InferenceServerClient]:
    client = InferenceServerClient(f"127.0.0.1:{shared[0].port}")
    yield client
    client.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with in_process(tmp_path) as service:
        yield service


def texts(*values: str, shape: list[int] | None = None, binary: bool = True) -> list[InferInput]:
    tensor = InferInput("text_input", shape or [len(values)], "BYTES")
    array = np.array([value.encode() for value in values], dtype=np.object_).reshape(shape or [len(values)])
    tensor.set_data_from_numpy(array, binary_data=binary)
    return [tensor]


def body(*values: str, **fields: Any) -> dict[str, Any]:
    tensor = {"name": "text_input", "shape": [len(values)], "datatype": "BYTES", "data": list(values)}
    return {"inputs": [tensor], **fields}


def tensors(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output for output in answer.json()["outputs"]}


def error_of(service: Service, content: Any) -> str:
    answer = service.client.post(INFER, json=content)
    assert answer.status_code == 422, answer.text
    assert set(answer.json()) == {"error"}
    sentence: str = answer.json()["error"]
    return sentence


def test_triton_s_client_finds_the_server_and_the_model(triton: InferenceServerClient) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("fake")
    assert not triton.is_model_ready("other")
    assert "binary_tensor_data" in triton.get_server_metadata()["extensions"]
    metadata = triton.get_model_metadata("fake")
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [-1]}]
    assert [output["name"] for output in metadata["outputs"]] == ["text_output", "score", "finish_reason"]


@pytest.mark.parametrize("shape", [[2], [2, 1]])
@pytest.mark.parametrize("sent", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("received", [True, False], ids=["binary", "json"])
def test_triton_s_client_gets_what_generate_answers(
    shape: list[int], sent: bool, received: bool, triton: InferenceServerClient, shared: tuple[Running, FakeEngine]
) -> None:
    outputs = [InferRequestedOutput(name, binary_data=received) for name in ("text_output", "score")]
    parameters = {"beam_size": 3, "num_hypotheses": 2}
    result = triton.infer("fake", texts("cat", "fab", shape=shape, binary=sent), outputs=outputs, parameters=parameters)
    asked = {"inputs": ["cat", "fab"], **parameters}
    expected = json.loads(shared[0].request("POST", "/v1/generate", asked)[1])["outputs"]
    found = [[value.decode() if received else value for value in row] for row in result.as_numpy("text_output")]
    assert found == [[each["text"] for each in output["hypotheses"]] for output in expected]
    scores = [[each["score"] for each in output["hypotheses"]] for output in expected]
    np.testing.assert_array_equal(result.as_numpy("score"), np.array(scores, dtype=np.float32))


def test_triton_s_client_gets_every_output_by_default(triton: InferenceServerClient) -> None:
    result = triton.infer("fake", texts("cat"), request_id="mine")
    assert result.as_numpy("finish_reason").tolist() == [[b"stop"]]
    assert result.as_numpy("text_output").shape == (1, 1)
    assert result.get_response()["id"] == "mine"
    assert result.get_response()["model_name"] == "fake"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_triton_s_client_may_compress(algorithm: str, triton: InferenceServerClient) -> None:
    result = triton.infer("fake", texts("cat"), request_compression_algorithm=algorithm)
    assert result.as_numpy("finish_reason").tolist() == [[b"stop"]]


def test_triton_s_client_is_told_what_was_wrong(triton: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="There is no model 'other' here; there is 'fake'"):
        triton.infer("other", texts("cat"))
    with pytest.raises(InferenceServerException, match="beam_size takes a whole number from 1"):
        triton.infer("fake", texts("cat"), parameters={"beam_size": 0})


def test_triton_s_client_may_name_the_version_and_a_priority(triton: InferenceServerClient) -> None:
    assert triton.is_model_ready("fake", "1")
    assert not triton.is_model_ready("fake", "2")
    assert triton.get_model_metadata("fake", "1") == triton.get_model_metadata("fake")
    result = triton.infer("fake", texts("cat"), model_version="1", priority=3)
    assert result.get_response()["model_version"] == "1"
    with pytest.raises(InferenceServerException, match="There is no version '2'; a model has one version here, '1'"):
        triton.infer("fake", texts("cat"), model_version="2")
    with pytest.raises(InferenceServerException, match="There is no version '2'"):
        triton.get_model_config("fake", "2")


def test_triton_s_client_lists_the_models_and_reads_their_configuration(triton: InferenceServerClient) -> None:
    assert triton.get_model_repository_index() == [{"name": "fake", "version": "1", "state": "READY", "reason": ""}]
    config = triton.get_model_config("fake", "1")
    assert (config["name"], config["max_batch_size"]) == ("fake", 0)
    assert config["input"] == [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [-1]}]
    assert [each["data_type"] for each in config["output"]] == ["TYPE_STRING", "TYPE_FP32", "TYPE_STRING"]


def test_triton_s_client_reads_how_many_inferences_there_were(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        client = InferenceServerClient(f"127.0.0.1:{server.port}")
        client.infer("fake", texts("cat", "dog"))
        with pytest.raises(InferenceServerException):
            client.infer("fake", texts("cat"), parameters={"beam_size": 10_000})
        (found,) = client.get_inference_statistics("fake", "1")["model_stats"]
        assert client.get_inference_statistics() == {"model_stats": [found]}
        with pytest.raises(InferenceServerException, match="There is no model 'other'"):
            client.get_inference_statistics("other")
        client.close()
    assert (found["inference_count"], found["execution_count"]) == (2, 1)
    assert found["inference_stats"]["success"]["count"] == found["inference_stats"]["fail"]["count"] == 1
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert sum(found["inference_stats"][part]["ns"] for part in parts) <= found["inference_stats"]["success"]["ns"]
    assert found["last_inference"] > 0


@pytest.mark.skipif(not KSERVE.is_dir(), reason="KServe's client is not installed (make .venv/kserve)")
def test_kserve_s_client_infers(shared: tuple[Running, FakeEngine]) -> None:
    server = shared[0]
    command = [
        sys.executable,
        "-m",
        "tests.service.http.endpoints.kserve_client",
        str(KSERVE),
        f"http://127.0.0.1:{server.port}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    answer = json.loads(server.request("POST", "/v1/generate", {"inputs": ["cat", "fab"], "beam_size": 2})[1])
    expected = [[output["hypotheses"][0]["text"]] for output in answer["outputs"]]
    assert found["json"] == found["binary"] == expected
    assert (found["live"], found["ready"], found["model_ready"], found["other_ready"]) == (True, True, True, False)
    assert "model_name is 'another' and the path names 'fake'; send one name." in found["refusal"]


def test_the_model_s_name_may_be_in_the_body_too(service: Service) -> None:
    assert service.client.post(INFER, json=body("cat", model_name="fake")).status_code == 200
    assert "model_name is 'other' and the path names 'fake'" in error_of(service, body("cat", model_name="other"))


def test_the_server_is_described_with_and_without_a_slash(service: Service) -> None:
    assert service.client.get("/v2/").json() == service.client.get("/v2").json()


def test_the_index_may_be_of_ready_models_only(service: Service) -> None:
    assert [model["name"] for model in service.post("/v2/repository/index", ready=True).json()] == ["fake"]
    assert service.post("/v2/repository/index", raedy=True).status_code == 422


def test_versions_that_do_not_exist_are_refused_by_any_method(service: Service) -> None:
    for path in ("", "/ready", "/config", "/stats"):
        assert service.client.get(f"/v2/models/fake/versions/1{path}").status_code == 200
        assert service.client.get(f"/v2/models/fake/versions/2{path}").status_code == 404
        assert service.client.head(f"/v2/models/fake/versions/2{path}").status_code == 404


def test_a_character_of_several_bytes_passes_both_ways(triton: InferenceServerClient) -> None:
    for binary in (True, False):
        assert triton.infer("fake", texts("é", binary=binary)).as_numpy("finish_reason").tolist() == [[b"stop"]]


def test_one_bad_text_refuses_the_request(service: Service) -> None:
    assert "inputs[1] is empty" in error_of(service, body("cat", ""))


def test_a_text_that_fails_fails_the_request(service: Service) -> None:
    service.engine.failures = {service.engine.source_tokenizer.encode("dog"): DeadlineError("the deadline passed.")}
    answer = service.client.post(INFER, json=body("cat", "dog"))
    assert (answer.status_code, answer.json()) == (504, {"error": "the deadline passed."})


def test_a_full_queue_says_when_to_try_again(service: Service) -> None:
    service.engine.refusal = QueueFullError("the queue is full.", 3)
    answer = service.client.post(INFER, json=body("cat"))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


@pytest.mark.parametrize(("microseconds", "milliseconds"), [(30_000, 30), (1, 1), (1001, 2)])
def test_a_timeout_of_triton_is_in_microseconds(microseconds: int, milliseconds: int) -> None:
    request = InferRequest.model_validate(body("cat", parameters={"timeout": microseconds}))
    assert generate_request(request).timeout_ms == milliseconds


def test_rows_of_texts_are_as_good_as_a_flat_list(service: Service) -> None:
    content = body("cat", "dog")
    content["inputs"][0] |= {"shape": [2, 1], "data": [["cat"], ["dog"]]}
    assert tensors(service.client.post(INFER, json=content)) == tensors(
        service.client.post(INFER, json=body("cat", "dog"))
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "text"}, "inputs[0] takes the tensor 'text_input' of BYTES, not 'text' of 'BYTES'."),
        ({"datatype": "FP32"}, "inputs[0] takes the tensor 'text_input' of BYTES, not 'text_input' of 'FP32'."),
        ({"shape": [2]}, "inputs[0].shape is [2], and there are 1 texts."),
        ({"shape": [1, 2]}, "inputs[0].shape takes [texts] or [texts, 1]."),
        ({"shape": ["1"]}, "inputs[0].shape takes [texts] or [texts, 1]."),
        ({"shape": []}, "inputs[0].shape is [], and there are 1 texts."),
        ({"shape": 1}, "inputs[0].shape takes [texts] or [texts, 1], not 1."),
        ({"shape": [0], "data": []}, "inputs[0] has no text; give one at least."),
        ({"data": [1]}, "inputs[0].data takes a list of texts."),
        ({"data": None}, "inputs[0] takes either data or binary_data_size."),
        ({"parameters": {"x": 1}}, "inputs[0].parameters takes binary_data_size, a whole number of bytes, and"),
        ({"size": 1}, "inputs[0].size is no field of this request; it takes name, shape, datatype, parameters, data."),
    ],
)  # fmt: skip
def test_a_tensor_that_cannot_be_read_is_refused(change: dict[str, Any], sentence: str, service: Service) -> None:
    content = body("cat")
    content["inputs"][0] |= change
    assert error_of(service, content).startswith(sentence)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"parameters": {"beam": 2}}, "beam is no parameter; these are: beam_size,"),
        ({"parameters": {"stream": True}}, "stream is no parameter"),
        ({"parameters": {"timeout": 0.5}}, "timeout takes a whole number of microseconds from 1 to 86400000000."),
        ({"parameters": {"timeout": 10**400}}, "timeout takes a whole number of microseconds from 1 to"),
        ({"outputs": [{"name": "score"}] * 4}, "outputs takes a list of up to 3 tensors, or null, not"),
        ({"parameters": {"priority": -1}}, "priority takes a whole number from 0; all requests have one priority."),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output takes true or false."),
        ({"outputs": [{"name": "text"}]}, "outputs[0].name takes text_output, score, finish_reason, not 'text'."),
        ({"outputs": [{"name": "score", "parameters": {"classification": 3}}]}, "outputs[0].parameters takes"),
        ({"inputs": []}, "inputs takes a list of one tensor, not []."),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_honoured_is_refused(fields: dict[str, Any], sentence: str, service: Service) -> None:
    assert sentence in error_of(service, {**body("cat"), **fields})


def binary_request(service: Service, data: bytes, size: int, count: int, header: str | None = None) -> Any:
    tensor = {"name": "text_input", "shape": [count], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    length = {"Inference-Header-Content-Length": header or str(len(head))}
    return service.client.post(INFER, content=head + data, headers=length)


@pytest.mark.parametrize(
    ("data", "size", "count", "sentence"),
    [
        (struct.pack("<I", 9) + b"cat", 7, 1, "ends inside an element"),
        (b"\x01\x00", 2, 1, "ends inside an element"),
        (struct.pack("<I", 3) + b"cat", 8, 1, "binary_data_size is 8, and 7 bytes follow the JSON"),
        (struct.pack("<I", 2) + b"\xff\xfe", 6, 1, "not UTF-8, at byte 4"),
        (struct.pack("<I", 3) + b"cat", 7, 2, "shape is [2], and there are 1 texts"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(data: bytes, size: int, count: int, sentence: str, service: Service) -> None:
    answer = binary_request(service, data, size, count)
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]


@pytest.mark.parametrize("header", ["-1", "x", "99999999", "9" * 30])
def test_a_wrong_length_of_the_json_is_refused(header: str, service: Service) -> None:
    answer = binary_request(service, b"", 0, 0, header)
    assert answer.status_code == 400
    assert "inference-header-content-length takes a number" in answer.json()["error"]


def test_health_wants_no_key_and_models_do(tmp_path: Path) -> None:
    with in_process(tmp_path, api_keys=("key",)) as service:
        assert service.client.get("/v2/health/live").json() == {"live": True}
        assert service.client.get("/v2/health/ready").json() == {"ready": True}
        for path in ("/v2", "/v2/models/fake", "/v2/models/fake/ready"):
            assert service.client.get(path).status_code == 401
        assert service.client.post(INFER, json=body("cat")).status_code == 401


def test_while_it_stops_it_is_live_and_not_ready(service: Service) -> None:
    service.client.app.state.parts.models.refuse()  # type: ignore[attr-defined]
    assert service.client.get("/v2/health/live").status_code == 200
    for path in ("/v2/health/ready", "/v2/models/fake/ready"):
        assert service.client.get(path).status_code == 503


def test_requests_are_counted_under_one_endpoint(service: Service) -> None:
    service.client.post(INFER, json=body("cat"))
    service.client.post("/v2/models/other/infer", json=body("cat"))
    endpoint = "/v2/models/{name}/infer"
    service.client.post(INFER, content=b"x")  # refused before there is a handler
    assert service.outcomes() == {(endpoint, "ok"): 1, (endpoint, "not_found"): 1, (endpoint, "invalid_json"): 1}


def test_an_id_that_is_no_unicode_is_refused(service: Service) -> None:
    body = {"id": "\ud800", "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["cat"]}]}
    content = json.dumps(body).encode()
    answer = service.client.post(INFER, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "id takes a text of valid Unicode" in answer.json()["error"]
