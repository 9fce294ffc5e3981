# SPDX-License-Identifier: Apache-2.0
"""What a sidecar tells its supervisor, and the kernel's timer that ends one that hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.proxy.watchdog import HANG_SECONDS

pytestmark = [pytest.mark.long, pytest.mark.newest]

CONFIG = """
broker_id = 1
[[ingress]]
listen = "127.0.0.1:0"
upstream = "127.0.0.1:1"
[admin]
listen = "127.0.0.1:0"
"""
KILLS = """
import asyncio, sys, time
from weir.proxy import watchdog
from weir.proxy.log import EventLog
watchdog.HANG_SECONDS = 0.5
watchdog._TICK_SECONDS = 0.1
async def main():
    watched = watchdog.Watchdog(EventLog(), kills=sys.argv[1] == "kills")
    watched.start()
    await asyncio.sleep(1)
    print("turns", flush=True)
    if sys.argv[2] == "closed":
        watched.close()
    time.sleep(1.5)
asyncio.run(main())
"""


class Supervisor:
    """A socket that receives what a process says to its supervisor."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)

    def receive(self, seconds: float = 10) -> str | None:
        """The next that is said; None: nothing within the time."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(100).decode()
        except TimeoutError:
            return None

    def said(self) -> list[str]:
        """All that was said and not received yet."""
        found = []
        while (state := self.receive(0.05)) is not None:
            found.append(state)
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["a file", "an abstract name"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "a file" else f"@weir-test-{os.getpid()}"


@pytest.fixture
def supervisor(address: str) -> Iterator[Supervisor]:
    supervisor = Supervisor(address.replace("@", "\0", 1))
    yield supervisor
    supervisor.close()


@pytest.fixture
def sidecar(supervisor: Supervisor, address: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    file = tmp_path / "weir.toml"
    file.write_text(CONFIG)
    environment = {**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
    with subprocess.Popen(
        [sys.executable, "-m", "weir", "run", "--config", str(file)], stderr=subprocess.DEVNULL, env=environment
    ) as process:
        yield process
        process.kill()


def test_supervisor_is_told_of_start_life_hang_and_stop(
    supervisor: Supervisor, sidecar: subprocess.Popen[bytes]
) -> None:
    assert supervisor.receive() == "READY=1"
    assert {supervisor.receive(1) for _ in range(5)} == {"WATCHDOG=1"}
    sidecar.send_signal(signal.SIGSTOP)
    supervisor.said()
    assert supervisor.receive(1) is None
    sidecar.send_signal(signal.SIGCONT)
    assert supervisor.receive(1) == "WATCHDOG=1"
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(10) == 0
    assert [state for state in supervisor.said() if state != "WATCHDOG=1"] == ["STOPPING=1"]


def hanging(*words: str, stop: bool = False) -> int:
    """Run a watched loop for a second, and let it hang for longer than it may; returns the exit status."""
    with subprocess.Popen([sys.executable, "-c", KILLS, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"turns\n"
        if stop:
            process.send_signal(signal.SIGSTOP)
        try:
            return process.wait(5)
        finally:
            process.kill()  # or one that is stopped would stay


def test_kernel_kills_a_process_whose_loop_hangs() -> None:
    assert hanging("kills", "open") == -signal.SIGKILL


def test_kernel_kills_a_process_that_is_stopped() -> None:
    assert hanging("kills", "open", stop=True) == -signal.SIGKILL


@pytest.mark.parametrize("words", [("kills", "closed"), ("stays", "open")], ids=" ".join)
def test_kernel_leaves_a_process_that_is_not_watched(words: tuple[str, str]) -> None:
    assert hanging(*words) == 0


def test_connections_that_stand_are_let_go_within_ten_seconds() -> None:
    assert HANG_SECONDS < 10
