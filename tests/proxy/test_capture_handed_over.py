# SPDX-License-Identifier: Apache-2.0
"""A capture is handed over while connections pass it: hosts on one machine, and brokers that answer questions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.proxy.test_capture_rules import NEEDS_KERNEL
from weir.lab.hosts import Hosts

pytestmark = [pytest.mark.long, *NEEDS_KERNEL]

PROJECT = Path(__file__).parents[2]
MOST_PAUSE = 0.8
"""Seconds that an answer may take meanwhile: who has to connect again waits for 1 s (replica.fetch.backoff.ms)."""

BROKER = """
import asyncio, sys
from tests.fakes.metadata_broker import MetadataBroker
async def main():
    broker = MetadataBroker(port=9092, peers={1: sys.argv[2], 2: sys.argv[3]})
    server = await asyncio.start_server(broker.serve, sys.argv[1], 9092)
    print("listening", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

FETCHER = """
import socket, struct, sys, time
with socket.create_connection((sys.argv[1], 9092), timeout=10) as broker:
    slowest, end = 0.0, time.monotonic() + float(sys.argv[2])
    print("connected", flush=True)
    number = 0
    while time.monotonic() < end:
        number += 1
        begun = time.monotonic()
        broker.sendall(struct.pack(">ihhih", 10, 18, 0, number, -1))
        answer = b""
        while len(answer) < 8 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            if not (more := broker.recv(4096)):
                sys.exit(f"closed after {number} requests")
            answer += more
        assert struct.unpack_from(">i", answer, 4)[0] == number
        slowest = max(slowest, time.monotonic() - begun)
        time.sleep(0.002)
    print(number, slowest, flush=True)
"""
"""Asks a broker again and again on one connection; prints how often, and the slowest answer."""


FIREWALLD = """
add table inet firewalld
add chain inet firewalld filter_INPUT { type filter hook input priority 10; }
add rule inet firewalld filter_INPUT ct state { established, related } accept
add rule inet firewalld filter_INPUT ct status dnat accept
add rule inet firewalld filter_INPUT iifname lo accept
add rule inet firewalld filter_INPUT ct state invalid drop
add rule inet firewalld filter_INPUT tcp dport 9092 ct state { new, untracked } accept
add rule inet firewalld filter_INPUT reject with icmpx admin-prohibited
""".strip().replace("\n", "; ")
"""What firewalld sets for what comes in, with the brokers' port open in the zone."""


class World:
    """Three hosts, of which two have a broker, and a sidecar on the first that captures."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.log = folder / "log"
        self._running: list[subprocess.Popen[str]] = []
        addresses = [hosts.address(number) for number in (1, 2)]
        for number, host in enumerate(addresses, start=1):
            broker = self.begin(number, sys.executable, "-c", BROKER, host, *addresses)
            assert broker.stdout is not None
            assert broker.stdout.readline() == "listening\n"
        file = folder / "weir.toml"
        file.write_text(
            f'broker_id = 1\n[cluster]\nbootstrap_servers = "{addresses[0]}:9092"\npoll_seconds = 1\n'
            "[capture]\nport = 9092\n"
        )
        self.sidecar = self.begin(1, sys.executable, "-m", "weir", "run", "--config", str(file))
        self.until("its rules", lambda: "event=captured" in self.log.read_text())

    def begin(self, number: int, *command: str) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                self.hosts.on(number, command),
                cwd=PROJECT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def fetch(self, number: int, seconds: float) -> subprocess.Popen[str]:
        """Begin to ask a broker: those of the first two hosts ask each other's, the third host is a client's."""
        asked = self.hosts.address(2 if number == 1 else 1)
        process = self.begin(number, sys.executable, "-c", FETCHER, asked, str(seconds))
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        return process

    def until(self, what: str, is_so: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, f"{what}: {self.log.read_text()}"
            time.sleep(0.02)

    def hand_over(self, times: int) -> None:
        pid = self.sidecar.pid
        for number in range(1, times + 1):
            os.kill(pid, signal.SIGUSR2)
            self.until("its successor", lambda number=number: self.count("event=handed_over serves=true") == number)  # type: ignore[misc]
            pid = int(re.findall(r"event=taken_over.* pid=(\d+)", self.log.read_text())[-1])

    def count(self, words: str) -> int:
        return self.log.read_text().count(words)

    def tables(self) -> list[str]:
        return self.hosts.run(1, "nft", "list", "tables").split("\n")[:-1]

    def close(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Hosts(3) as hosts:
        world = World(hosts, tmp_path)
        try:
            yield world
        finally:
            world.close()


def test_connections_of_both_sides_go_on_and_new_are_captured(world: World) -> None:
    """The table of the first process is gone with it, and with it a redirect that connections came by."""
    fetchers = [world.fetch(number, 20) for number in (1, 2)]
    assert world.tables() == ["table inet weir_1"]
    world.hand_over(1)
    world.until("the second table alone", lambda: world.tables() == ["table inet weir_1_b"])
    fetchers.append(world.fetch(2, 3))
    for fetcher in fetchers[::-1]:
        out, _ = fetcher.communicate(timeout=40)
        assert fetcher.returncode == 0, world.log.read_text()
        count, slowest = out.split()
        print(f"{count} answers, the slowest in {float(slowest) * 1000:.0f} ms")
        assert float(slowest) < MOST_PAUSE
    assert world.count("event=taken_over connections=2") == 1


def test_it_is_handed_over_again_and_again_with_no_rule_left(world: World) -> None:
    fetchers = [world.fetch(number, 30) for number in (1, 2)]
    world.hand_over(3)
    world.until("the second table alone", lambda: world.tables() == ["table inet weir_1_b"])
    world.until("brokers' connections alone", lambda: world.count("event=connection_tracking needed_by=nobody") == 4)
    for fetcher in fetchers:
        fetcher.communicate(timeout=40)
        assert fetcher.returncode == 0, world.log.read_text()
    os.killpg(world.sidecar.pid, signal.SIGKILL)
    world.until("no rule", lambda: not world.tables())


def test_later_firewall_refuses_no_connection_that_stands(world: World) -> None:
    """A client's connection was never tracked until then, and one that the broker itself has begun was."""
    world.until("brokers' connections alone", lambda: world.count("event=connection_tracking needed_by=nobody"))
    fetchers = [world.fetch(number, 8) for number in (1, 2, 3)]
    world.hosts.run(1, "nft", FIREWALLD)
    world.until("all tracked", lambda: world.count('event=connection_tracking needed_by="table inet firewalld"'), 2)
    fetchers += [world.fetch(number, 1) for number in (1, 2, 3)]
    for fetcher in fetchers:
        fetcher.communicate(timeout=40)
        assert fetcher.returncode == 0, world.log.read_text()
