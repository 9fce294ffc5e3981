# SPDX-License-Identifier: Apache-2.0
"""The rules of a capture in the kernel: hosts on one machine, and plain sockets."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from weir.lab.errors import LabError
from weir.lab.hosts import Hosts, missing
from weir.proxy.capture.rules import CaptureRules, mark_of

PROJECT = Path(__file__).parents[2]
PORT = 9092

NEEDS_KERNEL = [
    pytest.mark.skipif(missing() is not None, reason=f"no hosts can be made here: {missing()}"),
    pytest.mark.skipif(shutil.which("nft") is None, reason="no nft here: install nftables"),
]

FIREWALL = """
add table inet firewall
add chain inet firewall input { type filter hook input priority 0; policy drop; }
add rule inet firewall input ct state established,related accept
add rule inet firewall input iif lo accept
add rule inet firewall input icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
add rule inet firewall input tcp dport 9092 accept
""".replace("\n", "; ")
"""As firewalls are written by hand, and by ufw."""

SETTER = """
import json, sys
from ipaddress import ip_address
from weir.proxy.capture.nftables import Nftables
from weir.proxy.capture.rules import CaptureRules
packet_filter = Nftables()
for given in json.load(sys.stdin):
    ingress, egress = ({version: given[side] for version in (4, 6)} for side in ("in", "out"))
    rules = CaptureRules(given["id"], 9092, ingress, egress, given["anyone"], given["user"], given["transparent"])
    packet_filter.run(rules.create())
    packet_filter.run(rules.track(others=given["others"]))
    packet_filter.run(rules.addresses(map(ip_address, given["own"]), map(ip_address, given["peers"])))
    packet_filter.run(rules.stay_alive())
print("set", flush=True)
import time; time.sleep(float(sys.argv[1]))
"""
"""Sets rules, and holds them for some seconds."""

KEPT = 7000  # connections to this port stay

LISTENER = """
import socket, sys, threading
from weir.proxy.capture.nftables import make_transparent, original_destination
KEPT, kept = 7000, []
def serve(listening, port):
    while True:
        connection, _ = listening.accept()
        if port == KEPT:
            kept.append(connection)
            continue
        connection.sendall(f"{port} {original_destination(connection, port)}".encode())
        connection.close()
for port in map(int, sys.argv[1:]):
    for family in (socket.AF_INET, socket.AF_INET6):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if port % 10000 == 9093:
            make_transparent(listening, 0x77770000)
        listening.bind(("", port))
        listening.listen(100)
        threading.Thread(target=serve, args=(listening, port), daemon=True).start()
print("listening", flush=True)
threading.Event().wait(60)
"""
"""Listens on ports, and tells each client which one it reached, and where it was led away from."""

CLIENT = """
import os, socket, sys
host, mark, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setuid(user)  # a socket's owner is whoever made it
client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
if mark:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
client.settimeout(3)
client.connect((host, 9092))
print(client.recv(100).decode())
"""


MANY = """
import socket, sys, time
port = int(sys.argv[1])
kept = [socket.create_connection((host, port)) for host in sys.argv[2:] for _ in range(100)]
print("connected", flush=True)
time.sleep(60)
"""
"""Has a hundred connections to a port of each address."""


class Kernel:
    """Three hosts. Host 1 has a sidecar's rules; every host has a broker at PORT."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._running: list[subprocess.Popen[str]] = []

    def begin(self, number: int, script: str, *arguments: object, feed: str = "") -> subprocess.Popen[str]:
        """Start a script on a host, and wait for its first line."""
        command = self.hosts.on(number, [sys.executable, "-c", script, *map(str, arguments)])
        process = subprocess.Popen(
            command, cwd=PROJECT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(feed)
        process.stdin.close()
        assert process.stdout.readline(), process.stderr and process.stderr.read()
        return process

    def set(self, *rules: dict[str, Any], seconds: float = 60) -> subprocess.Popen[str]:
        """Set rules on host 1."""
        return self.begin(1, SETTER, seconds, feed=json.dumps(rules))

    def reach(self, number: int, host: str, mark: int = 0, user: int = 0) -> str:
        """Connect from a host to PORT of an address; returns the port reached, and the original destination."""
        return self.hosts.run(number, sys.executable, "-c", CLIENT, host, str(mark), str(user)).strip()

    def tracked(self) -> int:
        """How many connections the kernel tracks on host 1."""
        return int(self.hosts.run(1, "cat", "/proc/sys/net/netfilter/nf_conntrack_count"))

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts


@pytest.fixture
def kernel(hosts: Hosts) -> Iterator[Kernel]:
    kernel = Kernel(hosts)
    for number in (1, 2, 3):
        kernel.begin(number, LISTENER, PORT, *((19092, 19093, 29092, 29093, KEPT) if number == 1 else ()))
    try:
        yield kernel
    finally:
        kernel.close()


def rules_of(hosts: Hosts, **more: Any) -> dict[str, Any]:
    """Broker 1 on host 1, its peer on host 2; host 3 is a client's."""
    own, peers = ([hosts.address(number), hosts.address6(number)] for number in (1, 2))
    told = {"id": 1, "in": 19093, "out": 19092, "anyone": False, "user": None, "others": True, "transparent": True}
    return {**told, "own": own, "peers": peers, **more}


class TestKernel:
    pytestmark = NEEDS_KERNEL

    @pytest.mark.long
    def test_brokers_are_led_through_and_all_others_are_not(self, kernel: Kernel) -> None:
        hosts = kernel.hosts
        kernel.set(rules_of(hosts))
        own, peer, other = (hosts.address(number) for number in (1, 2, 3))
        assert kernel.reach(1, peer) == f"19092 {peer}:{PORT}"  # the broker's own fetch
        assert kernel.reach(2, own) == f"19093 {own}:{PORT}"  # a peer's
        assert kernel.reach(1, peer, mark=mark_of(1)) == f"{PORT} None"  # the sidecar's own connection
        assert kernel.reach(3, own) == f"{PORT} None"  # a client's
        assert kernel.reach(1, other) == f"{PORT} None"  # to somebody who is no broker
        assert kernel.reach(1, own) == f"{PORT} None"  # to itself

    @pytest.mark.long
    def test_firewall_for_the_brokers_port_lets_in_what_is_captured(self, kernel: Kernel) -> None:
        hosts = kernel.hosts
        hosts.run(1, "nft", FIREWALL)
        try:
            holder = kernel.set(rules_of(hosts))
            for host in (hosts.address(1), hosts.address6(1)):
                assert kernel.reach(2, host).startswith("19093 ")
            holder.kill()
            holder.wait()
            kernel.set(rules_of(hosts, transparent=False))  # what is left where the kernel has no tproxy
            with pytest.raises(LabError, match="timed out"):
                kernel.reach(2, hosts.address(1))
        finally:
            hosts.run(1, "nft", "delete table inet firewall")

    @pytest.mark.long
    @pytest.mark.parametrize("transparent", [True, False])
    def test_local_clients_reach_a_broker_where_anyone_is_captured(self, kernel: Kernel, transparent: bool) -> None:
        """So does the sidecar itself: what it sends to its broker may not come back to it."""
        own = kernel.hosts.address(1)
        kernel.set(rules_of(kernel.hosts, anyone=True, transparent=transparent))
        assert kernel.reach(3, own) == f"19093 {own}:{PORT}"
        assert kernel.reach(1, own) == f"{PORT} None"
        assert kernel.reach(1, own, mark=mark_of(1)) == f"{PORT} None"

    @pytest.mark.long
    @pytest.mark.parametrize("others", [True, False])
    def test_others_connections_are_tracked_only_where_wanted(self, kernel: Kernel, others: bool) -> None:
        """Also those of IPv6, and those that this machine begins. What is between brokers is led through either way."""
        hosts = kernel.hosts
        kernel.begin(2, LISTENER, KEPT)
        kernel.set(rules_of(hosts, others=others))
        before = kernel.tracked()
        kernel.begin(3, MANY, KEPT, hosts.address(1), hosts.address6(1))
        kernel.begin(1, MANY, KEPT, hosts.address(2), hosts.address6(2))
        added = kernel.tracked() - before
        assert added >= 400 if others else added < 10
        for own, peer in ((hosts.address(1), hosts.address(2)), (f"{hosts.address6(1)}", f"{hosts.address6(2)}")):
            shown = [f"[{host}]" if ":" in host else host for host in (own, peer)]
            assert kernel.reach(2, own) == f"19093 {shown[0]}:{PORT}"
            assert kernel.reach(1, peer) == f"19092 {shown[1]}:{PORT}"
            assert kernel.reach(1, peer, mark=mark_of(1)) == f"{PORT} None"
            assert kernel.reach(3, own) == f"{PORT} None"

    @pytest.mark.long
    def test_rules_are_gone_with_the_process_that_was_killed(self, kernel: Kernel) -> None:
        holder = kernel.set(rules_of(kernel.hosts))
        assert "weir_1" in kernel.hosts.run(1, "nft", "list", "tables")
        holder.kill()
        holder.wait()
        assert kernel.hosts.run(1, "nft", "list", "tables") == ""
        assert kernel.reach(2, kernel.hosts.address(1)) == f"{PORT} None"

    @pytest.mark.long
    def test_rules_match_nothing_when_a_process_hangs(self, kernel: Kernel) -> None:
        from time import sleep

        from weir.proxy.capture.rules import ALIVE_SECONDS

        kernel.set(rules_of(kernel.hosts))
        sleep(ALIVE_SECONDS + 0.5)  # it holds them, and never says that it lives
        assert "weir_1" in kernel.hosts.run(1, "nft", "list", "tables")
        assert kernel.reach(2, kernel.hosts.address(1)) == f"{PORT} None"

    @pytest.mark.long
    def test_two_brokers_of_a_machine_are_told_apart_by_user(self, kernel: Kernel) -> None:
        """Both fetch from host 2, and from each other."""
        hosts = kernel.hosts
        first, second, peer = hosts.address(1), f"{hosts.address(1)}01", hosts.address(2)
        hosts.run(1, "ip", "addr", "replace", f"{second}/24", "dev", "eth0")
        kernel.set(
            rules_of(hosts, user="1001", peers=[second, peer]),
            rules_of(hosts, id=2, user="1002", own=[second], peers=[first, peer], **{"in": 29093, "out": 29092}),
        )
        assert kernel.reach(1, peer, user=1001) == f"19092 {peer}:{PORT}"
        assert kernel.reach(1, peer, user=1002) == f"29092 {peer}:{PORT}"
        assert kernel.reach(1, second, user=1001) == f"19092 {second}:{PORT}"
        # what the first one's sidecar then sends to the second broker passes that one's sidecar
        assert kernel.reach(1, second, mark=mark_of(1)) == f"29093 {second}:{PORT}"
        assert kernel.reach(1, second, mark=mark_of(2)) == f"{PORT} None"
        assert kernel.reach(1, peer, user=1003) == f"{PORT} None"

    @pytest.mark.long
    def test_leftover_without_an_owner_is_removed_and_no_other(self, kernel: Kernel) -> None:
        """The rules of a sidecar that runs stay."""
        weir = [sys.executable, "-m", "weir", "capture", "remove"]
        rules = CaptureRules(7, PORT, {4: 19093}, {4: 19092})
        kernel.hosts.run(1, "nft", rules.create(owned=False).replace("\n", ";"))
        assert kernel.hosts.run(1, *weir) == "weir_7 removed.\n"
        assert kernel.hosts.run(1, *weir) == "Nothing to remove.\n"
        kernel.set(rules_of(kernel.hosts))
        refused = subprocess.run(
            kernel.hosts.on(1, weir), cwd=PROJECT, capture_output=True, text=True, timeout=30, check=False
        )
        assert refused.returncode == 1
        assert refused.stderr == "weir: weir_1: a sidecar that runs holds it; stop that sidecar, and it is gone.\n"


def test_versions_and_sides_without_a_port_have_no_redirect() -> None:
    rules = [rule for rule in CaptureRules(1, PORT, {4: 19093}, {}).create().splitlines() if "to :" in rule]
    assert len(rules) == 2  # from other machines, and from other sidecars of this one
    assert "ip6" not in "".join(rules)


def test_addresses_go_to_the_set_of_their_version() -> None:
    rules = CaptureRules(1, PORT, {4: 1}, {4: 2})
    told = rules.addresses([ip_address("10.0.0.1")], map(ip_address, ("10.0.0.3", "10.0.0.2", "fd00::2")))
    assert "add element inet weir_1 own4 { 10.0.0.1 }" in told
    assert "add element inet weir_1 peers4 { 10.0.0.2, 10.0.0.3 }" in told
    assert "add element inet weir_1 peers6 { fd00::2 }" in told
    assert told.count("flush set") == 4


def test_no_name_has_to_be_looked_up_in_etc_protocols() -> None:
    """It is missing in containers without Debian's netbase. `ip`, `ip6` and `tcp` are words of nft itself."""
    assert "icmp" not in CaptureRules(1, PORT, {4: 1, 6: 1}, {4: 2, 6: 2}).create()


def test_marks_of_two_sidecars_differ() -> None:
    assert mark_of(1) != mark_of(2)
    assert mark_of(1) >> 16 == mark_of(40_000) >> 16 == 0x7777
