# SPDX-License-Identifier: Apache-2.0
"""One API server for all of these tests, and a namespace for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as numbers

import pytest

from tests.kubernetes.api_server import PROGRAMS, ApiServer, running, until

_KINDS = {
    "PodMonitor": ("monitoring.coreos.com", "podmonitors"),
    "Issuer": ("cert-manager.io", "issuers"),
    "Certificate": ("cert-manager.io", "certificates"),
}
"""What the chart makes for operators, whose own definitions are in no package: any fields are taken."""

_namespaces = numbers()


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    if not (PROGRAMS / ".built").exists():
        pytest.skip("Kubernetes' API server is not built: `make kubernetes` does it, where Go is installed")
    with running() as server:
        server.kubectl("apply", "-f", "-", given=[_definition(kind, *names) for kind, names in _KINDS.items()])
        for group, plural in _KINDS.values():
            server.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}", "--timeout=60s")
        yield server


@pytest.fixture
def namespace(api: ApiServer) -> Iterator[str]:
    """A namespace of Pod Security's level privileged; nothing of it, and no release in it, is there afterwards."""
    name = f"prod-{next(_namespaces)}"
    api.kubectl("create", "namespace", name)
    api.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged")
    until(lambda: "default" in api.kubectl("get", "serviceaccounts", "--namespace", name), "a service account")
    yield name
    for release in api.helm("list", "--short", "--namespace", name).split():
        api.helm("uninstall", release, "--namespace", name)
    api.kubectl("delete", "namespace", name, "--wait=false")


def _definition(kind: str, group: str, plural: str) -> dict[str, object]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = "v1"
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }
