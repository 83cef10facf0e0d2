"""What a rendered manifest must satisfy: the published schema of its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

DIRECTORY = Path(__file__).parent / "kubernetes"
KUBERNETES_VERSION = "1.34"  # preStop's `sleep` is stable from there on
SCHEMAS = {  # of kinds that are not built in
    "ScaledObject": "scaledobject.json",
    "ServiceMonitor": "servicemonitor.json",
    "PrometheusRule": "prometheusrule.json",
}


def overlays() -> list[Path]:
    """Every kustomization that can be applied."""
    return [DIRECTORY / "base", *sorted((DIRECTORY / "overlays").iterdir())]


def check(resource: dict[str, Any]) -> str:
    """The schema that a resource satisfies; an exception tells what is wrong with it."""
    name = SCHEMAS.get(resource["kind"])
    if name is None:
        used: str = kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)
        return f"Kubernetes {used}"
    schema = json.loads((DIRECTORY / "schemas" / name).read_text(encoding="utf-8"))
    jsonschema.validate(resource, schema, cls=jsonschema.Draft202012Validator)
    return f"schemas/{name}"
