# SPDX-License-Identifier: Apache-2.0
"""The images: what they are made of, and, where buildah is at hand, that they can be made and run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from weir.cli.version import __version__

PROJECT = Path(__file__).parents[2]
PROJECT_FACTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
LINES = (PROJECT / "Dockerfile").read_text().replace("\\\n", "").splitlines()
# Another base, where no registry can be reached: an image of this machine that has Python and pip.
DEFAULT_BASE = next(line for line in LINES if line.startswith("ARG BASE=")).removeprefix("ARG BASE=")
BASE = os.environ.get("WEIR_TEST_BASE", f"docker.io/library/{DEFAULT_BASE}")


def copied() -> set[str]:
    """What the Dockerfile copies out of the project."""
    copies = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from" not in line]
    return {name for names in copies for name in names}


def test_image_has_every_room() -> None:
    """One that is missing shows only when what was installed is started."""
    links = {link.name: os.readlink(link) for link in (PROJECT / "weir").iterdir() if link.is_symlink()}
    assert links == {name: f"../{name}" for name in links}
    assert {"weir", *links} <= copied()


def test_what_is_copied_is_not_ignored() -> None:
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()


def test_packages_of_python_are_fetched_by_their_hashes_alone() -> None:
    commands = [command for line in LINES if line.startswith("RUN ") for command in line[4:].split("&&")]
    fetching = [
        command for command in commands if re.search(r"\bpip (--python \S+ )?(install|wheel|download) ", command)
    ]
    assert len(fetching) == 4
    for command in fetching:
        assert "--require-hashes" in command or "--no-index" in command, command


def test_base_is_named_by_its_digest_and_has_a_known_python() -> None:
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}", DEFAULT_BASE)
    assert found is not None
    assert f"Programming Language :: Python :: {found[1]}" in PROJECT_FACTS["classifiers"]


def test_image_says_what_it_is() -> None:
    (label,) = [line for line in LINES if line.startswith("LABEL ")]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', label))
    assert labels == {
        "title": "weir",
        "description": PROJECT_FACTS["description"],
        "version": __version__,
        "licenses": PROJECT_FACTS["license"],
        "source": "${SOURCE}",
        "revision": "${REVISION}",
        "created": "${CREATED}",
    }


@pytest.fixture(scope="module")
def images() -> dict[str, str]:
    """Both images by their targets. They are built without a daemon, and run without a container's privileges."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt-get install buildah")
    if buildah("pull", "--policy", "missing", BASE).returncode:
        pytest.skip(f"the base {BASE} cannot be pulled: name another in WEIR_TEST_BASE")
    built = {}
    for target in ("sidecar", "capture"):
        built[target] = f"localhost/weir-test-{target}"
        options = ["--build-arg", f"BASE={BASE}", "--target", target, "--tag", built[target]]
        done = buildah("build", "--isolation", "chroot", *options, str(PROJECT))
        assert done.returncode == 0, done.stderr[-2000:]
    return built


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sidecar", "capture"])
def test_image_runs(images: dict[str, str], target: str) -> None:
    container = buildah("from", images[target]).stdout.strip()
    try:
        done = buildah("run", "--isolation", "chroot", container, "--", "weir", "--version")
        assert done.stdout.startswith("weir "), done.stderr
        needed = "import ctypes, shutil; ctypes.CDLL('libnftables.so.1'); assert shutil.which('ss')"
        found = buildah("run", "--isolation", "chroot", container, "--", "/opt/weir/bin/python", "-c", needed)
        assert (found.returncode == 0) is (target == "capture"), found.stderr
    finally:
        buildah("rm", container)


@pytest.mark.slow
def test_image_relays(images: dict[str, str], tmp_path: Path) -> None:
    """A request to a sidecar in a container arrives where the broker would be."""
    container = buildah("from", images["sidecar"]).stdout.strip()
    request = bytes.fromhex("0000000a 0012 0000 00000007 ffff")  # ApiVersions, version 0, of a client without a name
    with socket.create_server(("127.0.0.1", 0)) as broker, socket.create_server(("127.0.0.1", 0)) as free:
        broker.settimeout(30)
        port = free.getsockname()[1]
        free.close()
        (tmp_path / "weir.toml").write_text(
            f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{port}"\n'
            f'upstream = "127.0.0.1:{broker.getsockname()[1]}"\n[admin]\nlisten = "127.0.0.1:0"\n'
        )
        tmp_path.chmod(0o755)
        options = ["--isolation", "chroot", "--volume", f"{tmp_path}:/etc/weir:ro", container]
        command = ["buildah", "run", *options, "--", "weir", "run", "--config", "/etc/weir/weir.toml"]
        running = subprocess.Popen(command, start_new_session=True)
        try:
            with connected(port) as client:
                client.sendall(request)
                assert passed(broker, request)
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait(30)
            buildah("rm", container)


def connected(port: int) -> socket.socket:
    """Connect to the sidecar as soon as it listens."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def passed(broker: socket.socket, request: bytes) -> bool:
    """Whether one of the sidecar's connections brings the request; others ask whether the broker is up."""
    while True:
        connection, _ = broker.accept()
        with connection:
            connection.settimeout(30)
            if connection.recv(len(request)) == request:
                return True


def buildah(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, timeout=900)
