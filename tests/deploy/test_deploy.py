"""What is deployed agrees with the program: names of metrics, labels, settings, packages and versions."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from attendant.common.version import VERSION
from attendant.service.http.routes import ENDPOINTS, MODEL_ENDPOINTS
from attendant.service.http.server import LAST_BYTES_SECONDS
from attendant.service.settings import Settings
from attendant.service.watch.metrics import MODEL_STATES, OUTCOMES, RELOAD_OUTCOMES, Metrics
from deploy.pin_requirements import versions
from tests.support.children import started
from tests.support.fake_engine import FakeEngine, make_bundle
from tests.support.serving import PATIENCE, wait_for

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


ALERTS = read("deploy/prometheus/alerts.yml")["groups"][0]["rules"]
COMPOSE = read("docker-compose.yml")
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/attendant.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(rule["alert"], rule["expr"]) for rule in ALERTS] + [
    (panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]
]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names that a scrape finds, with their labels."""
    metrics = Metrics(CollectorRegistry(), ENDPOINTS, MODEL_ENDPOINTS)
    engine = FakeEngine(make_bundle(tmp_path_factory.mktemp("bundle")))
    metrics.model("g2p").serving(engine.description)
    metrics.model("g2p").read_levels_from(lambda: [engine], lambda: "loaded")
    metrics.build_info(version="", onnxruntime="", python="")
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {s.name: {*s.labels, "instance", "job"} for family in families for s in family.samples}


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_a_query_uses_only_metrics_and_labels_that_exist(where: str, query: str, series: dict[str, set[str]]) -> None:
    found = re.findall(r"\b((?:attendant|process)_\w+)(?:\{([^}]*)\})?", query)
    assert found or query.startswith("up{"), where
    for name, selector in found:
        assert name in series
        assert set(re.findall(r"(\w+)(?:=~|!=|!~|=)\"", selector)) <= series[name]


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_a_query_selects_only_values_that_a_label_can_have(where: str, query: str) -> None:
    closed = {"endpoint": ENDPOINTS, "outcome": (*OUTCOMES, *RELOAD_OUTCOMES), "state": MODEL_STATES}
    for label, values in re.findall(r"(endpoint|outcome|state)(?:=~|!=|!~|=)\"([^\"]*)\"", query):
        assert set(values.split("|")) <= set(closed[label]), where


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    document, anchor = rule["annotations"]["runbook"].split("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_case_where_it_fires_and_one_where_it_is_quiet(rule: dict[str, Any]) -> None:
    tests = [case for test in read("deploy/prometheus/alerts_test.yml")["tests"] for case in test["alert_rule_test"]]
    outcomes = {bool(case["exp_alerts"]) for case in tests if case["alertname"] == rule["alert"]}
    assert outcomes == {True, False}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_every_case_of_the_alerts_comes_out_as_prometheus_computes_it() -> None:
    command = ["promtool", "test", "rules", str(DEPLOY / "prometheus/alerts_test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_their_own_ids_and_the_provisioned_source() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    source = read("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["uid"]
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {source}
    assert all(panel["description"] and panel["title"] for panel in PANELS)


def test_every_metric_of_the_service_is_on_the_dashboard(series: dict[str, set[str]]) -> None:
    shown = " ".join(query for _, query in QUERIES)
    families = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in series if name.startswith("attendant_")}
    assert [name for name in sorted(families) if name not in shown] == []


def test_a_panel_has_data_before_anything_is_refused() -> None:
    filtered = [query for _, query in QUERIES if query.endswith("> 0") and "$instance" in query]
    assert filtered  # of requests, of which there are some: the scrape itself
    assert [query for query in filtered if "attendant_requests_total" not in query] == []


@pytest.mark.parametrize("service", ["attendant", "attendant-gpu"])
def test_compose_passes_on_every_setting_but_those_it_sets_up_itself(service: str) -> None:
    known = {f"ATTENDANT_{name.upper()}" for name in Settings.__dataclass_fields__}
    own = {"HOST", "PORT", "BUNDLE", "MODELS", "PROVIDER", "TRACING", "GRACE_SECONDS", "CACHE_DIR"}
    passed = {name.partition("=")[0] for name in COMPOSE["services"][service]["environment"]}
    assert passed - {"ATTENDANT_PROVIDER"} == known - {f"ATTENDANT_{name}" for name in own}


@pytest.mark.parametrize("service", ["attendant", "attendant-gpu"])
def test_the_service_runs_with_limits_and_without_rights(service: str) -> None:
    options = COMPOSE["services"][service]
    assert options["read_only"]
    assert options["cap_drop"] == ["ALL"]
    assert options["security_opt"] == ["no-new-privileges:true"]
    assert {"cpus", "mem_limit", "pids_limit", "healthcheck"} <= set(options)


def test_a_stop_waits_longer_than_the_service_drains() -> None:
    needed = Settings().grace_seconds + 2 * LAST_BYTES_SECONDS
    assert int(COMPOSE["services"]["attendant"]["stop_grace_period"].removesuffix("s")) > needed


def test_a_training_that_is_stopped_gets_the_signal_and_exports_nothing(tmp_path: Path) -> None:
    """With a program in attendant's place that notes what happens to it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").touch()
    stand_in = tmp_path / "attendant"
    stand_in.write_text(
        "#!/bin/sh\ntouch $1\n[ $1 = train ] || exit 0\n"
        "trap 'touch checkpoint; exit 0' TERM\ntouch waiting\nwhile :; do sleep 0.1; done\n",
        encoding="utf-8",
    )
    stand_in.chmod(0o755)
    (script,) = COMPOSE["services"]["train"]["command"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = [*COMPOSE["services"]["train"]["entrypoint"], script.replace("$$", "$")]
    with started(command, cwd=tmp_path, env=environment) as process:
        wait_for((tmp_path / "waiting").exists)
        process.terminate()
        assert process.wait(PATIENCE) == 143
    assert (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "export").exists()


def test_every_image_has_a_version_and_ours_is_the_project_s() -> None:
    for name, service in COMPOSE["services"].items():
        tag = service["image"].split(":")[1]
        assert re.match(r"v?\d+\.\d+\.\d+", tag), name
        assert "build" not in service or tag.split("-")[0] == VERSION
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f'image.version="{VERSION}"' in dockerfile
    assert re.findall(r"^FROM (\S+:\S+)", dockerfile, re.MULTILINE) == ["python:3.11.16-slim-bookworm"]


def test_compose_builds_targets_of_the_dockerfile() -> None:
    targets = re.findall(r"^FROM \S+ AS (\S+)", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {s["build"]["target"] for s in COMPOSE["services"].values() if "build" in s} <= set(targets)
    assert targets[-1] == "runtime"  # what is built when none is named


def test_health_checks_are_python() -> None:
    ast.parse(COMPOSE["services"]["attendant"]["healthcheck"]["test"][-1])
    line = re.search(r"CMD (\[\"python\".*\])$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    ast.parse(json.loads(line[1])[-1])


def test_the_image_installs_a_pinned_version_of_all_that_serving_needs() -> None:
    text = (DEPLOY / "requirements.txt").read_text(encoding="utf-8").replace(" \\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pins = {name.lower().replace("_", "-") for name in versions(text)}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+(\s+--hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    assert {re.split(r"[<>=\[]", need)[0].lower() for need in PROJECT["dependencies"]} <= pins
    assert not {"torch", "onnx", "matplotlib"} & pins
