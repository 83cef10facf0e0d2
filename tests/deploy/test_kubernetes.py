"""The Kubernetes manifests: valid by the schema of every kind, and in agreement with the program that they run."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from attendant.common.version import VERSION
from attendant.service.http.routes import ENDPOINTS, MODEL_ENDPOINTS
from attendant.service.http.server import LAST_BYTES_SECONDS
from attendant.service.settings import Settings
from attendant.service.watch.metrics import Metrics
from deploy import kustomize, manifests, prometheus_rule

ROOT = Path(__file__).parents[2]
OVERLAYS = {path.name: path for path in manifests.overlays()}
Resources = dict[tuple[str, str], dict[str, Any]]


def rendered(overlay: str) -> Resources:
    return by_name(kustomize.render(OVERLAYS[overlay]))


def by_name(resources: list[dict[str, Any]]) -> Resources:
    return {(resource["kind"], resource["metadata"]["name"]): resource for resource in resources}


def pod(overlay: str) -> dict[str, Any]:
    found: dict[str, Any] = rendered(overlay)["Deployment", "attendant"]["spec"]["template"]["spec"]
    return found


BASE = rendered("base")
CONTAINER = pod("base")["containers"][0]
SCALED = rendered("keda")["ScaledObject", "attendant"]["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_satisfies_the_schema_of_its_kind(overlay: str) -> None:
    for resource in kustomize.render(OVERLAYS[overlay]):
        assert manifests.check(resource)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_misspelt_field_is_refused_in_every_resource(overlay: str) -> None:
    """The negative control of the test above."""
    for resource in kustomize.render(OVERLAYS[overlay]):
        resource["spec"]["replicaz"] = 1
        with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
            manifests.check(resource)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_our_rendering_is_kubectl_s(overlay: str) -> None:
    command = ["kubectl", "kustomize", str(OVERLAYS[overlay])]
    output = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout
    assert rendered(overlay) == by_name(list(yaml.safe_load_all(output)))


def test_a_kustomization_that_uses_more_than_the_renderer_knows_is_refused(tmp_path: Path) -> None:
    text = "kind: Kustomization\nresources: []\nnamePrefix: new-\n"
    (tmp_path / "kustomization.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(kustomize.KustomizeError, match="namePrefix is not known"):
        kustomize.render(tmp_path)


def test_an_overlay_is_the_base_with_what_its_components_say() -> None:
    """Everything of the base is in every overlay, and only the Deployment differs."""
    for overlay in OVERLAYS:
        for key, resource in rendered(overlay).items():
            if key in BASE and key[0] != "Deployment":
                assert resource == BASE[key]
        assert set(BASE) <= set(rendered(overlay))


def test_where_an_autoscaler_rules_the_deployment_names_no_number() -> None:
    assert BASE["Deployment", "attendant"]["spec"]["replicas"] == 2
    for overlay, kind in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        resources = rendered(overlay)
        assert "replicas" not in resources["Deployment", "attendant"]["spec"]
        assert resources[kind, "attendant"]["spec"]["scaleTargetRef"]["name"] == "attendant"


def test_the_bundle_comes_from_a_volume_or_from_an_image() -> None:
    volume = pod("keda")
    assert {"name": "bundle", "mountPath": "/bundle", "readOnly": True} in volume["containers"][0]["volumeMounts"]
    assert volume["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "attendant-bundle", "readOnly": True}
    assert pod("hpa")["containers"][0]["image"].startswith("attendant-with-bundle:")
    assert pod("hpa")["volumes"] == pod("base")["volumes"]


def test_a_pod_has_time_for_the_wait_the_grace_and_the_last_bytes() -> None:
    wait = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = wait + Settings().grace_seconds + 2 * LAST_BYTES_SECONDS  # ours, and uvicorn's own
    assert needed < pod("base")["terminationGracePeriodSeconds"] <= needed + 10


def test_no_one_sends_to_a_pod_when_its_stop_begins() -> None:
    """A Service learns of a pod's end from the API; a proxy by its own checks, and Envoy by DNS too."""
    wait = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    cluster = yaml.safe_load((ROOT / "deploy/proxies/envoy.yaml").read_text(encoding="utf-8"))["static_resources"][
        "clusters"
    ][0]
    assert wait > 2 * int(cluster["dns_refresh_rate"].removesuffix("s"))
    assert cluster["ignore_health_on_host_removal"] is True  # else it stays as long as it answers its checks


def test_a_rolling_update_never_has_fewer_pods_than_before() -> None:
    strategy = BASE["Deployment", "attendant"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_a_pod_may_do_no_more_than_the_restricted_standard_of_kubernetes() -> None:
    spec = pod("base")
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    assert f"USER {spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" in dockerfile


def test_kubernetes_sets_no_variables_that_look_like_settings() -> None:
    assert pod("base")["enableServiceLinks"] is False


def test_a_pod_gets_the_whole_processors_that_it_is_limited_to() -> None:
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]
    assert int(CONTAINER["resources"]["limits"]["cpu"]) > 0


def test_the_environment_has_only_settings_that_exist() -> None:
    known = {f"ATTENDANT_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert {variable["name"] for variable in CONTAINER["env"]} <= known


def test_the_image_is_of_the_project_s_version() -> None:
    assert {pod(overlay)["containers"][0]["image"].split(":")[1] for overlay in OVERLAYS} == {VERSION}


def test_probes_ask_paths_and_ports_that_exist() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"http": Settings().port}
    asked = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startup": "/readyz",
        "readiness": "/readyz",
        "liveness": "/healthz",  # a pod that drains is alive
    }
    assert {probe["port"] for probe in asked.values()} == {"http"}


def test_every_selector_selects_the_pods_and_nothing_else() -> None:
    labels = BASE["Deployment", "attendant"]["spec"]["template"]["metadata"]["labels"]
    spread = [each["labelSelector"]["matchLabels"] for each in pod("base")["topologySpreadConstraints"]]
    selectors = [
        BASE["Deployment", "attendant"]["spec"]["selector"]["matchLabels"],
        BASE["PodDisruptionBudget", "attendant"]["spec"]["selector"]["matchLabels"],
        *(BASE["Service", name]["spec"]["selector"] for name in ("attendant", "attendant-pods")),
        *spread,
    ]
    assert all(selector == labels for selector in selectors)


def test_the_service_monitor_scrapes_every_pod_once() -> None:
    monitor = rendered("keda")["ServiceMonitor", "attendant"]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [resource for (kind, _), resource in BASE.items() if kind == "Service"]
    (service,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
    names = [port["name"] for port in service["spec"]["ports"]]
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == names


def test_the_operator_gets_the_alerts_that_prometheus_does() -> None:
    text = (manifests.DIRECTORY / "components/prometheusrule/prometheusrule.yaml").read_text(encoding="utf-8")
    assert text == prometheus_rule.rule(), "run: python -m deploy.prometheus_rule"
    alerts = yaml.safe_load(prometheus_rule.ALERTS.read_text(encoding="utf-8"))
    assert rendered("keda")["PrometheusRule", "attendant"]["spec"] == alerts


def test_a_network_policy_lets_in_the_port_of_the_service_and_lets_out_names_alone() -> None:
    policy = rendered("keda")["NetworkPolicy", "attendant"]["spec"]
    labels = BASE["Deployment", "attendant"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == ["http"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53}


@pytest.mark.parametrize("trigger", SCALED["triggers"], ids=lambda trigger: trigger["name"])
def test_keda_asks_for_metrics_of_the_service(trigger: dict[str, Any]) -> None:
    rendering = Metrics(CollectorRegistry(), ENDPOINTS, MODEL_ENDPOINTS).render()[0].decode()
    (name,) = re.findall(r"\battendant_\w+", trigger["metadata"]["query"])
    assert f"# TYPE {name} gauge" in rendering


def replicas_wanted(triggers: list[dict[str, Any]], levels: dict[str, float]) -> int:
    """By the autoscaler's formula for AverageValue: the most that any trigger wants."""
    wanted = [-(-levels[trigger["name"]] // float(trigger["metadata"]["threshold"])) for trigger in triggers]
    return max(int(max(wanted)), SCALED["minReplicaCount"])


def test_keda_keeps_the_replicas_that_keep_the_queue_empty() -> None:
    """With the queue alone, ten busy replicas that leave nothing waiting would be taken for idle."""
    busy = {"waiting": 0.0, "running": 160.0}
    assert replicas_wanted(SCALED["triggers"][:1], busy) == SCALED["minReplicaCount"]
    assert replicas_wanted(SCALED["triggers"], busy) == 10


def test_keda_adds_replicas_for_a_queue_before_more_can_run() -> None:
    levels = {"waiting": 100.0, "running": 32.0}
    assert replicas_wanted(SCALED["triggers"], levels) > replicas_wanted(SCALED["triggers"], {**levels, "waiting": 0})


def test_a_scrape_that_fails_is_no_empty_queue() -> None:
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in SCALED["triggers"]} == {"false"}
    assert SCALED["minReplicaCount"] <= SCALED["fallback"]["replicas"] <= SCALED["maxReplicaCount"]
    assert SCALED["fallback"]["behavior"] == "currentReplicasIfHigher"  # it takes none away either


def test_rendering_twice_gives_the_same() -> None:
    first = copy.deepcopy(rendered("keda"))
    assert rendered("keda") == first
