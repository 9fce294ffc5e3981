# SPDX-License-Identifier: Apache-2.0
"""The chart on a real API server: it is taken strictly, goes as it came, and leaves others' objects alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.deploy.chart import charted
from tests.deploy.manifests import KUBERNETES, Manifest
from tests.kubernetes.api_server import ApiServer, Refused, until
from tests.kubernetes.brokers import WAYS, strimzi_pod
from tests.kubernetes.releases import Namespace, probe, sidecars

pytestmark = pytest.mark.kubernetes

EVERYTHING: dict[str, Any] = {
    "keepBaseline": True,
    "networkPolicy": {"enabled": True},
    "monitoring": {"enabled": True, "labels": {"release": "kube-prometheus-stack"}},
    "image": {"pullSecrets": [{"name": "registry"}]},
}
EVERY_OPTION = [
    *("--set", "keepBaseline=true", "--set", "networkPolicy.enabled=true", "--set", "monitoring.enabled=true"),
]
KINDS = (
    "configmaps,secrets,services,serviceaccounts,pods,deployments,statefulsets,poddisruptionbudgets,networkpolicies,"
    "podmonitors,issuers,certificates"
)
OF_THE_CLUSTER = (
    "namespaces,customresourcedefinitions,mutatingadmissionpolicies,mutatingadmissionpolicybindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingwebhookconfigurations,clusterroles,"
    "clusterrolebindings"
)


@pytest.fixture
def space(api: ApiServer, namespace: str) -> Namespace:
    return Namespace(api, namespace)


def objects(space: Namespace) -> dict[tuple[str, str], str]:
    """Every object of the namespace, and of the cluster, with its id; but not Helm's own notes."""
    found = [each for each in (*space.get(KINDS), *space.api.get(OF_THE_CLUSTER)) if not is_going(each)]
    named = {(each["kind"], each["metadata"]["name"]): each["metadata"]["uid"] for each in found}
    return {key: uid for key, uid in named.items() if not key[1].startswith("sh.helm.release")}


def is_going(found: Manifest) -> bool:
    """Whether it is being deleted, as other tests' namespaces are for a while."""
    return "deletionTimestamp" in found["metadata"]


@pytest.mark.parametrize("injection", ["policy", "webhook"])
@pytest.mark.parametrize("way", WAYS)
def test_every_manifest_is_applied_strictly(api: ApiServer, way: str, injection: str) -> None:
    manifests = charted(way, 36, injection=injection, **EVERYTHING)
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    try:
        api.kubectl("create", "namespace", "prod")  # that of the rendered ones
    except Refused as error:
        assert "already exists" in str(error)
    told = api.kubectl(*words, given=manifests)
    assert len(told.splitlines()) == len(manifests)
    wrong = copy.deepcopy(next(each for each in manifests if each["kind"] not in ("ConfigMap", "PodMonitor")))
    wrong["spec" if "spec" in wrong else "metadata"]["podSelectr"] = {}
    with pytest.raises(Refused, match="podSelectr"):
        api.kubectl(*words, given=wrong)


def test_base_is_applied_strictly_and_its_pods_are_restricted(space: Namespace) -> None:
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    space.api.kubectl("label", "--overwrite", "namespace", space.name, restricted)
    space.kubectl("apply", "--server-side", "--validate=strict", "--kustomize", str(KUBERNETES / "base"))
    space.kubectl("wait", "--for=create", "pod/kafka-0", "pod/kafka-1", "pod/kafka-2", "--timeout=60s")
    assert all(sidecars(pod) for pod in space.get("pods"))


@pytest.mark.parametrize("injection", ["policy", "webhook"])
def test_uninstalled_it_takes_nothing_of_others_along(space: Namespace, injection: str) -> None:
    space.create(strimzi_pod("kafka-brokers-0"))
    space.kubectl("create", "secret", "generic", "weir-tokens", "--from-literal=read=r")
    before = objects(space)
    space.install("strimzi", "--set", f"injection={injection}", *EVERY_OPTION)
    made = objects(space).keys() - before.keys()
    assert all(name.startswith("weir-kafka") for _, name in made)
    assert len(made) >= 6
    space.uninstall()
    assert objects(space) == before


def test_a_policy_is_taken_where_kubernetes_has_it(space: Namespace) -> None:
    """Helm asks the API server for its version."""
    space.install("strimzi")
    assert ("MutatingAdmissionPolicy", f"weir-kafka.{space.name}") in objects(space)
    assert ("Deployment", "weir-kafka-webhook") not in objects(space)
    policy = space.api.get("mutatingadmissionpolicy", f"weir-kafka.{space.name}")
    assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings")


def test_a_second_cluster_leaves_the_first_one_its_files(space: Namespace) -> None:
    space.install("strimzi")
    first = space.get("configmap", "weir-kafka")
    space.install(
        "strimzi",
        *("--set", "cluster=logs", "--set", r"podSelector.strimzi\.io/cluster=logs"),
        *("--set", "listener.bootstrapServers=logs-kafka-bootstrap:9091"),
        release="weir-logs",
    )
    assert space.get("configmap", "weir-kafka") == first
    assert "logs-kafka-bootstrap" in space.get("configmap", "weir-logs")["data"]["weir.toml"]
    other = strimzi_pod("logs-brokers-0", {"strimzi.io/cluster": "logs"})
    space.in_force(probe("strimzi"))
    space.in_force(other)
    for pod, name in ((probe("strimzi"), "weir-kafka"), (other, "weir-logs")):
        (given,) = space.created(pod)
        mounted = [volume["configMap"]["name"] for volume in given["spec"]["volumes"] if "configMap" in volume]
        assert mounted == [name]
        assert len(sidecars(given)) == 1
    space.uninstall("weir-logs")
    assert space.get("configmap", "weir-kafka") == first


def test_an_upgrade_is_for_pods_that_are_created_after_it(space: Namespace) -> None:
    space.install("statefulset")
    space.in_force(probe("statefulset"))
    space.running("statefulset")
    space.install("statefulset", "--set", "image.tag=0.3.0", verb="upgrade")
    status = "weir/status"

    def told(pod: Manifest) -> str:
        return str(pod["metadata"].get("annotations", {}).get(status))

    another = probe("statefulset", "kafka-9")
    until(lambda: told(space.created(another)[0]).endswith(":0.3.0"), "the new sidecar")
    assert {told(pod) for pod in space.get("pods")} == {"injected weir-capture:0.2.0"}
    space.kubectl("delete", "pod", "kafka-0")
    space.kubectl("wait", "--for=create", "pod/kafka-0", "--timeout=60s")
    assert told(space.get("pod", "kafka-0")) == "injected weir-capture:0.3.0"


@pytest.mark.parametrize(
    "wrong", ["podSelectr.a=b", "image.digest=latest", "cluster=Kafka", "resources.limits.memory=1Gx"]
)
def test_a_wrong_value_is_refused_and_nothing_is_made(space: Namespace, wrong: str) -> None:
    before = objects(space)
    with pytest.raises(Refused, match="values don't meet the specifications"):
        space.install("strimzi", "--set", wrong)
    assert objects(space) == before
