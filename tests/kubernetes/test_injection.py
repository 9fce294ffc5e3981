# SPDX-License-Identifier: Apache-2.0
"""Who gets a sidecar on a real API server, by the policy and by the webhook, and that nothing keeps a pod back."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.manifests import Manifest, sidecar_of
from tests.kubernetes.api_server import ApiServer, until
from tests.kubernetes.brokers import FIRST, WAYS, strimzi_pod
from tests.kubernetes.releases import Namespace, probe, refusal, sidecars, webhook

pytestmark = pytest.mark.kubernetes

by_both = pytest.mark.parametrize("injection", ["policy", "webhook"])


class Injecting:
    """Installs a release, and runs its webhook where it has one."""

    def __init__(self, namespace: Namespace, folder: Path, stack: ExitStack) -> None:
        self.namespace = namespace
        self._folder = folder
        self._stack = stack

    def install(self, way: str, injection: str, *options: str, waits_for: Manifest | None = None) -> Namespace:
        self.namespace.install(way, "--set", f"injection={injection}", *options)
        if injection == "webhook":
            self._stack.enter_context(webhook(self.namespace, self._folder / "webhook"))
        self.namespace.in_force(waits_for or probe(way))
        return self.namespace


@pytest.fixture
def injecting(api: ApiServer, namespace: str, tmp_path: Path) -> Iterator[Injecting]:
    with ExitStack() as stack:
        yield Injecting(Namespace(api, namespace), tmp_path, stack)


@by_both
@pytest.mark.parametrize("way", WAYS)
def test_every_broker_gets_one_sidecar(injecting: Injecting, way: str, injection: str) -> None:
    space = injecting.install(way, injection, "--set", "image.pullSecrets[0].name=registry")
    pods = space.running(way)
    for pod in pods:
        assert len(sidecars(pod)) == 1
        assert sidecar_of(pod)["restartPolicy"] == "Always"
        assert pod["metadata"]["annotations"]["weir/status"] == "injected weir-capture:0.2.0"
        assert {"name": "registry"} in pod["spec"]["imagePullSecrets"]
        assert pod["spec"]["containers"][0]["name"] == "kafka"
        # The API server mounts the account's token wherever its path is free.
        token = {mount["mountPath"]: mount["name"] for mount in sidecar_of(pod)["volumeMounts"]}
        assert token["/var/run/secrets/kubernetes.io/serviceaccount"] == "weir-no-token"
        assert "projected" not in json.dumps([v for v in pod["spec"]["volumes"] if v["name"] in token.values()])
    # One that has its sidecar already, as when a pod is made anew from what was stored, gets no second.
    again = copy.deepcopy(pods[0])
    again["metadata"] = {**probe(way)["metadata"], "name": "again-0"}
    (result,) = space.created(again)
    assert result["spec"]["initContainers"] == again["spec"]["initContainers"]
    assert result["spec"]["volumes"] == again["spec"]["volumes"]


def test_policy_and_webhook_give_the_same_and_together_one(injecting: Injecting) -> None:
    """While a cluster is upgraded to 1.36 both may be there for a while."""
    space = injecting.install("strimzi", "webhook")
    (by_webhook,) = space.created(probe("strimzi"))
    space.install("strimzi", "--set", "injection=policy", "--set", "cluster=other", release="other")
    until(lambda: "weir-other" in str(space.created(probe("strimzi"))), "the policy, whose turn is first")
    (by_policy,) = space.created(probe("strimzi"))
    assert len(sidecars(by_policy)) == 1
    assert sidecar_of(by_policy) == sidecar_of(by_webhook)
    assert volumes(by_policy) == json.loads(json.dumps(volumes(by_webhook)).replace("weir-kafka", "weir-other"))


def volumes(pod: Manifest) -> list[Manifest]:
    """A pod's volumes, but for that of its service account, whose name is drawn by lot."""
    return [each for each in pod["spec"]["volumes"] if "projected" not in each]


@by_both
def test_who_gets_none(injecting: Injecting, injection: str) -> None:
    space = injecting.install("strimzi", injection)
    left = {
        "opted out": strimzi_pod("kafka-brokers-0", {"weir/inject": "false"}),
        "misspelt": strimzi_pod("kafka-brokers-0", {"weir/inject": "flase"}),
        "the node's network": strimzi_pod("kafka-brokers-0", hostNetwork=True),
        "a controller": strimzi_pod("kafka-controllers-0", {"strimzi.io/broker-role": "false"}),
        "another cluster": strimzi_pod("logs-brokers-0", {"strimzi.io/cluster": "logs"}),
        "a volume of the sidecar's name": strimzi_pod("kafka-brokers-0", volumes=[{"name": "weir"}, {"name": "data"}]),
        "a container of its name": strimzi_pod("kafka-brokers-0", containers=[{"name": "weir", "image": "weir"}]),
    }
    for why, pod in zip(left, space.created(*left.values()), strict=True):
        assert not sidecars(pod), why
        assert "weir/status" not in pod["metadata"]["annotations"]
    (opted_in,) = space.created(strimzi_pod("kafka-brokers-0", {"weir/inject": "true"}))
    assert sidecars(opted_in)
    # The namespace's label is a switch for all of its brokers at once.
    space.api.kubectl("label", "namespace", space.name, "weir/inject=false")
    space.in_force(probe("strimzi"), injects=False)
    space.api.kubectl("label", "namespace", space.name, "weir/inject-")
    space.in_force(probe("strimzi"))


@by_both
def test_a_canary_is_the_first_by_its_name(injecting: Injecting, injection: str) -> None:
    space = injecting.install("bitnami", injection, "--set", f"onlyPods={{{FIRST['bitnami']}}}")
    pods = {pod["metadata"]["name"]: pod for pod in space.running("bitnami")}
    assert [len(sidecars(pods[name])) for name in sorted(pods)] == [1, 0, 0]
    if injection == "policy":
        space.install("bitnami", verb="upgrade")
        space.in_force(probe("bitnami", "kafka-controller-9"))
        space.kubectl("delete", "pod", "kafka-controller-1")
        space.kubectl("wait", "--for=create", "pod/kafka-controller-1", "--timeout=60s")
        assert sidecars(space.get("pod", "kafka-controller-1"))
        assert not sidecars(space.get("pod", "kafka-controller-2"))


@by_both
@pytest.mark.parametrize("level", ["=baseline", "=restricted", "-"])
def test_where_pod_security_refuses_it_a_broker_starts_without(
    injecting: Injecting, injection: str, level: str
) -> None:
    space = injecting.install("strimzi", injection)
    (given,) = space.created(probe("strimzi"))
    space.api.kubectl("label", "--overwrite", "namespace", space.name, f"pod-security.kubernetes.io/enforce{level}")
    space.in_force(probe("strimzi"), injects=False)
    given["metadata"] = {"name": "kafka-brokers-7"}
    # What it is kept from.
    assert "violates PodSecurity" in refusal(space, "create", "--dry-run=server", "-f", "-", given=given)


def test_a_webhook_that_is_gone_keeps_no_broker_back(injecting: Injecting, tmp_path: Path) -> None:
    space = injecting.namespace
    space.install("strimzi", "--set", "injection=webhook")
    with webhook(space, tmp_path / "webhook"):
        space.in_force(probe("strimzi"))
    (pod,) = space.created(probe("strimzi"))
    assert not sidecars(pod)
