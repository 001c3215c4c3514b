"""Does what `kubectl kustomize` does, for the few fields that our overlays use.

Raises BadKustomization for an unknown field instead of ignoring it.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
FIELDS = {
    "Kustomization": {"apiVersion", "kind", "resources", "components", "namespace", "replicas"},
    "Component": {"apiVersion", "kind", "resources", "patches"},
}
VERSIONS = {
    "Kustomization": "kustomize.config.k8s.io/v1beta1",
    "Component": "kustomize.config.k8s.io/v1alpha1",
}
NOT_IN_A_NAMESPACE = {"Namespace"}


class BadKustomization(Exception):
    """Raised for a kustomization that kustomize, or this module, cannot build."""


def documents(path: Path) -> list[Resource]:
    """The YAML documents of a file."""
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]


def build(folder: Path) -> list[Resource]:
    """The resources of an overlay, in the order of their files."""
    resources: list[Resource] = []
    _accumulate(folder, "Kustomization", resources)
    return resources


def _accumulate(folder: Path, kind: str, resources: list[Resource]) -> None:
    file = folder / "kustomization.yaml"
    (about,) = documents(file)
    if (about.get("kind"), about.get("apiVersion")) != (kind, VERSIONS[kind]):
        raise BadKustomization(f"{file} is no {kind}")
    if unknown := set(about) - FIELDS[kind]:
        raise BadKustomization(f"{file}: unknown fields {sorted(unknown)}")
    listed = set()
    for name in about.get("resources", ()):
        path = folder / name
        if path.is_dir():
            _accumulate(path, "Kustomization", resources)
            continue
        listed.add(path.name)
        for one in documents(path):
            if any(_id(one) == _id(other) for other in resources):
                raise BadKustomization(f"{path}: {_id(one)} is there twice")
            resources.append(one)
    for name in about.get("components", ()):
        _accumulate(folder / name, "Component", resources)
    for patch in about.get("patches", ()):
        listed.add(patch["path"])
        _patch(folder, patch, resources)
    for wanted in about.get("replicas", ()):
        scaled = [one for one in resources if one["metadata"]["name"] == wanted["name"]]
        scaled = [one for one in scaled if one["kind"] == "Deployment"]
        if len(scaled) != 1:
            raise BadKustomization(f"{file}: no Deployment {wanted['name']}")
        scaled[0]["spec"]["replicas"] = wanted["count"]
    if "namespace" in about:
        for one in resources:
            if one["kind"] not in NOT_IN_A_NAMESPACE:
                one["metadata"]["namespace"] = about["namespace"]
    if forgotten := {path.name for path in folder.glob("*.yaml")} - listed - {file.name}:
        raise BadKustomization(f"{folder}: {sorted(forgotten)} in no list")


def _patch(folder: Path, patch: dict[str, Any], resources: list[Resource]) -> None:
    if set(patch) != {"path", "target"} or set(patch["target"]) != {"kind"}:
        raise BadKustomization(f"{folder}: a patch has a path, and a target of one kind")
    (change,) = documents(folder / patch["path"])
    targets = [one for one in resources if one["kind"] == patch["target"]["kind"]]
    if not targets:
        raise BadKustomization(f"{folder}: {patch['path']} is for nothing")
    for one in targets:
        name = one["metadata"]["name"]
        merged = _merged(one, change)
        merged["metadata"]["name"] = name
        one.clear()
        one.update(merged)


def _merged(value: Any, change: Any) -> Any:
    """A strategic merge: merges lists of named objects by name, and replaces other lists."""
    if isinstance(value, dict) and isinstance(change, dict):
        keys = [*value, *(key for key in change if key not in value)]
        return {
            key: _merged(value[key], change[key])
            if key in value and key in change
            else copy.deepcopy(value[key] if key in value else change[key])
            for key in keys
        }
    if _named(value) and _named(change):
        changes = {one["name"]: one for one in change}
        merged = [_merged(one, changes.pop(one["name"], {})) for one in value]
        return [*merged, *copy.deepcopy(list(changes.values()))]
    return copy.deepcopy(change)


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value)


def _id(resource: Resource) -> tuple[str, str, str]:
    return resource["apiVersion"], resource["kind"], resource["metadata"]["name"]
