# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes API server on loopback, with etcd and the controllers, and `kubectl` and `helm` that talk to it.

`make kubernetes` builds the programs. There is no node and no scheduler: pods are created, and stay pending.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.files import DEPLOY
from tests.deploy.manifests import Manifest
from tests.fakes.pki import Authority
from weir.lab.errors import Timeout
from weir.lab.jars import project_cache
from weir.lab.network import Ports
from weir.lab.processes import Process, Supervisor

PROGRAMS: Final = project_cache() / "kubernetes"
SECONDS: Final = 60  # until something has come true that takes a second on an idle machine
_START_SECONDS: Final = 180
_TOKEN: Final = "t" * 32


class ApiServer:
    """The API server, as its administrator sees it."""

    def __init__(self, folder: Path, authority: Authority, port: int) -> None:
        self.authority = authority
        self._kubeconfig = folder / "kubeconfig"
        self.environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "HOME": str(folder)}
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": authority.ca}
        self._kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "lab", "cluster": cluster}],
                    "users": [{"name": "admin", "user": {"token": _TOKEN}}],
                    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
                    "current-context": "lab",
                }
            )
        )

    def kubectl(self, *words: str, given: Any = None) -> str:
        """Run kubectl; what is `given` is one manifest, or several, for `-f -`. Returns what it prints.

        Raises Refused.
        """
        text = None if given is None else yaml.safe_dump_all(_several(given))
        return self._run([str(PROGRAMS / "kubectl"), *words], text)

    def helm(self, *words: str) -> str:
        """Run helm. Returns what it prints. Raises Refused."""
        return self._run([str(PROGRAMS / "helm"), *words])

    def shell(self, text: str) -> str:
        """Run what an administrator types, from the top of the repository. Returns what it prints. Raises Refused."""
        return self._run(["bash", "-o", "pipefail", "-c", f"PATH={PROGRAMS}:$PATH; cd {DEPLOY.parent}; {text}"])

    def get(self, *words: str) -> Any:
        """Return what `kubectl get` finds: one object, or a list of them."""
        found = json.loads(self.kubectl("get", *words, "--output", "json") or '{"items": []}')
        return found["items"] if found["kind"] == "List" else found

    def _run(self, command: list[str], given: str | None = None) -> str:
        done = subprocess.run(
            command, input=given, env=self.environment, capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode:
            raise Refused(done.stderr)
        return done.stdout


class Refused(Exception):
    """kubectl or helm failed; the text is what it says."""


def until(is_true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for something. Raises Timeout."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise Timeout(what, seconds)
        time.sleep(0.1)


@contextmanager
def running() -> Generator[ApiServer]:
    """Start etcd, the API server and the controllers, and end them after the block."""
    with supervised() as supervisor, Ports() as ports:
        yield _started(supervisor, ports)


@contextmanager
def supervised() -> Generator[Supervisor]:
    """End what the block starts; where the block fails, the logs are kept."""
    supervisor = Supervisor(print)
    error: BaseException | None = None
    try:
        yield supervisor
    except BaseException as raised:
        error = raised
        raise
    finally:
        supervisor.end(error)


def _started(supervisor: Supervisor, ports: Ports) -> ApiServer:
    folder = supervisor.folder
    authority = Authority(folder / "pki")
    server, accounts = authority.issue("127.0.0.1"), authority.issue("accounts")
    (folder / "tokens").write_text(f"{_TOKEN},admin,1,system:masters\n")
    # A namespace that names no level has baseline, as with some distributions.
    level = {"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"}
    plugin = {"name": "PodSecurity", "configuration": level | {"defaults": {"enforce": "baseline"}}}
    admission = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
    (folder / "admission.yaml").write_text(yaml.safe_dump(admission))
    clients, peers = (f"http://127.0.0.1:{ports.take()}" for _ in range(2))
    port = ports.take()
    api = ApiServer(folder, authority, port)

    def start(name: str, program: str, *options: str) -> Process:
        process = Process(supervisor, name, [str(PROGRAMS / program), *options], supervisor.log(name), folder)
        process.start()
        return process

    start(
        "etcd",
        "server",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
    )
    apiserver = start(
        "kube-apiserver",
        "kube-apiserver",
        f"--etcd-servers={clients}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={server.certificate}",
        f"--tls-private-key-file={server.key}",
        f"--token-auth-file={folder / 'tokens'}",
        "--authorization-mode=RBAC",
        f"--admission-control-config-file={folder / 'admission.yaml'}",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={accounts.certificate}",
        f"--service-account-signing-key-file={accounts.key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
    )

    def is_up() -> bool:
        if not apiserver.alive:
            raise apiserver.failure("ended before it was up.")
        try:
            return api.kubectl("get", "--raw", "/readyz") == "ok"
        except Refused:
            return False

    until(is_up, "the API server", _START_SECONDS)
    start(
        "controllers",
        "kube-controller-manager",
        f"--kubeconfig={folder / 'kubeconfig'}",
        f"--service-account-private-key-file={accounts.key}",
        f"--root-ca-file={authority.ca}",
        "--leader-elect=false",
        "--secure-port=0",
    )
    return api


def _several(given: Any) -> list[Manifest]:
    return given if isinstance(given, list) else [given]
