"""Several models in one service: which one a request means, when it is loaded, and which one is evicted for it."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from attendant.export.bundle import BundleError
from attendant.service.errors import StartError
from attendant.service.http.app import create_app
from attendant.service.http.submission import DisconnectWatch
from attendant.service.language_pairs import LanguagePair
from attendant.service.models import loading, registry
from attendant.service.settings import Settings
from tests.support.serving import running, wait_for
from tests.support.several import KEY, Loader, Service, serving, write_manifest
from tests.support.threads import threads_beside


def error(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_a_request_is_answered_by_the_model_that_it_names(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        for name in ("a", "b", "a"):
            assert service.generate(name).json()["model"] == name
            assert service.client.get("/v1/info", params={"model": name}).json()["model"] == name
        assert [len(service.engine(name).submitted) for name in ("a", "b")] == [2, 1]
        assert service.client.get("/v1/info?model=a").json()["bundle"]["name"] == "bundle of a"
        for path, body in (("next-token", {"source": "cat"}), ("score", {"source": "cat", "target": "K"})):
            assert service.client.post(f"/v1/{path}", json={**body, "model": "b"}).status_code == 200
        for path, body in (
            ("completions", {"prompt": "cat"}),
            ("chat/completions", {"messages": [{"role": "user", "content": "cat"}]}),
        ):
            assert service.client.post(f"/v1/{path}", json={**body, "model": "b"}).json()["model"] == "b"
        assert len(service.engine("b").submitted) == 5


@pytest.mark.parametrize(
    ("names", "settings", "meant"),
    [
        (("a",), {}, "a"),
        (("a", "default"), {}, "default"),
        (("a", "b", "default"), {"default_model": "b"}, "b"),
    ],
)
def test_a_request_that_names_no_model_means_the_default_one(
    names: tuple[str, ...], settings: dict[str, Any], meant: str, tmp_path: Path
) -> None:
    with serving(tmp_path, *names, **settings) as service:
        assert service.generate().json()["model"] == meant
        assert service.client.get("/v1/info").json()["model"] == meant
        assert [model["id"] for model in service.listed() if model["default"]] == [meant]
        assert service.loader.order[0] == meant  # it is loaded first


def test_without_a_default_model_a_request_must_name_one(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        found = error(service.generate(), 422)
        assert found["field"] == "model"
        assert found["message"] == "This service has several models; name one in model: 'a', 'b'."
        error(service.client.get("/v1/info"), 422)
        assert not [model for model in service.listed() if model["default"]]


def test_a_name_that_does_not_exist_is_not_found_and_those_that_do_are_told(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        found = error(service.generate("c"), 404)
        assert (found["type"], found["field"]) == ("not_found", "model")
        assert found["message"] == "There is no model 'c' here; there are 'a', 'b'."
        error(service.client.get("/v1/info?model=c"), 404)
        assert error(service.client.get("/v1/models/c"), 404)["code"] == "model_not_found"
        answer = service.client.post("/v1/completions", json={"prompt": "cat", "model": "c"})
        assert error(answer, 404)["code"] == "model_not_found"


def test_with_one_bundle_a_request_may_name_it_and_no_other(tmp_path: Path) -> None:
    with running(tmp_path) as (server, _):
        assert server.request("POST", "/v1/generate", {"inputs": "cat", "model": "fake"})[0] == 200
        assert server.request("POST", "/v1/generate", {"inputs": "cat", "model": "other"})[0] == 404


def test_models_are_listed_with_their_sizes_states_and_languages(tmp_path: Path) -> None:
    codes = {"de": [4], "fr": [5]}
    write_manifest(
        tmp_path / "nllb", languages={"source_prefix": codes, "target_prefix": codes, "source_language": "de"}
    )
    write_manifest(tmp_path / "torn")
    (tmp_path / "torn" / "manifest.json").write_text("{", encoding="utf-8")
    with serving(tmp_path, "a", load="lazy") as service:
        service.generate("a")
        plain, nllb, torn = service.listed()
        assert [model["state"] for model in (plain, nllb, torn)] == ["loaded", "unloaded", "failed"]
        assert plain["sizes"] == nllb["sizes"] | {"head_size": 0}
        assert (plain["sizes"]["d_model"], plain["languages"]["source"]) == (16, [])
        assert (nllb["languages"]["source"], nllb["languages"]["target"]) == (["de", "fr"], ["de", "fr"])
        assert nllb["languages"]["default_source"] == "de"
        assert "cannot be read as JSON" in torn["reason"]
        assert torn["sizes"] is None
        assert service.client.get("/v1/models/nllb").json() == nllb


def test_models_are_loaded_at_the_start(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", "c") as service:
        assert service.states() == dict.fromkeys("abc", "loaded")


def test_a_lazy_service_is_ready_with_nothing_loaded_and_loads_on_the_first_request(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", load="lazy") as service:
        assert service.states() == dict.fromkeys("ab", "unloaded")
        assert "is unloaded" in error(service.client.get("/v1/info?model=b"), 503)["message"]
        assert service.generate("b").status_code == 200
        assert service.states() == {"a": "unloaded", "b": "loaded"}
        service.generate("b")
        assert service.loader.order == ["b"]


def test_requests_for_a_model_wait_for_one_load_of_it_while_probes_go_on(tmp_path: Path) -> None:
    with serving(tmp_path, "a", load="lazy") as service, ThreadPoolExecutor(4) as pool:
        service.loader.may_load.clear()
        asked = [pool.submit(service.generate, "a") for _ in range(4)]
        wait_for(lambda: service.loader.asked)
        assert service.ready()
        assert service.states() == {"a": "loading"}
        assert not any(future.done() for future in asked)
        service.loader.may_load.set()
        assert [future.result().status_code for future in asked] == [200] * 4
        assert service.loader.order == ["a"]


def test_the_least_recently_used_model_is_evicted_when_too_many_are_loaded(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", "c", max_loaded=2) as service:
        assert service.states() == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        service.generate("b")
        service.generate("a")
        assert service.generate("c").status_code == 200
        assert service.states() == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert not service.engine("b")._thread.is_alive()
        assert service.generate("b").status_code == 200
        assert service.states() == {"a": "unloaded", "b": "loaded", "c": "loaded"}
        assert service.loader.most_alive == 2


def test_models_that_do_not_fit_in_memory_together_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.Loader
    monkeypatch.setattr(registry, "Loader", lambda *given, **options: real(*given, **options | {"memory": 1000}))
    for name, weights in (("a", 100), ("b", 100), ("large", 10_000)):
        write_manifest(tmp_path / name, weights=weights)
    with serving(tmp_path) as service:
        assert service.states() == {"a": "loaded", "b": "loaded", "large": "unloaded"}
        assert service.generate("large").status_code == 200  # alone, whatever it takes
        assert service.states() == {"a": "unloaded", "b": "unloaded", "large": "loaded"}


def test_a_load_waits_until_a_busy_model_is_idle_and_loses_no_request(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", load="lazy", max_loaded=1) as service, ThreadPoolExecutor(2) as pool:
        service.generate("a")
        busy = service.engine("a")
        busy.pause_after = 1
        first = pool.submit(service.generate, "a")
        wait_for(busy.count_running)
        second = pool.submit(service.generate, "b")
        wait_for(lambda: service.states()["b"] == "loading")
        assert service.loader.asked == ["a"]
        busy.resume()
        assert [future.result().json()["model"] for future in (first, second)] == ["a", "b"]
        assert service.loader.most_alive == 1


def test_a_busy_model_is_evicted_in_time_and_its_requests_wait_for_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PATIENCE", 0.0)
    with serving(tmp_path, "a", "b", load="lazy", max_loaded=1) as service, ThreadPoolExecutor(3) as pool:
        service.generate("a")
        busy = service.engine("a")
        busy.pause_after = 1
        first = pool.submit(service.generate, "a")
        wait_for(busy.count_running)
        other = pool.submit(service.generate, "b")
        wait_for(lambda: service.models.find("a").evicting)
        late = pool.submit(service.generate, "a")  # waits although a is loaded: b is next
        wait_for(lambda: service.models.find("a").wanted)
        busy.resume()
        assert [future.result().json()["model"] for future in (first, other, late)] == ["a", "b", "a"]
        assert service.loader.order == ["a", "b", "a"]


def test_a_request_waits_for_a_load_until_its_deadline(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", load="lazy", max_loaded=1) as service, ThreadPoolExecutor(1) as pool:
        service.generate("a")
        service.engine("a").pause_after = 1
        first = pool.submit(service.generate, "a")
        wait_for(service.engine("a").count_running)
        found = error(service.generate("b", timeout_ms=50), 504)
        assert found["type"] == "deadline"
        assert "before the model 'b' was loaded" in found["message"]
        wait_for(lambda: service.states()["b"] == "unloaded")  # nobody wants it any more
        service.engine("a").resume()
        assert first.result().status_code == 200
        assert service.loader.order == ["a"]
        assert service.value("requests_total", model="b", endpoint="/v1/generate", outcome="deadline") == 1


def test_many_requests_for_more_models_than_fit_are_all_answered(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    with serving(tmp_path, *names, max_loaded=2) as service, ThreadPoolExecutor(12) as pool:

        def ask(number: int) -> tuple[int, str]:
            answer = service.generate(names[number % 4], inputs="facade")
            return answer.status_code, answer.json()["model"]

        found = list(pool.map(ask, range(80)))
        assert found == [(200, names[number % 4]) for number in range(80)]
        assert service.loader.most_alive == 2
        assert sum(len(e.submitted) for engines in service.loader.engines.values() for e in engines) == 80


def test_a_model_that_cannot_be_loaded_tells_its_requests_why_and_is_not_tried_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, "a", "b", load="lazy") as service:
        service.loader.broken["b"] = BundleError("b/x has not its digest.")
        for _ in range(3):
            found = error(service.generate("b"), 503)
            assert found["type"] == "not_ready"
            assert found["message"].startswith("The model 'b' cannot be loaded: b/x has not its digest.")
        assert service.loader.asked == ["b"]
        assert service.states() == {"a": "unloaded", "b": "failed"}
        assert service.value("model_state", model="b", state="failed") == 1
        assert service.value("model_loads_total", model="b", outcome="failed") == 1
        assert service.generate("a").status_code == 200
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + loading.RETRY_SECONDS)
        monkeypatch.setattr(registry, "time", later)
        del service.loader.broken["b"]
        assert service.generate("b").status_code == 200
        assert service.listed()[1]["reason"] is None


def test_a_model_that_was_refused_evicts_no_other_as_long_as_its_files_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "RETRY_SECONDS", 0.0)
    with serving(tmp_path, "a", "b", load="lazy", max_loaded=1) as service:
        service.loader.broken["b"] = BundleError("b is torn.")
        service.generate("a")
        error(service.generate("b"), 503)  # nothing was known of it: a was evicted
        service.generate("a")
        for _ in range(2):
            error(service.generate("b"), 503)
            assert service.states() == {"a": "loaded", "b": "failed"}
        assert service.loader.asked == ["a", "b", "a"]


def test_a_load_that_fails_otherwise_is_opaque(tmp_path: Path) -> None:
    with serving(tmp_path, "a", load="lazy") as service:
        service.loader.broken["a"] = RuntimeError("a bug")
        answer = service.generate("a")
        assert answer.status_code == 503
        assert "a bug" not in answer.text
        assert not service.ready()  # nothing can serve
        assert "No model can be loaded" in service.client.get("/readyz").json()["error"]["message"]


def test_a_directory_that_is_gone_when_its_model_is_wanted_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", load="lazy") as service:
        (tmp_path / "b").rename(tmp_path / ".b")
        assert "is not a directory" in error(service.generate("b"), 503)["message"]
        assert service.generate("a").status_code == 200


def test_a_broken_bundle_does_not_keep_the_others_from_serving(tmp_path: Path) -> None:
    loader = Loader(tmp_path)
    loader.broken["b"] = StartError("it drifts by 0.5.")
    with serving(tmp_path, "a", "b", "c", loader=loader) as service:
        assert service.states() == {"a": "loaded", "b": "failed", "c": "loaded"}
        assert service.generate("c").status_code == 200
        assert "it drifts by 0.5." in error(service.generate("b"), 503)["message"]


@pytest.mark.parametrize("load", ["eager", "lazy"])
def test_a_service_of_which_no_bundle_can_be_served_does_not_start(load: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_manifest(tmp_path / name)
        (tmp_path / name / "manifest.json").write_text("[]", encoding="utf-8")
    loader = Loader(tmp_path)
    loader.broken = {name: BundleError(f"{name} is torn.") for name in ("a", "b")}
    heard: list[Exception] = []
    app = create_app(Settings(models=tmp_path, load=load), load=loader, on_failure=heard.append)
    with TestClient(app) as client:
        wait_for(lambda: heard)
        assert client.get("/readyz").status_code == 503
    assert isinstance(heard[0], StartError)
    assert str(heard[0]).startswith(f"no bundle in {tmp_path} can be served. a: ")


def test_a_default_model_that_is_not_there_is_a_sentence_at_the_start(tmp_path: Path) -> None:
    write_manifest(tmp_path / "a")
    heard: list[Exception] = []
    settings = Settings(models=tmp_path, default_model="z")
    with TestClient(create_app(settings, load=Loader(tmp_path), on_failure=heard.append)):
        wait_for(lambda: heard)
    assert str(heard[0]) == "--default-model takes one of 'a', not 'z'."


def test_at_a_stop_a_request_that_waits_for_its_model_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, "a", load="lazy") as service, ThreadPoolExecutor(2) as pool:
        service.loader.may_load.clear()
        asked = pool.submit(service.generate, "a")
        wait_for(lambda: service.loader.asked)
        closing = pool.submit(service.client.portal.call, service.models.close, 20.0)  # type: ignore[union-attr]
        wait_for(lambda: not service.ready())
        assert "stopping" in error(service.generate("a"), 503)["message"]
        service.loader.may_load.set()
        assert asked.result().status_code == 200
        closing.result()
        assert not service.loader.alive()


def test_at_a_stop_without_time_a_request_that_waits_is_told_and_no_engine_is_left(tmp_path: Path) -> None:
    with serving(tmp_path, "a", load="lazy") as service, ThreadPoolExecutor(2) as pool:
        service.loader.may_load.clear()
        asked = pool.submit(service.generate, "a")
        wait_for(lambda: service.loader.asked)
        closing = pool.submit(service.client.portal.call, service.models.close, 0.0)  # type: ignore[union-attr]
        assert "stopping" in error(asked.result(), 503)["message"]
        service.loader.may_load.set()
        closing.result()
        assert not service.loader.alive()


def test_requests_are_counted_by_model_and_names_of_clients_are_no_labels(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        service.generate("a")
        service.generate("a", beam_size=10_000)
        service.generate("c")
        service.client.post("/v1/generate", content=b"{")
        counted = {
            ("a", "ok"): 1,
            ("a", "invalid_field"): 1,
            ("b", "ok"): 0,
            ("", "not_found"): 1,
            ("", "invalid_json"): 1,
        }
        for (model, outcome), count in counted.items():
            found = service.value("requests_total", model=model, endpoint="/v1/generate", outcome=outcome)
            assert found == count, (model, outcome)
        names = {s.labels["model"] for m in service.registry.collect() for s in m.samples if "model" in s.labels}
        assert names == {"", "a", "b"}


def test_nothing_is_loaded_for_a_client_that_disconnects_while_its_model_loads(tmp_path: Path) -> None:
    """The load itself has not begun: it waits for a busy model."""
    with serving(tmp_path, "a", "b", load="lazy", max_loaded=1) as service, ThreadPoolExecutor(1) as pool:
        service.generate("a")
        service.engine("a").pause_after = 1
        first = pool.submit(service.generate, "a")
        wait_for(service.engine("a").count_running)

        async def gone() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def ask_and_disconnect() -> None:
            model = service.models.find("b")
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await service.models.load(model, None, partial(DisconnectWatch, asyncio.get_running_loop(), gone))
            assert type(caught.value).__name__ == "CancelledError"
            while model.loading is not None:
                await asyncio.sleep(0.001)

        service.client.portal.call(ask_and_disconnect)  # type: ignore[union-attr]
        service.engine("a").resume()
        first.result()
        assert service.loader.order == ["a"]


def reloaded(service: Service, **body: Any) -> dict[str, str]:
    """The states after a reload that succeeds."""
    answer = service.reload(**body)
    assert answer.status_code == 200, answer.text
    return {model["id"]: model["state"] for model in answer.json()["data"]}


def test_a_reload_takes_up_what_was_added_replaced_and_removed(tmp_path: Path) -> None:
    with serving(tmp_path, "kept", "replaced", "removed") as service:
        old = service.engine("removed")
        write_manifest(tmp_path / "added")
        write_manifest(tmp_path / "replaced", version="2")
        (tmp_path / "removed").rename(tmp_path / ".removed")
        assert reloaded(service) == dict.fromkeys(("added", "kept", "replaced"), "loaded")
        assert service.loader.order[3:] == ["replaced", "added"]
        for name in ("added", "kept", "replaced"):
            assert service.generate(name).status_code == 200
        assert error(service.generate("removed"), 404)["field"] == "model"
        wait_for(lambda: not old._thread.is_alive())
        wait_for(lambda: service.value("requests_running", model="removed") is None)
        assert service.value("reloads_total", model="replaced", outcome="ok") == 1
        assert service.value("model_state", model="added", state="loaded") == 1


def test_a_removed_model_may_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        (tmp_path / "b").rename(tmp_path / ".b")
        assert reloaded(service) == {"a": "loaded"}
        (tmp_path / ".b").rename(tmp_path / "b")
        assert reloaded(service) == {"a": "loaded", "b": "loaded"}
        assert service.generate("b").status_code == 200
        assert service.value("model_state", model="b", state="loaded") == 1


def test_a_replaced_bundle_that_is_refused_leaves_the_old_one_serving_and_takes_up_the_rest(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        service.loader.broken["a"] = BundleError("a/x has not its digest.")
        write_manifest(tmp_path / "a", version="2")
        write_manifest(tmp_path / "c")
        found = error(service.reload(), 422)
        assert found["message"] == (
            "Refused, and what served before serves on: a: The bundle is refused, and a still serves: "
            "a/x has not its digest."
        )
        assert service.states() == dict.fromkeys("abc", "loaded")
        assert "has not its digest" in service.listed()[0]["reason"]
        assert service.generate("a").status_code == 200
        assert service.value("reloads_total", model="a", outcome="refused") == 1
        del service.loader.broken["a"]
        assert reloaded(service) == dict.fromkeys("abc", "loaded")
        assert service.listed()[0]["reason"] is None


def test_a_bundle_that_is_put_back_after_a_refused_one_has_no_failure(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        service.loader.broken["a"] = BundleError("a/x has not its digest.")
        (tmp_path / "a").rename(tmp_path / ".a")
        write_manifest(tmp_path / "a", version="2")
        assert service.reload().status_code == 422
        del service.loader.broken["a"]
        (tmp_path / "a").rename(tmp_path / ".broken")
        (tmp_path / ".a").rename(tmp_path / "a")
        assert reloaded(service) == dict.fromkeys("ab", "loaded")
        assert service.listed()[0]["reason"] is None


def test_a_broken_bundle_that_is_added_is_told_and_the_others_serve_on(tmp_path: Path) -> None:
    with serving(tmp_path, "a") as service:
        write_manifest(tmp_path / "b")
        (tmp_path / "b" / "manifest.json").write_text("{", encoding="utf-8")
        assert "cannot be read as JSON" in error(service.reload(), 422)["message"]
        assert service.states() == {"a": "loaded", "b": "failed"}
        assert error(service.generate(), 422)["field"] == "model"  # there are two now
        assert service.generate("a").status_code == 200


def test_a_bundle_that_is_replaced_while_its_model_loads_is_the_one_that_serves(tmp_path: Path) -> None:
    with serving(tmp_path, "a", load="lazy") as service, ThreadPoolExecutor(1) as pool:
        service.loader.may_load.clear()
        asked = pool.submit(service.generate, "a")
        wait_for(lambda: service.loader.asked)
        write_manifest(tmp_path / "a", version="2")
        assert reloaded(service) == {"a": "loading"}
        service.loader.may_load.set()
        assert asked.result().status_code == 200
        wait_for(lambda: service.loader.order == ["a", "a"] and len(service.loader.alive()) == 1)
        assert reloaded(service) == {"a": "loaded"}
        assert service.loader.order == ["a", "a"]


def test_a_reload_loads_nothing_that_was_not_loaded_where_loading_is_lazy(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", load="lazy") as service:
        service.generate("a")
        for name in ("a", "b", "c"):
            write_manifest(tmp_path / name, version="2")
        assert reloaded(service) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
        assert service.loader.order == ["a", "a"]


def test_a_model_that_is_unloaded_while_its_reload_waits_is_not_loaded_beside_the_others(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", load="lazy", max_loaded=1) as service, ThreadPoolExecutor(3) as pool:
        service.generate("a")
        busy = service.engine("a")
        busy.pause_after = 1
        first = pool.submit(service.generate, "a")
        wait_for(busy.count_running)
        second = pool.submit(service.generate, "b")
        wait_for(lambda: service.states()["b"] == "loading")
        write_manifest(tmp_path / "a", version="2")
        renewed = pool.submit(reloaded, service)
        wait_for(lambda: service.models._loader._one_load._waiters)  # behind b, which waits for a
        busy.resume()
        assert [future.result().status_code for future in (first, second)] == [200, 200]
        assert renewed.result() == {"a": "unloaded", "b": "loaded"}
        assert service.loader.most_alive == 1
        assert reloaded(service) == {"a": "unloaded", "b": "loaded"}  # nothing differs any more
        assert service.generate("a").status_code == 200
        assert service.loader.order == ["a", "b", "a"]


def test_one_model_alone_can_be_reloaded(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        write_manifest(tmp_path / "c")
        assert reloaded(service, model="b") == {"a": "loaded", "b": "loaded"}
        assert service.loader.order == ["a", "b", "b"]
        error(service.reload(model="c"), 404)
        service.loader.broken["b"] = BundleError("b is torn.")
        assert "b is torn." in error(service.reload(model="b"), 422)["message"]
        assert service.generate("b").status_code == 200


def test_a_reload_over_http_names_no_directory_where_there_are_several_models(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b") as service:
        found = error(service.reload(bundle=str(tmp_path / "a")), 422)
        assert found["field"] == "bundle"
        assert "leave bundle out" in found["message"]


def test_a_directory_without_any_bundle_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "models", "a", "b") as service:
        (tmp_path / "models").rename(tmp_path / "elsewhere")
        assert "cannot be read" in error(service.reload(), 422)["message"]
        (tmp_path / "models").mkdir()
        assert "there is no bundle in" in error(service.reload(), 422)["message"]
        assert service.states() == {"a": "loaded", "b": "loaded"}
        assert service.generate("a").status_code == 200


def test_no_request_is_dropped_by_reloads_that_replace_and_remove(tmp_path: Path) -> None:
    """Two clients of each model ask without a pause; each engine of the one that is replaced answers some."""
    found: set[tuple[str, int]] = set()
    over = threading.Event()
    with serving(tmp_path, "a", "b", "c") as service:

        def ask(number: int) -> None:
            name = "abc"[number % 3]
            while not over.is_set():
                found.add((name, service.generate(name, inputs="facade").status_code))

        with threads_beside(6, ask):
            try:
                wait_for(lambda: service.engine("a").submitted and ("c", 200) in found)
                for version in range(4):
                    write_manifest(tmp_path / "a", version=f"new {version}")
                    reloaded(service)
                    assert len(service.loader.engines["a"]) == version + 2
                    wait_for(lambda: service.engine("a").submitted)
                (tmp_path / "c").rename(tmp_path / ".c")
                reloaded(service)
                wait_for(lambda: ("c", 404) in found)
            finally:
                over.set()
        assert found == {("a", 200), ("b", 200), ("c", 200), ("c", 404)}


def test_what_runs_on_a_removed_model_finishes_and_what_waits_for_it_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, "a", "b", "c", max_loaded=1, default_model="a") as service, ThreadPoolExecutor(2) as pool:
        engine = service.engine("a")
        engine.pause_after = 1
        running = pool.submit(service.generate, "a")
        wait_for(engine.count_running)
        waiting = pool.submit(service.generate, "b")
        wait_for(lambda: service.states()["b"] == "loading")
        for name in ("a", "b"):
            (tmp_path / name).rename(tmp_path / f".{name}")
        assert reloaded(service) == {"c": "unloaded"}
        assert error(waiting.result(), 404)["message"] == "There is no model 'b' here; there is 'c'."
        engine.resume()
        assert running.result().status_code == 200


def test_reloading_wants_an_admin_key_as_with_one_bundle(tmp_path: Path) -> None:
    with serving(tmp_path, "a") as service:
        assert service.client.post("/v1/reload", json={}).status_code == 401
        assert service.client.post("/v1/reload", json={}, headers=KEY).status_code == 200


def test_language_pairs_of_a_model_that_is_not_there_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = (LanguagePair("a", "en", "de"), LanguagePair("elsewhere", "en", "fr"))
    with caplog.at_level("WARNING", "attendant"), serving(tmp_path, "a", language_pairs=pairs):
        pass
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["--language-pairs has 'elsewhere', and no model has that name; there is 'a'"]
