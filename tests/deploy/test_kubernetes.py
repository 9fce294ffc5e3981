"""deploy/kubernetes: Kubernetes knows every field of every manifest, and every file of weir passes `weir check`."""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import SchemaNotFoundError, ValidationError

from tests.deploy.manifests import KUBERNETES, Manifest, documents, mutated, rendered, validate
from tests.fakes.pki import Authority
from weir.control.injection import read_sidecars, reviewed
from weir.proxy.config.load import load_config

EXAMPLES = ("strimzi/example", "confluent/example")
FOLDERS = ("base", "monitoring", "admission", "webhook", "strimzi", "confluent", *EXAMPLES)
# Resources of operators, of which kubernetes-validate has no schema: here it is the fields that are used.
PODMONITOR = {
    "selector": {"matchExpressions": [{"key": str, "operator": str}]},
    "podMetricsEndpoints": [
        {
            "port": str,
            "interval": str,
            "authorization": {"type": str, "credentials": {"name": str, "key": str}},
            "relabelings": [{"targetLabel": str, "sourceLabels": [str], "regex": str, "replacement": str}],
        }
    ],
}
OF_OPERATORS = {"PodMonitor", "Kafka", "KafkaNodePool", "Issuer", "Certificate"}


def manifests() -> list[Any]:
    """Every manifest, by its folder, kind and name."""
    return [
        pytest.param(manifest, id=f"{folder}-{manifest['kind']}-{manifest['metadata']['name']}")
        for folder in FOLDERS
        for manifest in rendered(KUBERNETES / folder)
        if manifest["kind"] not in OF_OPERATORS
    ]


def policy(folder: str) -> Manifest:
    (found,) = documents(KUBERNETES / folder / "policy.yaml")
    return found


def broker_pod(name: str, **spec: Any) -> Manifest:
    """A broker's pod as an operator makes it."""
    labels = {"strimzi.io/cluster": "kafka"}
    containers = [{"name": "kafka", "image": "kafka"}]
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers} | spec}


def pods() -> dict[str, Manifest]:
    """A broker's pod in each way of deploying, with its sidecar."""
    (stateful,) = (each for each in rendered(KUBERNETES / "base") if each["kind"] == "StatefulSet")
    (values,) = documents(KUBERNETES / "bitnami" / "values.yaml")
    chart = values["controller"]
    bitnami = broker_pod("kafka-controller-0", initContainers=chart["initContainers"], volumes=chart["extraVolumes"])
    template = stateful["spec"]["template"]
    return {
        "base": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kafka-0"}, "spec": template["spec"]},
        "strimzi": mutated(policy("strimzi"), broker_pod("kafka-brokers-0")),
        "confluent": mutated(policy("admission"), broker_pod("kafka-0")),
        "bitnami": bitnami,
    }


def configmaps() -> dict[str, dict[str, str]]:
    """The files of weir in each way of deploying."""
    folders = ("base", "strimzi", "confluent")
    found = {name: list(rendered(KUBERNETES / name)) for name in folders}
    (values,) = documents(KUBERNETES / "bitnami" / "values.yaml")
    found["bitnami"] = values["extraDeploy"]
    return {
        name: each["data"] for name, resources in found.items() for each in resources if each["kind"] == "ConfigMap"
    }


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods' names are not known here; nobody is asked for them."""

    def unknown(*asked: object, **options: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)


@pytest.mark.parametrize("manifest", manifests())
def test_manifest_is_valid(manifest: Manifest) -> None:
    validate(manifest)


@pytest.mark.parametrize("manifest", manifests())
def test_an_unknown_field_is_not(manifest: Manifest) -> None:
    wrong = copy.deepcopy(manifest)
    wrong["spec" if "spec" in wrong else "metadata"]["podSelectr"] = {}
    with pytest.raises(ValidationError):
        validate(wrong)


@pytest.mark.parametrize("way", ["base", "strimzi", "confluent", "bitnami"])
def test_pod_with_its_sidecar_is_valid(way: str) -> None:
    pod = pods()[way]
    validate(pod)
    sidecar = sidecar_of(pod)
    sidecar["restartPolicies"] = "Always"
    with pytest.raises(ValidationError):
        validate(pod)


@pytest.mark.parametrize("way", ["base", "strimzi", "confluent", "bitnami"])
def test_sidecar_runs_with_no_more_rights_than_it_needs(way: str) -> None:
    pod = pods()[way]
    sidecar = sidecar_of(pod)
    security = sidecar["securityContext"]
    captures = way != "base"
    assert sidecar["restartPolicy"] == "Always"
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]} | ({"add": ["NET_ADMIN"]} if captures else {})
    # Another user than Kafka's: 1000 in Apache's image, 1001 in the others'.
    assert security["runAsUser"] == (0 if captures else 10001)
    mounted = {mount["name"] for mount in sidecar["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize("way", ["base", "strimzi", "confluent", "bitnami"])
def test_sidecar_that_hangs_is_killed_within_ten_seconds(way: str) -> None:
    """Kubernetes' defaults take 30 s, and 30 more until it is killed rather than asked to end."""
    probe = sidecar_of(pods()[way])["livenessProbe"]
    seconds = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert seconds + probe["terminationGracePeriodSeconds"] <= 10
    assert probe["httpGet"]["path"] == "/healthz"


def sidecar_of(pod: Manifest) -> Manifest:
    (sidecar,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "weir")
    assert isinstance(sidecar, dict)
    return sidecar


@pytest.mark.parametrize("folder", ["admission", "strimzi"])
def test_policy_leaves_what_a_pod_has(folder: str) -> None:
    own = broker_pod("kafka-1", initContainers=[{"name": "init"}], volumes=[{"name": "data", "emptyDir": {}}])
    result = mutated(policy(folder), own)
    assert [each["name"] for each in result["spec"]["initContainers"]] == ["init", "weir"]
    assert result["spec"]["volumes"][0] == {"name": "data", "emptyDir": {}}
    validate(result)


@pytest.mark.parametrize(("folder", "label"), [("admission", "capture"), ("strimzi", "strimzi")])
def test_webhook_gives_pods_what_the_policy_gives_them(folder: str, label: str, tmp_path: Path) -> None:
    (configmap,) = (each for each in rendered(KUBERNETES / "webhook") if each["kind"] == "ConfigMap")
    (tmp_path / "sidecars.json").write_text(configmap["data"]["sidecars.json"])
    pod = broker_pod("kafka-brokers-0")
    pod["metadata"]["labels"]["weir.sidecar"] = label
    review = json.dumps({"request": {"uid": "7", "object": pod}}).encode()
    patch = reviewed(review, read_sidecars(tmp_path / "sidecars.json"))["response"]["patch"]
    expected = mutated(policy(folder), pod)["spec"]
    added = [each["value"] for each in json.loads(base64.b64decode(patch)) if each["value"] != []]
    assert added == [*expected["volumes"], *expected["initContainers"]]


@pytest.mark.parametrize("folder", ["admission", "strimzi"])
def test_binding_names_its_policy(folder: str) -> None:
    (binding,) = documents(KUBERNETES / folder / "binding.yaml")
    assert binding["spec"]["policyName"] == policy(folder)["metadata"]["name"]


@pytest.mark.parametrize("way", ["base", "strimzi", "confluent", "bitnami"])
def test_every_file_of_weir_passes_its_check(way: str, tmp_path: Path) -> None:
    """Each broker has one; the sidecar's arguments find it by the pod's name."""
    files = {name: text for name, text in configmaps()[way].items() if name.endswith(".toml")}
    assert {re.sub(r"\d+\.toml$", "", name) for name in files} == {re.sub(r"\d+$", "", pods()[way]["metadata"]["name"])}
    for name, text in (files | secrets(tmp_path) | configmaps()[way]).items():
        moved = re.sub(r'(?<=["=])/(?:etc|run)/[\w-]+/(?=[\w.]+)', f"{tmp_path}/", text)
        (tmp_path / name).write_text(moved)
    for name in files:
        config = load_config(tmp_path / name)
        assert name.endswith(f"-{config.broker_id}.toml")
        assert config.admin.listen.port == 9690
        assert config.cluster is not None
        assert config.cluster.follow_throttles
        peers = {0, 1, 2} - {config.broker_id}
        assert {egress.peer for egress in config.egress} == (peers if way == "base" else set())


def secrets(folder: Path) -> dict[str, str]:
    """The files that the sidecars mount from Secrets, by the last part of their paths."""
    authority = Authority(folder / "authority")
    issued = authority.issue("kafka-kafka")
    key, certificate = Path(issued.key).read_text(), Path(issued.certificate).read_text()
    return {
        "broker.crt": certificate,
        "broker.key": key,
        "broker.pem": certificate + key,
        "ca.crt": Path(authority.ca).read_text(),
        "client.properties": "security.protocol=PLAINTEXT\n",
        "read": "r" * 16,
        "write": "w" * 16,
    }


def test_names_between_brokers_lead_to_the_sidecars_listeners(tmp_path: Path) -> None:
    """In the StatefulSet: what a broker calls a peer is where that peer's egress, or its own ingress, listens."""
    aliases = pods()["base"]["spec"]["hostAliases"]
    by_name = {alias["hostnames"][0]: alias["ip"] for alias in aliases}
    for name, text in configmaps()["base"].items():
        (tmp_path / name).write_text(re.sub(r"/etc/weir-tokens", str(tmp_path), text))
        (tmp_path / "read").write_text("r" * 16)
        (tmp_path / "write").write_text("w" * 16)
        config = load_config(tmp_path / name)
        routes = {egress.peer: egress.listen for egress in config.egress}
        routes[config.broker_id] = config.ingress[1].listen
        listening = {f"kafka-{peer}.replication": (listen.host, listen.port) for peer, listen in routes.items()}
        assert listening == {name: (address, 9095) for name, address in by_name.items()}


def test_podmonitor_has_the_fields_that_are_known_here() -> None:
    (podmonitor,) = rendered(KUBERNETES / "monitoring")
    assert fits(podmonitor["spec"], PODMONITOR)
    podmonitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    assert not fits(podmonitor["spec"], PODMONITOR)


def fits(node: Any, shape: Any) -> bool:
    """Whether a value has no other fields, and no other types, than its shape says."""
    if isinstance(shape, dict):
        return isinstance(node, dict) and all(key in shape and fits(node[key], shape[key]) for key in node)
    if isinstance(shape, list):
        return isinstance(node, list) and all(fits(value, shape[0]) for value in node)
    return isinstance(node, shape)


@pytest.mark.parametrize("folder", sorted({*FOLDERS} - {*EXAMPLES, "base"}))
def test_to_delete_the_sidecars_takes_no_broker_away(folder: str) -> None:
    """`kubectl delete --kustomize` ends whatever the folder names; `base` is the brokers with their sidecars."""
    kinds = {each["kind"] for each in rendered(KUBERNETES / folder)}
    assert not kinds & {"Kafka", "KafkaNodePool", "StatefulSet", "PersistentVolumeClaim"}
    if folder != "webhook":  # it has a namespace of its own
        assert "Namespace" not in kinds


def test_resources_of_operators_are_those_that_are_not_validated() -> None:
    kinds = set()
    for manifest in (each for folder in FOLDERS for each in rendered(KUBERNETES / folder)):
        try:
            validate(manifest)
        except SchemaNotFoundError:
            kinds.add(manifest["kind"])
    assert kinds == OF_OPERATORS


@pytest.mark.parametrize("kind", ["Kafka", "KafkaNodePool"])
def test_operators_hand_the_label_to_their_pods(kind: str) -> None:
    """The one field of theirs that sidecars depend on."""
    folder, label = ("confluent", "capture") if kind == "Kafka" else ("strimzi", "strimzi")
    selector = policy("admission" if folder == "confluent" else folder)["spec"]["matchConstraints"]["objectSelector"]
    found = [each["spec"] for each in rendered(KUBERNETES / folder / "example") if each["kind"] == kind]
    labels = [
        spec["podTemplate"]["labels"] if kind == "Kafka" else spec["template"]["pod"]["metadata"]["labels"]
        for spec in found
        if kind == "Kafka" or "broker" in spec["roles"]
    ]
    assert labels == [{"weir.sidecar": label}] == [selector["matchLabels"]]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed: Kustomize comes with it")
@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_renders_the_same(folder: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=True)
    assert by_name(yaml.load_all(done.stdout, yaml.CSafeLoader)) == by_name(rendered(KUBERNETES / folder))


def by_name(found: Iterable[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}
