# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: Kubernetes knows every field of every manifest, and every file of weir passes `weir check`."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import (
    KUBERNETES,
    Invalid,
    Manifest,
    check_hangs_are_ended,
    rendered,
    sidecar_of,
    validate,
)
from weir.proxy.config.load import load_config

pytestmark = pytest.mark.long

BASE = KUBERNETES / "base"


def manifests() -> list[Any]:
    """Every manifest, by its kind and name. None is an operator's, which a cluster may lack."""
    return [pytest.param(each, id=f"{each['kind']}-{each['metadata']['name']}") for each in rendered(BASE)]


def of_base(kind: str) -> Manifest:
    (found,) = (each for each in rendered(BASE) if each["kind"] == kind)
    return found


def pod() -> Manifest:
    """A broker's pod of the StatefulSet, with its sidecar."""
    template = of_base("StatefulSet")["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kafka-0"}, "spec": template["spec"]}


@pytest.mark.parametrize("manifest", manifests())
def test_manifest_is_valid(manifest: Manifest) -> None:
    validate(manifest)


@pytest.mark.parametrize("manifest", manifests())
def test_an_unknown_field_is_not(manifest: Manifest) -> None:
    wrong = copy.deepcopy(manifest)
    wrong["spec" if "spec" in wrong else "metadata"]["podSelectr"] = {}
    with pytest.raises(Invalid):
        validate(wrong)


def test_pod_with_its_sidecar_is_valid() -> None:
    validate(pod())
    wrong = pod()
    sidecar_of(wrong)["restartPolicies"] = "Always"
    with pytest.raises(Invalid):
        validate(wrong)


def test_sidecar_runs_with_no_rights() -> None:
    sidecar = sidecar_of(pod())
    security = sidecar["securityContext"]
    assert sidecar["restartPolicy"] == "Always"
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["runAsUser"] == 10001  # another user than Kafka's, 1000 in Apache's image
    mounted = {mount["name"] for mount in sidecar["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod()["spec"]["volumes"]}


def test_sidecar_that_hangs_is_killed_within_ten_seconds() -> None:
    check_hangs_are_ended(sidecar_of(pod()))


def test_brokers_are_restarted_one_by_one_when_all_is_in_sync(tmp_path: Path) -> None:
    """The probe's own words are run, with a kafka-topics.sh that says what it is told."""
    spec = of_base("StatefulSet")["spec"]
    assert spec["minReadySeconds"] >= 10
    (broker,) = spec["template"]["spec"]["containers"]
    shell, flag, words = broker["startupProbe"]["exec"]["command"]
    tool = tmp_path / "kafka-topics.sh"
    words = words.replace("/opt/kafka/bin/kafka-topics.sh", str(tool))
    assert str(tool) in words
    for says, ends, is_ready in (("", 0, True), ("Topic: a Isr: 1", 0, False), ("", 1, False)):
        tool.write_text(f"#!/bin/sh\necho '{says}'\nexit {ends}\n")
        tool.chmod(0o755)
        done = subprocess.run([shell, flag, words], check=False)
        assert (done.returncode == 0) is is_ready
    assert of_base("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_every_file_of_weir_passes_its_check(tmp_path: Path) -> None:
    """Each broker has one; the sidecar's arguments find it by the pod's name."""
    files = of_base("ConfigMap")["data"]
    (tmp_path / "read").write_text("r" * 16)
    (tmp_path / "write").write_text("w" * 16)
    aliases = pod()["spec"]["hostAliases"]
    by_name = {alias["hostnames"][0]: alias["ip"] for alias in aliases}
    for name, text in files.items():
        (tmp_path / name).write_text(re.sub(r"/etc/weir-tokens", str(tmp_path), text))
        config = load_config(tmp_path / name)
        assert name == f"kafka-{config.broker_id}.toml"
        assert config.admin.listen.port == 9690
        assert config.cluster is not None
        assert config.cluster.follow_throttles
        # What a broker calls a peer is where that peer's egress, or its own ingress, listens.
        routes = {egress.peer: egress.listen for egress in config.egress}
        assert routes.keys() == {0, 1, 2} - {config.broker_id}
        routes[config.broker_id] = config.ingress[1].listen
        listening = {f"kafka-{peer}.replication": (listen.host, listen.port) for peer, listen in routes.items()}
        assert listening == {name: (address, 9095) for name, address in by_name.items()}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed: Kustomize comes with it")
def test_kustomize_renders_the_same() -> None:
    done = subprocess.run(["kubectl", "kustomize", BASE], capture_output=True, text=True, check=True)
    assert by_name(yaml.load_all(done.stdout, yaml.CSafeLoader)) == by_name(rendered(BASE))


def by_name(found: Iterable[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}
