# SPDX-License-Identifier: Apache-2.0
"""Sidecars that capture beside a firewall and many other connections, on real brokers on hosts of their own."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest

from tests.integration.captures import CAPTURES, links, unharmed
from weir.lab.hosted import PORT, HostedCluster

pytestmark = CAPTURES

LEADER, PEER = 1, 2
OTHERS = 300

FIREWALL = f"""
add table inet filter
add chain inet filter input {{ type filter hook input priority 0; policy drop; }}
add rule inet filter input ct state established,related accept
add rule inet filter input iif lo accept
add rule inet filter input meta l4proto {{ icmp, ipv6-icmp }} accept
add rule inet filter input tcp dport {{ {PORT}, 9093, 9690 }} accept
"""
"""Lets in what the broker and its sidecar listen on, and answers to what this machine has begun."""


@pytest.fixture(params=[False, True], ids=["ipv4", "ipv6"])
def cluster(request: pytest.FixtureRequest) -> Iterator[HostedCluster]:
    with HostedCluster(2, ipv6=request.param) as cluster:
        yield cluster


@contextmanager
def others(cluster: HostedCluster) -> Iterator[list[socket.socket]]:
    """Connections of clients with the leader's broker, which its host's firewall has never seen begin."""
    host = cluster.places[LEADER].listener_address.rpartition(":")[0].strip("[]")
    with ExitStack() as kept:
        yield [kept.enter_context(socket.create_connection((host, PORT), timeout=5)) for _ in range(OTHERS)]


def tracked(cluster: HostedCluster) -> int:
    return int(cluster.hosts.run(LEADER, "cat", "/proc/sys/net/netfilter/nf_conntrack_count"))


def tracks_all_for(cluster: HostedCluster) -> str | None:
    return cluster.sidecars[LEADER].status()["capture"]["all_tracked_for"]  # type: ignore[no-any-return]


def test_brokers_alone_are_tracked_until_a_firewall_needs_all(cluster: HostedCluster) -> None:
    live = "live"
    cluster.create_topic(live, {0: [LEADER, PEER]})
    with unharmed(cluster, live), others(cluster) as clients:
        for broker in (LEADER, PEER):
            cluster.put_in(broker, {}).wait_until("/readyz", 20)
        sidecar = cluster.sidecars[LEADER]
        cluster.wait_for("captured", lambda: links(sidecar, "leader") > 0, 30)
        cluster.wait_for("no others tracked", lambda: tracks_all_for(cluster) is None, 10)
        stop = threading.Event()
        asking = threading.Thread(target=partial(ask, clients, stop))
        asking.start()
        try:
            cluster.wait_for("a turn of all", lambda: stop.wait(3) or True, 10)
            assert tracked(cluster) < OTHERS / 3
            cluster.hosts.run(LEADER, "nft", FIREWALL.replace("\n", ";"))
            cluster.wait_for("told", lambda: tracks_all_for(cluster) == "table inet filter", 2)
            cluster.wait_for("all tracked", lambda: tracked(cluster) > OTHERS, 20)
            cluster.sidecars[PEER].kill()  # its broker comes back through the firewall, and through the sidecar
            cluster.put_in(PEER, {}).wait_until("/readyz", 30)
            cluster.wait_for("captured again", lambda: links(sidecar, "leader") > 0, 30)
        finally:
            stop.set()
            asking.join()
    assert links(sidecar, "leader") > 0


def ask(clients: list[socket.socket], stop: threading.Event) -> None:
    """Ask with one connection after the other, and have each answered."""
    while not stop.is_set():
        for client in clients:
            with suppress(TimeoutError):
                client.sendall(bytes.fromhex("0000000d00120000000000010003") + b"old")
                client.recv(4096)
            if stop.wait(0.002):
                return
