"""Renders the kustomizations of this directory, where kustomize itself may not be at hand.

It knows what they use and refuses the rest: resources, components, namespace, images, and patches that add and remove.
`deploy/check_kubernetes.py` compares it with `kubectl kustomize`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
KINDS = ("Kustomization", "Component")
FIELDS = {"apiVersion", "kind", "resources", "components", "patches", "namespace", "images"}


class KustomizeError(Exception):
    pass


def render(directory: Path) -> list[Resource]:
    """The resources of a kustomization, in the order in which they are named."""
    return _render(directory, [])


def _render(directory: Path, resources: list[Resource]) -> list[Resource]:
    """`resources` with what a kustomization adds to them and changes in them."""
    path = directory / "kustomization.yaml"
    described = yaml.safe_load(path.read_text(encoding="utf-8"))
    unknown = set(described) - FIELDS
    if unknown or described["kind"] not in KINDS:
        raise KustomizeError(f"{path}: {', '.join(sorted(unknown)) or described['kind']} is not known here.")
    for name in described.get("resources", ()):
        place = directory / name
        resources = [*resources, *(render(place) if place.is_dir() else _read(place))]
    for name in described.get("components", ()):
        resources = _render(directory / name, resources)
    for patch in described.get("patches", ()):
        _patch(resources, patch)
    for resource in resources:
        if "namespace" in described:
            resource["metadata"]["namespace"] = described["namespace"]
        for image in described.get("images", ()):
            _rename_image(resource, image)
    return resources


def _read(path: Path) -> list[Resource]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _patch(resources: list[Resource], patch: dict[str, Any]) -> None:
    kind, name = patch["target"]["kind"], patch["target"]["name"]
    for resource in resources:
        if (resource["kind"], resource["metadata"]["name"]) == (kind, name):
            for operation in yaml.safe_load(patch["patch"]):
                _apply(resource, operation)


def _apply(resource: Resource, operation: dict[str, Any]) -> None:
    """One operation of RFC 6902."""
    *parents, last = operation["path"].strip("/").split("/")
    place: Any = resource
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    if operation["op"] == "remove":
        del place[last]
    elif operation["op"] == "add" and last == "-":
        place.append(operation["value"])
    elif operation["op"] == "add":
        place[last] = operation["value"]
    else:
        raise KustomizeError(f"{operation['op']} is no operation that is known here.")


def _rename_image(resource: Resource, image: dict[str, str]) -> None:
    pod = resource["spec"].get("template", {}).get("spec", {})
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
