# SPDX-License-Identifier: Apache-2.0
"""What is released: it is installed into an empty folder, and a sidecar runs from there."""

from __future__ import annotations

import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import sysconfig
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocol.wire import request, response
from weir.cli import demo
from weir.cli.version import __version__
from weir.lab.release import bill_of, licences

pytestmark = pytest.mark.long

PROJECT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel alone, as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", "--target", folder, wheel], check=True)
    return folder


def weir(site: Path, *words: str) -> list[str]:
    """The command, without the checkout that is installed here for development."""
    return [sys.executable, "-S", str(site / "bin" / "weir"), *words]


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{sysconfig.get_path('purelib')}"}


def test_both_are_built_and_have_the_version(dist: Path) -> None:
    assert sorted(path.name for path in dist.iterdir()) == [
        f"kafka_weir-{__version__}-py3-none-any.whl",
        f"kafka_weir-{__version__}.tar.gz",
    ]


def test_the_wheel_has_every_room_under_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {"weir", f"kafka_weir-{__version__}.dist-info"}
    links = [path for path in (PROJECT / "weir").iterdir() if path.is_symlink()]
    wanted = {f"weir/{room.name}/{path.relative_to(room)}" for room in links for path in room.rglob("*.py")}
    page = PROJECT / "weir" / "proxy" / "admin" / "page"
    wanted |= {str(path.relative_to(PROJECT)) for path in page.iterdir() if path.is_file()}
    assert wanted <= names


def test_the_sdist_has_every_room_once(dist: Path, wheel: Path) -> None:
    """Links are files there: who unpacks it, and the wheel that is built from it, see the one package."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    of_the_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("weir/")}
    assert {name for name in names if name.startswith("weir/")} == of_the_wheel
    assert {name.partition("/")[0] for name in names} == {
        "weir",
        *("kafka_weir.egg-info", "PKG-INFO", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"),
    }


def test_demo_extra_has_what_building_and_reading_tables_takes() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras["history"], *extras["pipeline"]} < set(extras["demo"])
    assert {re.split("[<>=]", needed)[0] for needed in extras["demo"]} == set(demo.PACKAGES)


def test_manifests_name_the_images_of_this_version() -> None:
    files = [path for path in (PROJECT / "deploy").rglob("*") if path.suffix in (".yaml", ".md")]
    image = r"\b(?:weir(?:-capture)?:|(?:version|appVersion): )(\d[\d.]*\d)"  # the chart's own, too
    named = re.findall(image, "".join(path.read_text() for path in files))
    assert len(named) == 4
    assert set(named) == {__version__}


def test_the_command_of_the_wheel_tells_its_version(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        weir(site, "--version"), cwd=tmp_path, env=environment(site), capture_output=True, text=True, check=True
    )
    assert done.stdout == f"weir {__version__}\n"


class OneAnswer(socketserver.BaseRequestHandler):
    """Answers one request of each connection: the sidecar's own look at its broker, and the client."""

    def handle(self) -> None:
        if self.request.recv(1000):
            self.request.sendall(response(1))
            self.request.recv(1)


@pytest.fixture
def broker() -> Iterator[int]:
    """A broker that answers one request of each connection."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OneAnswer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(DEADLINE_SECONDS)


def test_a_sidecar_of_the_wheel_relays_and_ends_when_told(site: Path, tmp_path: Path, broker: int) -> None:
    config = tmp_path / "weir.toml"
    config.write_text(
        f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:0"\nupstream = "127.0.0.1:{broker}"\n'
        '[admin]\nlisten = "127.0.0.1:0"\n'
    )
    command = weir(site, "run", "--config", str(config))
    with subprocess.Popen(command, cwd=tmp_path, env=environment(site), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "event=listening" in line and "role=ingress" in line)
            port = int(line.partition("listen=127.0.0.1:")[2].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as client:
                client.sendall(request(3, 0, 1))
                assert client.recv(1000) == response(1)
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(DEADLINE_SECONDS) == 0
        finally:
            process.kill()


def test_licences_are_listed_for_all_that_is_installed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for name in ("aiohttp", "msgspec"):
        (found,) = Path(sysconfig.get_path("purelib")).glob(f"{name}-*.dist-info")
        (packages / found.name).symlink_to(found)
    bill = bill_of(tmp_path / "env" / "bin" / "python", PROJECT / "pyproject.toml", "--no-validate")
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "kafka-weir")
    first, second = licences(bill)
    assert first.startswith("aiohttp 3.") and "Apache-2.0" in first
    assert second.startswith("msgspec 0.") and "BSD-3-Clause" in second


def test_a_component_has_each_of_its_licences_once() -> None:
    bill = {
        "components": [
            {"name": "b", "version": "2"},
            {"name": "A", "version": "1", "licenses": [{"license": {"id": "MIT"}}, {"license": {"id": "MIT"}}]},
            {"name": "c", "version": "3", "licenses": [{"expression": "MIT OR BSD-2-Clause"}]},
        ]
    }
    assert list(licences(bill)) == ["A 1: MIT", "b 2: unknown", "c 3: MIT OR BSD-2-Clause"]
