"""Directories of several models: manifests that can be listed, and a loader of stand-in engines for them."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from attendant.export.manifest import OLDEST, BundleError
from attendant.export.signature import REQUIRED
from attendant.service.http.app import create_app
from attendant.service.models.registry import Models
from attendant.service.settings import Settings
from tests.support.fake_engine import SPECIAL, FakeEngine, make_bundle
from tests.support.serving import wait_for

KEY = {"Authorization": "Bearer key"}


def write_manifest(directory: Path, version: str = "1", weights: int = 10, **changes: Any) -> Path:
    """A bundle that can be listed, with so many bytes of weights, and not be loaded."""
    (directory / "fp32").mkdir(parents=True, exist_ok=True)
    (directory / "fp32" / "weights.bin").write_bytes(b"x" * weights)
    sizes = asdict(make_bundle(directory.parent / ".tokenizers").sizes)
    sizes.pop("head_size")  # a field of its own, where d_model and heads do not say it
    manifest = {
        "format": OLDEST,
        "name": f"bundle of {directory.name}",
        "sizes": sizes,
        "special_ids": SPECIAL,
        "limits": {"max_source_length": 16, "max_target_length": 20},
        "tokenizers": {"source": "source.json", "target": "target.json"},
        "variants": {
            "fp32": {
                "graphs": {name: f"fp32/{name}.onnx" for name in REQUIRED},
                "tolerance": 1e-4,
            }
        },
        "files": {},
        "certificate": {},
        "produced_by": {"attendant": version},
        **changes,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return directory


class Loader:
    """Loads stand-in engines; those of names in `broken` are refused, and all wait until `may_load` is set."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engines: dict[str, list[FakeEngine]] = defaultdict(list)  # in the order in which they were loaded
        self.order: list[str] = []
        self.broken: dict[str, Exception] = {}
        self.may_load = threading.Event()
        self.may_load.set()
        self.asked: list[str] = []
        self.most_alive = 0

    def __call__(self, directory: Path | None) -> FakeEngine:
        assert directory is not None
        name = directory.name
        self.asked.append(name)
        assert self.may_load.wait(20)
        if name in self.broken:
            raise self.broken[name]
        if not directory.is_dir():
            raise BundleError(f"{directory} is not a directory.")
        engine = FakeEngine(make_bundle(self.directory / ".tokenizers", f"bundle of {name}"))
        engine.start()
        self.order.append(name)
        self.engines[name].append(engine)
        self.most_alive = max(self.most_alive, len(self.alive()))
        return engine

    def alive(self) -> list[FakeEngine]:
        return [engine for engines in self.engines.values() for engine in engines if engine._thread.is_alive()]


@dataclass
class Service:
    directory: Path
    client: TestClient
    registry: CollectorRegistry
    loader: Loader

    def generate(self, model: str | None = None, **body: Any) -> Any:
        named = {} if model is None else {"model": model}
        return self.client.post("/v1/generate", json={"inputs": "cat", **named, **body}, headers=KEY)

    def reload(self, **body: Any) -> Any:
        return self.client.post("/v1/reload", json=body, headers=KEY)

    def states(self) -> dict[str, str]:
        return {model["id"]: model["state"] for model in self.listed()}

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get("/v1/models", headers=KEY).json()["data"]
        return found

    def ready(self) -> bool:
        return bool(self.client.get("/readyz").status_code == 200)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"attendant_{name}", labels)

    def engine(self, name: str) -> FakeEngine:
        """The one that was loaded last."""
        return self.loader.engines[name][-1]

    @property
    def models(self) -> Models:
        models: Models = self.client.app.state.parts.models  # type: ignore[attr-defined]
        return models


@contextmanager
def serving(directory: Path, *names: str, loader: Loader | None = None, **settings: Any) -> Iterator[Service]:
    """A service of these models, ready."""
    for name in names:
        write_manifest(directory / name)
    loader, registry = loader or Loader(directory), CollectorRegistry()
    app = create_app(Settings(models=directory, **{"admin_keys": ("key",), **settings}), registry=registry, load=loader)
    with TestClient(app, raise_server_exceptions=False) as client:
        service = Service(directory, client, registry, loader)
        wait_for(service.ready)
        try:
            yield service
        finally:
            for engine in loader.alive():
                engine.resume()
