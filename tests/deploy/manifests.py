"""The manifests of deploy/kubernetes: rendered as by Kustomize, and checked as an API server checks fields."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.deploy.files import DEPLOY

KUBERNETES = DEPLOY / "kubernetes"
VERSION = "1.36"
Manifest = dict[str, Any]

_OBJECT = re.compile(r"\b(?:Object(?:\.\w+)*|JSONPatch)\{")


def documents(path: Path) -> list[Manifest]:
    """The documents of a file of YAML."""
    return copy.deepcopy(_parsed(path))


@functools.cache
def _parsed(path: Path) -> list[Manifest]:
    return list(yaml.load_all(path.read_text(), yaml.CSafeLoader))


def rendered(folder: Path) -> Iterator[Manifest]:
    """What `kubectl kustomize` makes of a folder. These kustomizations use nothing but resources."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    assert kustomization.keys() == {"apiVersion", "kind", "resources"}
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        yield from rendered(path) if path.is_dir() else documents(path)


def validate(manifest: Manifest) -> None:
    """Check a manifest strictly, by the schemas of Kubernetes. Raises ValidationError, or SchemaNotFoundError."""
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def mutated(policy: Manifest, pod: Manifest) -> Manifest:
    """Apply the one mutation of a MutatingAdmissionPolicy: a list of JSONPatch, each of which adds to a list.

    The objects of these expressions are flow mappings of YAML once their types are taken out.
    """
    (mutation,) = policy["spec"]["mutations"]
    _, _, patches = mutation["jsonPatch"]["expression"].partition("+\n[")
    values = {f"variables.{each['name']}": _text(each["expression"], pod) for each in policy["spec"]["variables"]}
    result = copy.deepcopy(pod)
    for patch in _replaced(yaml.load("[" + _OBJECT.sub("{", patches), yaml.CSafeLoader), values):
        root, table, field, end = patch["path"].split("/")
        assert (patch["op"], root, table, end) == ("add", "", "spec", "-")
        result["spec"].setdefault(field, []).append(patch["value"])
    return result


def _text(expression: str, pod: Manifest) -> str:
    """Evaluate a sum of string literals and of the pod's name and labels."""
    parts = []
    for part in re.split(r"\s*\+\s*", expression.strip()):
        if (literal := re.fullmatch(r"'([^']*)'", part)) is not None:
            parts.append(literal[1])
        elif (label := re.fullmatch(r"object\.metadata\.labels\['([^']*)'\]", part)) is not None:
            parts.append(pod["metadata"]["labels"][label[1]])
        else:
            assert part == "object.metadata.name"
            parts.append(pod["metadata"]["name"])
    return "".join(parts)


def _replaced(node: Any, values: dict[str, str]) -> Any:
    """Put values in the place of their names, in everything below a node."""
    if isinstance(node, dict):
        return {key: _replaced(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [_replaced(value, values) for value in node]
    return values.get(node, node) if isinstance(node, str) else node
