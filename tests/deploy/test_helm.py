# SPDX-License-Identifier: Apache-2.0
"""deploy/helm/weir: what Helm makes of it for each kind of brokers, held against Kubernetes' schemas."""

from __future__ import annotations

import base64
import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import HELM, NAMESPACE, ChartError, applied, charted, missing
from tests.deploy.manifests import (
    Invalid,
    Manifest,
    SchemaMissing,
    check_hangs_are_ended,
    check_podmonitor,
    sidecar_of,
    validate,
)
from tests.fakes.pki import Authority
from weir.control.injection import read_sidecar, reviewed
from weir.proxy.config.load import load_config

pytestmark = pytest.mark.long

WAYS = ("strimzi", "confluent", "bitnami", "statefulset")
POLICY, WEBHOOK = 36, 35  # Kubernetes' minor versions
EVERYTHING: dict[str, Any] = {"keepBaseline": True, "networkPolicy": {"enabled": True}, "monitoring": {"enabled": True}}
PRIVATE: dict[str, Any] = {"pullSecrets": [{"name": "registry"}]}
OF_OPERATORS = {"PodMonitor", "Issuer", "Certificate"}


@pytest.fixture(autouse=True)
def rendering() -> None:
    """Not when tests are collected, as the first build takes minutes."""
    if (reason := missing()) is not None:
        pytest.skip(reason)


def one(kind: str, found: list[Manifest], name: str = "") -> Manifest:
    (manifest,) = (each for each in found if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return manifest


def broker_pod(**spec: Any) -> Manifest:
    containers = [{"name": "kafka", "image": "kafka"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kafka-brokers-12"},
        "spec": {"containers": containers} | spec,
    }


@functools.cache
def with_sidecar(way: str) -> Manifest:
    (pod,) = applied(one("MutatingAdmissionPolicy", charted(way, POLICY, image=PRIVATE)), broker_pod())
    return pod


@pytest.mark.parametrize("minor", [POLICY, WEBHOOK])
@pytest.mark.parametrize("way", WAYS)
def test_every_manifest_is_valid_and_belongs_to_the_release(way: str, minor: int) -> None:
    found = charted(way, minor, **EVERYTHING)
    unknown = set()
    for manifest in found:
        # What is no namespace's has a name with a dot, which neither a cluster's name nor a namespace's can have.
        in_namespace = manifest["metadata"].get("namespace") == NAMESPACE
        assert in_namespace or manifest["metadata"]["name"] == f"weir-kafka.{NAMESPACE}"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "weir-kafka"
        try:
            validate(manifest)
        except SchemaMissing:
            unknown.add(manifest["kind"])
            continue
        wrong = copy.deepcopy(manifest)
        wrong["spec" if "spec" in wrong else "metadata"]["podSelectr"] = {}
        with pytest.raises(Invalid):
            validate(wrong)
    assert unknown <= OF_OPERATORS
    # Uninstalled, it takes no broker away.
    assert not {each["kind"] for each in found} & {"Namespace", "StatefulSet", "Kafka", "PersistentVolumeClaim"}


@pytest.mark.parametrize("way", WAYS)
def test_policy_gives_a_pod_a_sidecar_with_no_needless_rights(way: str) -> None:
    """The pod is valid by the API's schema, and nothing waits until the sidecar is ready."""
    pod = with_sidecar(way)
    validate(pod)
    sidecar = sidecar_of(pod)
    check_hangs_are_ended(sidecar)
    security = sidecar["securityContext"]
    assert sidecar["restartPolicy"] == "Always"
    # An operator would wait for the one before it restarts the next broker, the kubelet for the other before it starts.
    assert not {"readinessProbe", "startupProbe"} & sidecar.keys()
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {mount["name"] for mount in sidecar["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    broken = copy.deepcopy(pod)
    sidecar_of(broken)["restartPolicies"] = "Always"
    with pytest.raises(Invalid):
        validate(broken)


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_starts_whatever_the_sidecar_lacks(way: str) -> None:
    """A volume that is missing would keep the pod from starting, and a sidecar that ends the broker."""
    pod = with_sidecar(way)
    assert sidecar_of(pod)["args"][:2] == ["run", "--wait"]
    mounted = [volume.get("configMap") or volume.get("secret") for volume in pod["spec"]["volumes"]]
    assert all(source["optional"] is True for source in mounted if source is not None)
    assert one("MutatingAdmissionPolicy", charted(way))["spec"]["failurePolicy"] == "Ignore"
    assert one("MutatingWebhookConfiguration", charted(way, WEBHOOK))["webhooks"][0]["failurePolicy"] == "Ignore"


@pytest.mark.parametrize("way", WAYS)
def test_sidecar_has_not_the_brokers_token_for_the_api_server(way: str) -> None:
    pod = with_sidecar(way)
    paths = {mount["mountPath"]: mount["name"] for mount in sidecar_of(pod)["volumeMounts"]}
    name = paths["/var/run/secrets/kubernetes.io/serviceaccount"]
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == name)
    assert volume.keys() == {"name", "emptyDir"}


def test_policy_leaves_what_a_pod_has() -> None:
    secrets = [{"name": "own"}, {"name": "registry"}]
    volumes = [{"name": "data", "emptyDir": {}}]
    own = broker_pod(initContainers=[{"name": "init"}], volumes=volumes, imagePullSecrets=secrets)
    own["metadata"]["annotations"] = {"a": "b"}
    (result,) = applied(one("MutatingAdmissionPolicy", charted("strimzi", image=PRIVATE)), own)
    assert result["metadata"]["annotations"] == {"a": "b", "weir/status": "injected weir-capture:0.2.0"}
    assert result["spec"]["imagePullSecrets"] == secrets
    assert [each["name"] for each in result["spec"]["initContainers"]] == ["init", "weir"]
    assert result["spec"]["volumes"][0] == {"name": "data", "emptyDir": {}}


@pytest.mark.parametrize("way", WAYS)
def test_webhook_gives_pods_what_the_policy_gives_them(way: str, tmp_path: Path) -> None:
    before = charted(way, WEBHOOK, image=PRIVATE)
    file = tmp_path / "sidecar.json"
    file.write_text(one("ConfigMap", before, "webhook")["data"]["sidecar.json"])
    pod = broker_pod()
    review = json.dumps({"request": {"uid": "7", "object": pod}}).encode()
    patch = reviewed(review, read_sidecar(file))["response"]["patch"]
    expected, status = with_sidecar(way)["spec"], with_sidecar(way)["metadata"]["annotations"]["weir/status"]
    added = [each["value"] for each in json.loads(base64.b64decode(patch)) if each["value"] not in ([], {})]
    assert added == [status, *expected["volumes"], *expected["initContainers"], *expected["imagePullSecrets"]]
    # To the same pods.
    (webhook,), policy = one("MutatingWebhookConfiguration", before)["webhooks"], charted(way, POLICY)
    spec = one("MutatingAdmissionPolicy", policy)["spec"]
    binding = one("MutatingAdmissionPolicyBinding", policy)["spec"]
    assert webhook["objectSelector"] == spec["matchConstraints"]["objectSelector"]
    assert webhook["rules"] == spec["matchConstraints"]["resourceRules"]
    assert webhook["matchConditions"] == spec["matchConditions"]
    assert webhook["namespaceSelector"] == binding["matchResources"]["namespaceSelector"]
    named = {"kubernetes.io/metadata.name": NAMESPACE, "pod-security.kubernetes.io/enforce": "privileged"}
    opted_out = {"key": "weir/inject", "operator": "NotIn", "values": ["false"]}
    assert webhook["namespaceSelector"] == {"matchLabels": named, "matchExpressions": [opted_out]}


def test_pods_that_get_no_sidecar() -> None:
    """One of the node's network would have the node captured."""
    policy = one("MutatingAdmissionPolicy", charted("strimzi"))
    nameless = broker_pod()
    nameless["metadata"] = {"generateName": "kafka-"}
    misspelt = broker_pod()
    misspelt["metadata"]["labels"] = {"weir/inject": "flase"}
    left = [broker_pod(hostNetwork=True), broker_pod(initContainers=[{"name": "weir"}]), nameless, misspelt]
    left += [broker_pod(containers=[{"name": "weir"}]), broker_pod(volumes=[{"name": "weir-ca"}])]
    assert not any("annotations" in pod["metadata"] for pod in applied(policy, *left))
    assert policy["spec"]["matchConstraints"]["objectSelector"] == {
        "matchLabels": {"strimzi.io/cluster": "kafka", "strimzi.io/broker-role": "true"},
        "matchExpressions": [{"key": "weir/inject", "operator": "NotIn", "values": ["false"]}],
    }


def test_one_broker_gets_a_sidecar_before_the_others() -> None:
    first, other = broker_pod(), broker_pod()
    other["metadata"] = {"name": "kafka-brokers-1"}
    policy = one("MutatingAdmissionPolicy", charted("strimzi", onlyPods=["kafka-brokers-12", "kafka-brokers-7"]))
    assert ["initContainers" in pod["spec"] for pod in applied(policy, first, other)] == [True, False]


def test_webhook_outlives_a_node_and_is_restarted_with_its_file() -> None:
    found = charted("strimzi", WEBHOOK)
    deployment = one("Deployment", found)["spec"]
    labels = deployment["selector"]["matchLabels"]
    assert deployment["replicas"] == 2
    assert deployment["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == labels
    assert one("PodDisruptionBudget", found)["spec"]["selector"]["matchLabels"] == labels
    assert one("Service", found)["spec"]["selector"] == labels == deployment["template"]["metadata"]["labels"]
    other = one("Deployment", charted("strimzi", WEBHOOK, image={"tag": "0.3.0"}))["spec"]
    checksums = [each["template"]["metadata"]["annotations"] for each in (deployment, other)]
    assert checksums[0] != checksums[1]


@pytest.mark.parametrize("way", WAYS)
def test_one_file_serves_every_broker(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = {"leader.recovery.throttled.rate": 50_000_000, "under.min.isr": "throttled"}
    files = one("ConfigMap", charted(way, throttle=throttle, extraConfig="[fetch]\nresponse_max_bytes = 5"))["data"]
    issued = (authority := Authority(tmp_path / "authority")).issue("kafka-kafka")
    secrets = {
        "weir-keys/broker.crt": Path(issued.certificate).read_text(),
        "weir-keys/broker.key": Path(issued.key).read_text(),
        "weir-ca/ca.crt": Path(authority.ca).read_text(),
        "weir-ca/ca-2026.crt": Path(Authority(tmp_path / "old").ca).read_text(),
        "weir-client/client.properties": "security.protocol=PLAINTEXT\n",
        "weir-tokens/read": "r" * 16,
        "weir-tokens/write": "w" * 16,
    }
    for name, text in {**{f"weir/{name}": text for name, text in files.items()}, **secrets}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("/etc/", f"{tmp_path}/"))
    for broker_id in (0, 31):
        monkeypatch.setenv("POD_NAME", f"kafka-brokers-{broker_id}")
        config = load_config(tmp_path / "weir" / "weir.toml")
        assert config.broker_id == broker_id
        assert config.cluster is not None
        assert config.cluster.follow_throttles
        assert config.capture is not None
        assert not config.egress
        assert config.fetch.response_max_bytes == 5
        assert config.throttle.leader_recovery_rate == 50_000_000
        assert (config.capture.tls is not None) == (way == "strimzi")


def test_brokers_that_count_from_100() -> None:
    text = one("ConfigMap", charted("bitnami", brokerIdOffset=100))["data"]["weir.toml"]
    assert text.startswith('broker_id = "env:POD_NAME+100"\n')


def test_two_clusters_of_a_namespace_have_no_name_in_common() -> None:
    def names(cluster: str, minor: int) -> set[tuple[str, str]]:
        found = charted("strimzi", minor, cluster=cluster, **EVERYTHING)
        return {(each["kind"], each["metadata"]["name"]) for each in found}

    for minor in (POLICY, WEBHOOK):
        assert not names("orders", minor) & names("logs", minor)


def test_the_image_is_named_in_one_place() -> None:
    digest = f"sha256:{'0' * 64}"
    image = {"repository": "registry.example/weir-capture", "digest": digest}
    text = json.dumps(charted("strimzi", WEBHOOK, image=image) + charted("strimzi", POLICY, image=image))
    assert text.count(f"registry.example/weir-capture@{digest}") == 5  # the status tells it, too
    assert "weir-capture:" not in text


def test_ipv6_pods_have_a_port_that_the_api_server_reaches() -> None:
    found = charted("strimzi", WEBHOOK, adminListen="[::]:9690", webhook={"port": 10250})
    assert '\n[admin]\nlisten = "[::]:9690"\n' in one("ConfigMap", found, "weir-kafka")["data"]["weir.toml"]
    (container,) = one("Deployment", found)["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "--listen=[::]:10250"
    assert container["ports"] == [{"name": "https", "containerPort": 10250}]
    assert one("Service", found)["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]


def test_brokers_without_a_policy_are_not_cut_off() -> None:
    assert "NetworkPolicy" not in {each["kind"] for each in charted("strimzi")}
    policy = one("NetworkPolicy", charted("strimzi", **EVERYTHING))["spec"]
    assert [each["port"] for rule in policy["ingress"] for each in rule["ports"]] == [9690]


def test_podmonitor_misses_a_broker_without_a_sidecar() -> None:
    found = charted("strimzi", monitoring={"enabled": True, "labels": {"release": "stack"}})
    podmonitor = one("PodMonitor", found)
    check_podmonitor(podmonitor)
    assert podmonitor["metadata"]["labels"]["release"] == "stack"
    spec = one("MutatingAdmissionPolicy", found)["spec"]
    assert podmonitor["spec"]["selector"] == spec["matchConstraints"]["objectSelector"]
    assert "PodMonitor" not in {each["kind"] for each in charted("strimzi")}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"podSelectr": {}}, "podSelectr"),
        ({"podSelector": None}, "podSelector"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"injection": "sidecar"}, "injection"),
        ({"podSelector": {"weir/inject": "yes"}}, "inject': value must be 'true'"),
        ({"cluster": "a.b"}, "cluster"),
        ({"listener": {"port": 0}}, "port"),
        ({"resources": {"limits": {"memory": "1Gx"}}}, "memory"),
        ({"resources": {"requests": {"memory": "1.5Gi"}}}, "requests.memory is above resources.limits.memory"),
        ({"image": {"repository": "Weir capture"}}, "repository"),
        ({"listener": {"tls": {"caSecretName": ""}}}, "caSecretName is missing"),
    ],
)
def test_values_that_are_wrong_are_told(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ChartError, match=told):
        charted("strimzi", **values)


def test_values_that_say_not_which_pods_are_refused() -> None:
    with pytest.raises(ChartError, match="podSelector"):
        charted("")


def test_every_preset_is_tested() -> None:
    assert {path.stem for path in (HELM / "values").iterdir()} == set(WAYS)
