# SPDX-License-Identifier: Apache-2.0
"""Releases of the chart on the API server, and the project's own webhook in the place of the one in pods."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.chart import HELM
from tests.deploy.manifests import Manifest
from tests.fakes.pki import Authority
from tests.kubernetes.api_server import ApiServer, Refused, until
from tests.kubernetes.brokers import FIRST, brokers
from weir.lab.network import Ports

CHART = str(HELM / "weir")


class Namespace:
    """A namespace of the API server: what is done in it, as its administrator types it."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.api = api
        self.name = name

    def kubectl(self, *words: str, given: Any = None) -> str:
        return self.api.kubectl(*words, "--namespace", self.name, given=given)

    def get(self, *words: str) -> Any:
        return self.api.get(*words, "--namespace", self.name)

    def install(self, way: str, *options: str, release: str = "weir", verb: str = "install") -> str:
        """Return what helm prints."""
        values = str(HELM / "values" / f"{way}.yaml")
        return self.api.helm(verb, release, CHART, "--namespace", self.name, "--values", values, *options)

    def uninstall(self, release: str = "weir") -> None:
        self.api.helm("uninstall", release, "--namespace", self.name)

    def create(self, *manifests: Manifest) -> None:
        self.kubectl("create", "-f", "-", given=list(manifests))

    def created(self, *pods: Manifest) -> list[Manifest]:
        """Return what the API server would create, in their order; nothing is kept."""
        found = []
        for pod in pods:
            text = self.kubectl("create", "--dry-run=server", "--output", "json", "-f", "-", given=pod)
            found.append(json.loads(text))
        return found

    def in_force(self, pod: Manifest, *, injects: bool = True) -> None:
        """Wait until the API server gives a pod a sidecar, or none: it learns of a policy a moment after it is made."""
        until(lambda: bool(sidecars(self.created(pod)[0])) is injects, f"a pod {'with' if injects else 'without'} weir")

    def running(self, way: str) -> list[Manifest]:
        """Make three brokers, wait for their pods, and return these."""
        self.create(*brokers(way))
        until(lambda: len(self.brokers()) == 3, "three pods")
        return self.brokers()

    def brokers(self) -> list[Manifest]:
        """Return the brokers' pods; the webhook's are in the same namespace."""
        return [pod for pod in self.get("pods") if pod["spec"]["containers"][0]["name"] == "kafka"]


def probe(way: str, name: str = "") -> Manifest:
    """Return a pod with the labels of a way's brokers, and the name of the first."""
    (first, *_) = brokers(way)
    template = first["spec"].get("template", first)
    metadata = {**template["metadata"], "name": name or FIRST[way]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def sidecars(pod: Manifest) -> list[Manifest]:
    """Return a pod's containers that are named weir."""
    return [each for each in pod["spec"].get("initContainers", ()) if each["name"] == "weir"]


@contextmanager
def webhook(namespace: Namespace, folder: Path, cluster: str = "kafka") -> Iterator[subprocess.Popen[bytes]]:
    """Run `weir webhook` with the release's own file, and have the API server ask it: pods have no node here."""
    name = f"weir-{cluster}-webhook"
    folder.mkdir(exist_ok=True)
    (folder / "sidecar.json").write_text(namespace.get("configmap", name)["data"]["sidecar.json"])
    authority = Authority(folder / "pki")
    keys = authority.issue("127.0.0.1")
    with ExitStack() as stack:
        port = stack.enter_context(Ports()).take()
        words = [f"--sidecar={folder / 'sidecar.json'}", f"--certificate={keys.certificate}", f"--key={keys.key}"]
        command = [sys.executable, "-m", "weir", "webhook", *words, f"--listen=127.0.0.1:{port}"]
        child = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        stack.callback(child.kill)
        until(lambda: _answers(port, authority), "the webhook")
        client = {"url": f"https://127.0.0.1:{port}/pods", "caBundle": _encoded(authority)}
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": client}]
        configuration = f"mutatingwebhookconfiguration/weir-{cluster}.{namespace.name}"
        namespace.api.kubectl("patch", configuration, "--type=json", "--patch", json.dumps(patch))
        yield child


def _answers(port: int, authority: Authority) -> bool:
    context = ssl.create_default_context(cafile=authority.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _encoded(authority: Authority) -> str:
    return base64.b64encode(Path(authority.ca).read_bytes()).decode()


def refusal(namespace: Namespace, *words: str, given: Any = None) -> str:
    """Return what kubectl says as it refuses; the empty string where it does not."""
    try:
        namespace.kubectl(*words, given=given)
    except Refused as error:
        return str(error)
    return ""
