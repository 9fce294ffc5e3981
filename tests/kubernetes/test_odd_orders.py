# SPDX-License-Identifier: Apache-2.0
"""What an operator may do at three in the morning: running brokers are left alone, and new ones can be created."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import HELM
from tests.deploy.files import DEPLOY
from tests.deploy.manifests import Manifest
from tests.kubernetes.api_server import ApiServer, Refused, until
from tests.kubernetes.brokers import strimzi_pod
from tests.kubernetes.releases import Namespace, probe, sidecars

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def space(api: ApiServer, namespace: str) -> Namespace:
    return Namespace(api, namespace)


def image(space: Namespace) -> str | None:
    """The image that the sidecar of a new pod has."""
    found = sidecars(space.created(probe("statefulset", "kafka-9"))[0])
    return found[0]["image"] if found else None


def specs(space: Namespace) -> list[tuple[str, Any]]:
    return [(pod["metadata"]["uid"], pod["spec"]) for pod in space.brokers()]


def test_uninstalled_beside_sidecars_and_installed_again(space: Namespace) -> None:
    """A policy that was deleted and made again gives what it says by then."""
    space.install("statefulset")
    space.in_force(probe("statefulset"))
    space.running("statefulset")
    before = specs(space)
    space.uninstall()
    until(lambda: image(space) is None, "pods without a sidecar")
    assert specs(space) == before
    space.kubectl("delete", "pod", "kafka-1")
    space.kubectl("wait", "--for=create", "pod/kafka-1", "--timeout=60s")
    assert [len(sidecars(space.get("pod", f"kafka-{number}"))) for number in range(3)] == [1, 0, 1]
    space.install("statefulset", "--set", "image.tag=0.3.0", release="again")
    until(lambda: image(space) == "weir-capture:0.3.0", "the new sidecar")


def test_rolled_back_or_renamed_it_is_for_new_pods_alone(space: Namespace) -> None:
    space.install("statefulset")
    space.in_force(probe("statefulset"))
    space.running("statefulset")
    before = specs(space)
    space.install("statefulset", "--set", "image.tag=0.3.0", verb="upgrade")
    until(lambda: image(space) == "weir-capture:0.3.0", "the new sidecar")
    space.api.helm("rollback", "weir", "1", "--namespace", space.name)
    until(lambda: image(space) == "weir-capture:0.2.0", "the old sidecar")
    space.install("statefulset", "--set", "cluster=orders", verb="upgrade")
    until(lambda: "weir-orders" in str(space.created(probe("statefulset", "kafka-9"))), "the file's new name")
    assert image(space) == "weir-capture:0.2.0"
    assert specs(space) == before


def test_one_upgrade_leads_from_the_webhook_to_the_policy(space: Namespace) -> None:
    space.install("statefulset", "--set", "injection=webhook")
    assert space.get("deployment", "weir-kafka-webhook")
    space.install("statefulset", verb="upgrade")
    space.in_force(probe("statefulset"))
    with pytest.raises(Refused, match="NotFound"):
        space.get("deployment", "weir-kafka-webhook")


def test_second_release_of_a_cluster_is_refused_and_first_stays(space: Namespace) -> None:
    space.install("strimzi")
    before = space.get("configmap", "weir-kafka")
    with pytest.raises(Refused, match="invalid ownership"):
        space.install("strimzi", "--set", "listener.port=9094", release="weir-2")
    assert space.get("configmap", "weir-kafka") == before


def test_helm_tells_what_is_to_be_done_until_pods_get_a_sidecar(space: Namespace) -> None:
    level = "pod-security.kubernetes.io/enforce"
    space.api.kubectl("label", "namespace", space.name, f"{level}-")
    told = space.install("strimzi")
    space.api.shell(told.partition("No pod gets a sidecar yet: ")[2])
    assert "restart one broker" in space.install("strimzi", verb="upgrade")
    space.in_force(probe("strimzi"))


def test_steps_of_the_page_to_the_letter(space: Namespace, tmp_path: Path) -> None:
    space.create(strimzi_pod("kafka-brokers-0"))
    (tmp_path / "kafka.yaml").write_text((HELM / "values" / "strimzi.yaml").read_text())
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    page = page.replace("--namespace kafka", f"--namespace {space.name}").replace(
        "kafka.yaml", f"{tmp_path}/kafka.yaml"
    )
    secret, install, attempt = re.findall(r"^   ```\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    space.api.shell(secret)
    assert space.get("secret", "weir-tokens")["data"].keys() == {"read", "write"}
    space.api.shell(install)
    space.in_force(probe("strimzi", "try"))
    assert not sidecars(space.created(probe("strimzi", "kafka-brokers-1"))[0])
    assert space.api.shell(attempt).strip() == "weir/status: injected weir-capture:0.2.0"
    # What would keep the broker back is told before it is restarted.
    space.create(quota(limits_cpu="10"))
    with pytest.raises(Refused, match=r"failed quota.*limits\.cpu for:.*weir"):
        until(lambda: not space.api.shell(attempt), "the quota")


def quota(**hard: str) -> Manifest:
    named = {name.replace("_", "."): value for name, value in hard.items()}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": named}}


def limited_pod() -> Manifest:
    """A broker's pod that has all that a quota can ask for."""
    pod = strimzi_pod("kafka-brokers-0")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    return pod


def test_quota_that_would_keep_brokers_back_stops_the_chart(space: Namespace) -> None:
    space.create(quota(limits_cpu="10", limits_memory="10Gi", requests_cpu="10", pods="20"))
    with pytest.raises(Refused, match=r"resources lack what the ResourceQuota team asks .* limits\.cpu"):
        space.install("strimzi")
    space.install("strimzi", "--set", "resources.limits.cpu=1")
    space.in_force(limited_pod())


def test_quota_with_defaults_for_what_containers_lack_does_not(space: Namespace) -> None:
    default = {"type": "Container", "default": {"cpu": "2"}}
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "team"}, "spec": {"limits": [default]}}
    space.create(quota(limits_cpu="10"), limits)
    space.install("strimzi")
    space.in_force(limited_pod())


def test_a_quota_of_other_pods_keeps_no_chart_back(space: Namespace) -> None:
    """Pods that end by themselves have one of their own."""
    of_jobs = quota(limits_cpu="10")
    of_jobs["spec"]["scopes"] = ["Terminating"]
    space.create(of_jobs)
    space.install("strimzi")
    space.in_force(limited_pod())
