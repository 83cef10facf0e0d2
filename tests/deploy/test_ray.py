"""Replicas on Ray Serve and actors of Ray Data. What needs Ray is left out where it is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from attendant.service.errors import InvalidFieldError
from attendant.service.settings import Settings, SettingsError
from tests.test_layout import files, imports

ROOT = Path(__file__).parents[2]
LOOPBACK = ROOT / "deploy" / "loopback.sh"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own, when it is imported
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def deployment(**arguments: Any) -> Any:
    from attendant.service.ray import serve as ray_serve

    scale, others = ray_serve._read_scale({name: str(value) for name, value in arguments.items()})
    return ray_serve.deployment(ray_serve.replica_settings(others), scale)


def test_only_the_two_modules_of_ray_import_it_and_nothing_imports_them() -> None:
    for path in files("service"):
        found = {
            name for name in imports(path) if name.split(".")[0] == "ray" or name.startswith("attendant.service.ray")
        }
        assert not found or path.parent.name == "ray", path


@needs_ray
def test_a_replica_reserves_as_many_processors_as_it_has_threads() -> None:
    assert deployment(threads=3).ray_actor_options["num_cpus"] == 3
    assert deployment().ray_actor_options["num_cpus"] == 1


@needs_ray
def test_the_engine_refuses_before_ray_does() -> None:
    made = deployment(threads=2, max_rows=16, max_queue_requests=40)
    assert made.max_ongoing_requests > 2 * 16 + 40
    assert made.max_queued_requests == 40
    assert made.backpressure_config.status_code == 429
    assert made.backpressure_config.retry_after_s == 1


@needs_ray
def test_a_request_of_the_most_inputs_fits_in_a_replica_s_queue() -> None:
    from attendant.service.ray.serve import replica_settings

    assert replica_settings({}).max_queue_requests >= replica_settings({}).max_inputs
    assert replica_settings({"max_inputs": "1000"}).max_queue_requests == 1000


@needs_ray
def test_an_argument_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENDANT_THREADS", "2")
    assert deployment().ray_actor_options["num_cpus"] == 2
    assert deployment(threads=3).ray_actor_options["num_cpus"] == 3


@needs_ray
@pytest.mark.parametrize(
    ("options", "field", "sentence"),
    [
        ({"beam": 4}, "text", "beam"),
        ({"temperature": 1.0}, "text", "samples are drawn by a row's number"),
        ({}, "source", "there is no column 'source'; there are id, text"),
        ([], "text", "options is a JSON object"),
    ],
)
def test_a_bad_option_of_a_bulk_run_is_a_sentence(options: Any, field: str, sentence: str) -> None:
    from attendant.service.ray import bulk as ray_bulk

    class Dataset:
        def schema(self) -> Any:
            return SimpleNamespace(names=["id", "text"])

    with pytest.raises(InvalidFieldError, match=sentence):
        ray_bulk.generate(Dataset(), Settings(threads=1), options, field=field)


@needs_ray
def test_replicas_are_added_only_where_more_are_allowed() -> None:
    assert (deployment(replicas=2).num_replicas, deployment(replicas=2)._deployment_config.autoscaling_config) == (
        2,
        None,
    )
    scaling = deployment(replicas=2, max_replicas=5, threads=2)._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 5, 16)


@needs_ray
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"replica": 2}, "replica: unknown setting"),
        ({"replicas": "two"}, "replicas takes a whole number, not 'two'"),
        ({"threads": -1}, "--threads takes"),
        ({"threads": 0}, "threads takes 1 or more"),
    ],
)
def test_a_bad_argument_is_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    from attendant.service.ray.serve import build

    with pytest.raises(SettingsError, match=sentence):
        build(arguments)


@needs_ray
def test_the_committed_configuration_is_one_of_ray_s_and_its_arguments_are_ours() -> None:
    from ray.serve.schema import ServeDeploySchema

    from attendant.service.ray import serve as ray_serve

    content = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text(encoding="utf-8"))
    (application,) = ServeDeploySchema.model_validate(content).applications
    module, _, name = application.import_path.partition(":")
    assert (module, getattr(ray_serve, name)) == (ray_serve.__name__, ray_serve.build)
    ray_serve.build(application.args)


@needs_ray
def test_replicas_of_one_machine_take_ports_one_after_the_other() -> None:
    from attendant.service.ray.serve import bind_first

    with bind_first("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind_first("127.0.0.1", port) as second:
            assert port < second.getsockname()[1] < port + 100


def can_isolate() -> bool:
    return subprocess.run([str(LOOPBACK), "true"], capture_output=True, check=False).returncode == 0


@needs_ray
@pytest.mark.timeout(600)
@pytest.mark.skipif(not can_isolate(), reason="no network of its own can be made here")
def test_what_make_ray_check_sees_is_as_it_should_be() -> None:
    command = [str(LOOPBACK), sys.executable, "-m", "deploy.check_ray"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert done.returncode == 0, "\n".join(table) or done.stderr
    assert table
