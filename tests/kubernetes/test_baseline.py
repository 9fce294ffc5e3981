# SPDX-License-Identifier: Apache-2.0
"""`keepBaseline` on a real API server, beside what Pod Security itself refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.manifests import Manifest
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.brokers import strimzi_pod
from tests.kubernetes.releases import Namespace, probe, refusal, sidecars

pytestmark = pytest.mark.kubernetes


def _with(**security: Any) -> Manifest:
    pod = strimzi_pod("kafka-brokers-0")
    pod["spec"]["containers"][0]["securityContext"] = security
    return pod


BEYOND: dict[str, Manifest] = {
    "hostNetwork": strimzi_pod("a-0", hostNetwork=True),
    "hostPID": strimzi_pod("a-0", hostPID=True),
    "hostIPC": strimzi_pod("a-0", hostIPC=True),
    "privileged": _with(privileged=True),
    "capability": _with(capabilities={"add": ["NET_ADMIN"]}),
    "hostPath": strimzi_pod("a-0", volumes=[{"name": "data", "hostPath": {"path": "/"}}]),
    "seccomp": _with(seccompProfile={"type": "Unconfined"}),
    "seccomp of the pod": strimzi_pod("a-0", securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "AppArmor": _with(appArmorProfile={"type": "Unconfined"}),
    "SELinux type": _with(seLinuxOptions={"type": "spc_t"}),
    "SELinux user": strimzi_pod("a-0", securityContext={"seLinuxOptions": {"user": "system_u"}}),
    "sysctl": strimzi_pod("a-0", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    "hostProcess": strimzi_pod(
        "a-0", hostNetwork=True, securityContext={"windowsOptions": {"hostProcess": True}, "runAsNonRoot": False}
    ),
}
for _field, _value in {
    "ports": [{"containerPort": 1, "hostPort": 1}],
    "livenessProbe": {"httpGet": {"port": 1, "host": "10.0.0.1"}},
    "lifecycle": {"preStop": {"tcpSocket": {"port": 1, "host": "10.0.0.1"}}},
}.items():
    BEYOND[_field] = strimzi_pod("a-0")
    BEYOND[_field]["spec"]["containers"][0][_field] = _value
WITHIN = {
    "capability": _with(capabilities={"add": ["CHOWN", "NET_BIND_SERVICE"]}),
    "seccomp": _with(seccompProfile={"type": "Localhost", "localhostProfile": "a"}),
    "SELinux": _with(seLinuxOptions={"type": "container_t", "level": "s0"}),
    "sysctl": strimzi_pod(
        "a-0", securityContext={"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}], "runAsUser": 0}
    ),
    "procMount in a user namespace": _with(procMount="Unmasked"),
}
WITHIN["procMount in a user namespace"]["spec"]["hostUsers"] = False


def test_other_pods_are_held_to_pod_securitys_baseline(api: ApiServer, namespace: str) -> None:
    """The same pods in a namespace of that level are refused by Pod Security, and the others taken."""
    space, judge = Namespace(api, namespace), Namespace(api, f"{namespace}-baseline")
    api.kubectl("create", "namespace", judge.name)
    api.kubectl("label", "namespace", judge.name, "pod-security.kubernetes.io/enforce=baseline")
    judge.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    space.install("strimzi", "--set", "keepBaseline=true")
    space.in_force(probe("strimzi"))
    policy = api.get("validatingadmissionpolicy", f"weir-kafka.{space.name}")
    assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings")
    words = ("create", "--dry-run=server", "-f", "-")
    for why, pod in BEYOND.items():
        assert "violates PodSecurity" in refusal(judge, *words, given=pod), why
        assert "beyond the level baseline" in refusal(space, *words, given=pod), why
    for pod in WITHIN.values():
        assert refusal(judge, *words, given=pod) == ""
        (given,) = space.created(pod)
        assert sidecars(given)
    # NET_ADMIN is for weir's own image alone, also in a pod that is there.
    (given,) = space.created(strimzi_pod("a-0"))
    given["metadata"] = {"name": "a-0"}
    given["spec"]["initContainers"][0]["image"] = "weir-capture-not:1"
    assert "NET_ADMIN" in refusal(space, *words, given=given)
    space.create(strimzi_pod("a-0"))
    patch = json.dumps({"spec": {"initContainers": [{"name": "weir", "image": "other:1"}]}})
    assert "NET_ADMIN" in refusal(space, "patch", "pod", "a-0", "--patch", patch)
    debug = {"name": "debug", "image": "busybox", "securityContext": {"privileged": True}}
    extra = json.dumps({"spec": {"ephemeralContainers": [debug]}})
    assert "privileged" in refusal(space, "patch", "pod", "a-0", "--subresource=ephemeralcontainers", "--patch", extra)
    space.kubectl("label", "pod", "a-0", "a=b")
    api.kubectl("delete", "namespace", judge.name, "--wait=false")
