# SPDX-License-Identifier: Apache-2.0
"""The units of deploy/systemd under a systemd that has booted, as process 1 of a container with the wheel installed.

The container has this machine's /usr and nothing else of it, so it needs no image: systemd-nspawn (Debian's package
systemd-container), root, and Debian's Python with venv, of the version that the tests run with. The packages that weir
needs are those of the tests. What stands in for the broker is a script that answers each request.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY
from weir.lab.release import build

PROJECT = DEPLOY.parent
PYTHON = "/usr/bin/python3"
UNITS = "/etc/systemd/system"
SECONDS = 30.0
CAP_NET_ADMIN = 1 << 12

WATCHDOG_SECONDS = 5  # of the unit

BROKER = """
import socketserver
class Answers(socketserver.BaseRequestHandler):
    def handle(self):
        while asked := self.request.recv(4096):
            self.request.sendall(b"\\0\\0\\0\\x0a" + asked[8:12] + bytes(6))
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(("127.0.0.1", 19092), Answers).serve_forever()
"""
TELLING_BROKER = """
import asyncio
from tests.fakes.metadata_broker import MetadataBroker
async def main():
    broker = MetadataBroker(port=19092, peers={2: "192.0.2.2"})
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 19092)
    await server.serve_forever()
asyncio.run(main())
"""
TELLING_KAFKA = "[Service]\nEnvironment=PYTHONPATH=/checkout\nExecStart=/opt/weir/bin/python /test/telling_broker.py\n"
KAFKA = f"[Service]\nExecStart={PYTHON} /test/broker.py\n"
ASK = """
import socket
with socket.create_connection(("127.0.0.1", 9092), timeout=10) as client:
    client.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
    print(client.recv(100).hex())
"""
LISTENERS = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:9092"
upstream = "127.0.0.1:19092"
[export]
directory = "/var/lib/weir"
interval_seconds = 1
"""
CAPTURE = """
broker_id = 1
[cluster]
bootstrap_servers = "127.0.0.1:19092"
[capture]
port = 19092
"""


def lacking() -> str:
    """What this machine lacks; empty where it has all."""
    if shutil.which("systemd-nspawn") is None or not Path("/lib/systemd/systemd").exists():
        return "systemd-nspawn is not installed: apt-get install systemd-container"
    if os.geteuid() != 0:
        return "a container of systemd-nspawn takes root"
    found = subprocess.run([PYTHON, "-c", "import ensurepip, sys; print(*sys.version_info[:2])"], capture_output=True)
    if found.stdout.split() != [b"%d" % number for number in sys.version_info[:2]]:
        return f"{PYTHON} with venv, of the version of these tests, is not installed: apt-get install python3-venv"
    return ""


pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(lacking()), reason=lacking())]


class Machine:
    """A booted container, by the process 1 in it."""

    def __init__(self, first: int) -> None:
        self._first = first

    def run(self, *command: str, data: str = "") -> str:
        """Run a command in it as root, and return what it printed; CalledProcessError."""
        inside = ["nsenter", "--target", str(self._first), "--all", "--", *command]
        done = subprocess.run(inside, input=data, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", name, unit)

    def put(self, path: str, text: str) -> None:
        """Write a file in it."""
        self.run("mkdir", "--parents", str(Path(path).parent))
        self.run("tee", path, data=text)

    def logged(self, words: str) -> bool:
        """Whether the sidecar has logged a line with these words."""
        return words in self.run("journalctl", "--unit", "weir", "--output", "cat")

    def wait_for(self, what: str, is_so: Callable[[], object]) -> None:
        """Wait until something is so; a command that fails says no."""
        end, said = time.monotonic() + SECONDS, ""
        while True:
            try:
                if is_so():
                    return
            except subprocess.CalledProcessError as error:
                said = f"{error.stdout}{error.stderr}"
            if time.monotonic() > end:
                log = self.run("journalctl", "--no-pager", "--lines", "40")
                pytest.fail(f"{what} did not happen within {SECONDS:g} s. {said}\n{log}")
            time.sleep(0.1)


def nspawn(*arguments: str) -> list[str]:
    """The command line of a container that has this machine's /usr."""
    options = ("--quiet", "--directory=/", "--volatile=yes", "--register=no", "--keep-unit")
    return ["systemd-nspawn", *options, f"--machine=weir-test-{os.getpid()}", *arguments]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    weir, dist, test = (folder / name for name in ("weir", "dist", "test"))
    for made in (weir, dist, test):
        made.mkdir()
    (test / "broker.py").write_text(BROKER)
    (test / "telling_broker.py").write_text(TELLING_BROKER)
    build(PROJECT, dist)
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    install = f"{PYTHON} -m venv /opt/weir && /opt/weir/bin/pip install --quiet --no-index --no-deps /dist/*.whl"
    into = [f"--bind={weir}:/opt/weir", f"--bind-ro={dist}:/dist"]
    subprocess.run(nspawn(*into, "/bin/sh", "-c", install), check=True, timeout=120, env={"PATH": os.environ["PATH"]})
    (weir / site / "packages.pth").write_text("/packages\n")
    binds = [f"--bind-ro={weir}:/opt/weir", f"--bind-ro={sysconfig.get_path('purelib')}:/packages"]
    binds += [f"--bind-ro={test}:/test", f"--bind-ro={DEPLOY / 'systemd'}:/units", f"--bind-ro={PROJECT}:/checkout"]
    boot = nspawn("--boot", "--private-network", "--console=pipe", *binds)
    log = folder / "boot.log"
    with log.open("wb") as output:
        container = subprocess.Popen(
            [*boot, "systemd.unit=basic.target", "systemd.firstboot=off"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        booted = _booted(container)
        if booted is None:
            pytest.skip(f"systemd does not boot in a container here: {log.read_text()[-500:]}")
        booted.run("cp", "--recursive", "/units/weir.service", UNITS)
        booted.put(f"{UNITS}/kafka.service", KAFKA)
        booted.run("useradd", "--system", "weir")
        booted.run("systemctl", "mask", "systemd-networkd-wait-online.service")  # it has no network but loopback
        yield booted
    finally:
        container.terminate()
        try:
            container.wait(20)
        except subprocess.TimeoutExpired:
            container.kill()
            container.wait()


def _booted(container: subprocess.Popen[bytes]) -> Machine | None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and container.poll() is None:
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        for child in children:
            machine = Machine(int(child))
            try:
                if machine.show("basic.target", "ActiveState") == "active":
                    return machine
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
                pass
        time.sleep(0.2)
    return None


@pytest.fixture
def running(machine: Machine) -> Iterator[Machine]:
    """The container with the sidecar and what stands in for its broker; afterwards neither runs."""
    machine.put("/etc/weir/weir.toml", LISTENERS)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "weir", "kafka")
    machine.wait_for("a ready sidecar", lambda: machine.run(PYTHON, "-c", ASK))
    yield machine
    machine.run("systemctl", "stop", "kafka", "weir")
    machine.run("rm", "--recursive", "--force", f"{UNITS}/kafka.service.d", f"{UNITS}/weir.service.d")


def status_of(machine: Machine) -> dict[str, str]:
    """What the kernel says of the sidecar's process."""
    text = machine.run("cat", f"/proc/{machine.show('weir', 'MainPID')}/status")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def test_unit_runs_the_sidecar_confined_and_it_relays(running: Machine) -> None:
    assert running.run(PYTHON, "-c", ASK) == "0000000a00000007" + 12 * "0"
    status = status_of(running)
    assert status["Uid"].split()[0] == running.run("id", "--user", "weir") != "0"
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    written = "/var/lib/weir"
    running.wait_for("a sample", lambda: running.run("find", written, "-type", "f", "-size", "+0", "-user", "weir"))


def test_reload_puts_the_file_in_force(running: Machine) -> None:
    before = running.show("weir", "MainPID")
    running.put("/etc/weir/weir.toml", LISTENERS + "[throttle]\n" + '"leader.replication.throttled.rate" = 7\n')
    running.run("systemctl", "reload", "weir")
    running.wait_for("the reload", lambda: running.logged("event=config_reloaded changed=throttle"))
    assert running.show("weir", "MainPID") == before


def test_stop_drains(running: Machine) -> None:
    running.run("systemctl", "stop", "weir")
    assert running.logged("event=stopped drained=true")
    assert (running.show("weir", "Result"), running.show("weir", "ExecMainStatus")) == ("success", "0")


@pytest.mark.parametrize("fault", ["KILL", "STOP"])
def test_sidecar_that_is_killed_or_hangs_is_started_again(running: Machine, fault: str) -> None:
    before, broker = running.show("weir", "MainPID"), running.show("kafka", "MainPID")
    running.run("kill", f"-{fault}", before)
    running.wait_for("a new sidecar", lambda: running.show("weir", "MainPID") not in ("0", before))
    running.wait_for("its answers", lambda: running.run(PYTHON, "-c", ASK))
    assert running.show("kafka", "MainPID") == broker


def hand_over(machine: Machine) -> None:
    """Have the sidecar hand over to a new process, which systemd then watches in its place."""
    before = machine.show("weir", "MainPID")
    machine.run("systemctl", "kill", "--kill-who=main", "--signal=USR2", "weir")
    machine.wait_for("a new process", lambda: machine.show("weir", "MainPID") not in ("0", before))
    machine.wait_for("the old one's end", lambda: not machine.run("sh", "-c", f"ls -d /proc/{before} || true"))
    assert (machine.show("weir", "ActiveState"), machine.show("weir", "NRestarts")) == ("active", "0")
    assert machine.logged(f"event=taken_over connections=0 pid={machine.show('weir', 'MainPID')}")


def test_sidecar_hands_over_and_its_watchdog_goes_on(running: Machine) -> None:
    for _ in range(2):
        hand_over(running)
        assert running.run(PYTHON, "-c", ASK) == "0000000a00000007" + 12 * "0"
    time.sleep(WATCHDOG_SECONDS + 1)
    assert running.show("weir", "NRestarts") == "0"
    hung = running.show("weir", "MainPID")
    running.run("kill", "-STOP", hung)
    running.wait_for("a new sidecar", lambda: running.show("weir", "MainPID") not in ("0", hung))
    running.wait_for("its answers", lambda: running.run(PYTHON, "-c", ASK))


def test_bound_broker_goes_with_its_sidecar_and_comes_back(running: Machine) -> None:
    for drop_in in ("kafka.service.d", "weir.service.d"):
        running.run("mkdir", "--parents", f"{UNITS}/{drop_in}")
    running.run("cp", "/units/kafka.service.d/weir.conf", f"{UNITS}/kafka.service.d")
    running.run("cp", "/units/weir.service.d/broker.conf", f"{UNITS}/weir.service.d")
    running.run("systemctl", "daemon-reload")
    before, broker = running.show("weir", "MainPID"), running.show("kafka", "MainPID")
    running.run("kill", "-KILL", before)
    running.wait_for("a new broker", lambda: running.show("kafka", "MainPID") not in ("0", broker))
    running.wait_for("its answers", lambda: running.run(PYTHON, "-c", ASK))
    running.run("systemctl", "stop", "weir")
    assert running.show("kafka", "ActiveState") == "inactive"


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed: apt-get install nftables")
def test_capture_sets_its_rules_with_one_capability(machine: Machine) -> None:
    """The broker says who is one, which the rules need. No connection is captured: there is no other machine."""
    machine.put("/etc/weir/weir.toml", CAPTURE)
    machine.put(f"{UNITS}/kafka.service", TELLING_KAFKA)
    machine.run("mkdir", "--parents", f"{UNITS}/weir.service.d")
    machine.run("cp", "/units/weir.service.d/capture.conf", f"{UNITS}/weir.service.d")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "weir", "kafka")
    machine.wait_for("its table", lambda: "weir_1" in machine.run("nft", "list", "tables"))
    status = status_of(machine)
    assert status["Uid"].split()[0] != "0"
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {CAP_NET_ADMIN}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    hand_over(machine)
    assert machine.run("nft", "list", "tables") == "table inet weir_1_b"
    assert {int(status_of(machine)[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {CAP_NET_ADMIN}
    sees = ("nsenter", "--target", machine.show("weir", "MainPID"), "--mount")
    assert machine.run(*sees, "cat", "/proc/sys/net/netfilter/nf_conntrack_max").isdecimal()
    machine.run("systemctl", "stop", "weir", "kafka")
    # the kernel takes a table away a moment after its owner has ended
    machine.wait_for("no table", lambda: "weir_1" not in machine.run("nft", "list", "tables"))
