# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes: rendered as by Kustomize, and checked as an API server checks fields."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.files import DEPLOY

KUBERNETES = DEPLOY / "kubernetes"
VERSION = "1.36"
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    """The documents of a file of YAML."""
    return copy.deepcopy(_parsed(path))


@functools.cache
def _parsed(path: Path) -> list[Manifest]:
    return list(yaml.load_all(path.read_text(), yaml.CSafeLoader))


def rendered(folder: Path) -> Iterator[Manifest]:
    """What `kubectl kustomize` makes of a folder, whose kustomization uses nothing but resources."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    assert kustomization.keys() == {"apiVersion", "kind", "resources"}
    for name in kustomization["resources"]:
        yield from documents(folder / name)


class Invalid(Exception):
    """A manifest is not as its schema wants it."""


class SchemaMissing(Exception):
    """Kubernetes itself has no such kind: an operator brings it."""


def validate(manifest: Manifest) -> None:
    """Check a manifest strictly, by the schemas of Kubernetes. Raises Invalid or SchemaMissing."""
    import kubernetes_validate  # it takes seconds, also where these tests are only collected

    try:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Invalid(str(error)) from error
    except kubernetes_validate.SchemaNotFoundError as error:
        raise SchemaMissing(str(error)) from error


def sidecar_of(pod: Manifest) -> Manifest:
    """The sidecar's container in a pod."""
    (sidecar,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "weir")
    assert isinstance(sidecar, dict)
    return sidecar


def check_hangs_are_ended(sidecar: Manifest) -> None:
    """A sidecar that hangs is killed within ten seconds.

    Kubernetes' defaults take 30 s, and 30 more until it is killed rather than asked to end.
    """
    probe = sidecar["livenessProbe"]
    seconds = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert seconds + probe["terminationGracePeriodSeconds"] <= 10
    assert probe["httpGet"]["path"] == "/healthz"


# kubernetes-validate has no schema of it: here it is the fields that are used.
_PODMONITOR = {
    "selector": {"matchLabels": dict, "matchExpressions": [dict]},
    "podMetricsEndpoints": [
        {
            "interval": str,
            "authorization": {"type": str, "credentials": {"name": str, "key": str}},
            "relabelings": [
                {"action": str, "targetLabel": str, "sourceLabels": [str], "regex": str, "replacement": str}
            ],
        }
    ],
}


def check_podmonitor(podmonitor: Manifest) -> None:
    """It has no field that is not known, and every broker's pod is one target, with a sidecar or without."""
    assert _fits(podmonitor["spec"], _PODMONITOR)
    (endpoint,) = podmonitor["spec"]["podMetricsEndpoints"]
    for address, target in (("10.0.0.7", "10.0.0.7:9690"), ("fd00::7", "[fd00::7]:9690")):
        found = set()
        for port, container in (("9092", "kafka"), ("9690", "weir"), ("", "other")):
            labels = {
                "__address__": f"{address}:{port}",
                "__meta_kubernetes_pod_ip": address,
                "__meta_kubernetes_pod_name": "kafka-brokers-12",
                "container": container,
            }
            for rule in endpoint["relabelings"]:
                _relabel(rule, labels)
            kept = {name: value for name, value in labels.items() if not name.startswith("__meta")}
            found.add(tuple(sorted(kept.items())))
        ((*told,),) = found
        assert ("__address__", target) in told
        assert ("broker", "12") in told
        assert dict(told)["job"].startswith("weir-")


def _relabel(rule: Manifest, labels: dict[str, str]) -> None:
    """What Prometheus does with one rule."""
    if rule.get("action") == "labeldrop":
        for name in [name for name in labels if re.fullmatch(rule["regex"], name)]:
            del labels[name]
        return
    value = ";".join(labels.get(name, "") for name in rule.get("sourceLabels", ()))
    if (found := re.fullmatch(rule.get("regex", "(.*)"), value)) is not None and "action" not in rule:
        labels[rule["targetLabel"]] = found.expand(rule.get("replacement", "$1").replace("$1", r"\1"))


def _fits(node: Any, shape: Any) -> bool:
    """Whether a value has no other fields, and no other types, than its shape says."""
    if isinstance(shape, dict):
        return isinstance(node, dict) and all(key in shape and _fits(node[key], shape[key]) for key in node)
    if isinstance(shape, list):
        return isinstance(node, list) and all(_fits(value, shape[0]) for value in node)
    return isinstance(node, shape)
