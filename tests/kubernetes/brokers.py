# SPDX-License-Identifier: Apache-2.0
"""Brokers as their operators and charts make them, as far as a sidecar meets it: pods, or what makes pods."""

from __future__ import annotations

from typing import Any, Final

from tests.deploy.manifests import Manifest

WAYS: Final = ("strimzi", "confluent", "bitnami", "statefulset")
FIRST: Final = {
    "strimzi": "kafka-brokers-0",
    "confluent": "kafka-0",
    "bitnami": "kafka-controller-0",
    "statefulset": "kafka-0",
}
"""The name of each way's first broker."""

_HARDENED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def brokers(way: str, **metadata: Any) -> list[Manifest]:
    """Return what makes three brokers. Strimzi's operator makes the pods itself, so that they have names at once."""
    match way:
        case "strimzi":
            return [strimzi_pod(f"kafka-brokers-{number}", **metadata) for number in range(3)]
        case "confluent":
            labels = {"weir/cluster": "kafka", "platform.confluent.io/type": "kafka"}
            init: list[Manifest] = [{"name": "config-init-container", "image": "init"}]
            return [_stateful_set("kafka", labels, init, {})]
        case "bitnami":
            labels = {"app.kubernetes.io/instance": "kafka", "app.kubernetes.io/component": "controller-eligible"}
            init = [{"name": "prepare-config", "image": "kafka", "securityContext": _HARDENED}]
            return [_stateful_set("kafka-controller", labels, init, {"imagePullSecrets": [{"name": "bitnami"}]})]
        case _:
            return [_stateful_set("kafka", {"app.kubernetes.io/name": "kafka"}, [], {})]


def strimzi_pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """Return a pod as Strimzi's operator makes it."""
    own = {"strimzi.io/cluster": "kafka", "strimzi.io/broker-role": "true", "strimzi.io/pool-name": "brokers"}
    metadata = {"name": name, "labels": own | (labels or {}), "annotations": {"strimzi.io/revision": "1"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec() | spec}


def _stateful_set(name: str, labels: dict[str, str], init: list[Manifest], more: Manifest) -> Manifest:
    template = {"metadata": {"labels": labels}, "spec": _spec() | {"initContainers": init} | more}
    spec = {
        "serviceName": name,
        "replicas": 3,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": template,
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def _spec() -> Manifest:
    container = {
        "name": "kafka",
        "image": "kafka",
        "ports": [{"containerPort": 9092}],
        "securityContext": _HARDENED,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 0,
    }
