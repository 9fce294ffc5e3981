# SPDX-License-Identifier: Apache-2.0
"""Sidecars that capture the connections of real brokers, each on a host (a network namespace) of its own.

No broker is configured for it. In every test records are produced with acks=all all the while: none may be lost, and no
replica may leave the ISR.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.fakes.pki import Authority
from tests.integration.captures import CAPTURES, links, passes_directly, unharmed
from tests.integration.moves import MB, assert_identical, assert_rate, filled, moving, now, throttle, wait_for_bytes
from tests.integration.out_of_memory import MemoryGroup
from weir.cli.move_sidecars import Sidecars
from weir.lab.hosted import PORT, HostedCluster
from weir.lab.received import ReceivedBytes
from weir.lab.sidecar import PROJECT, Sidecar

pytestmark = CAPTURES

LEADER, PEER, FOLLOWER = 1, 2, 3
RATE = 2 * MB
READ_RATE = MB // 2
PAGE = 4096  # bytes
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[HostedCluster]:
    with HostedCluster() as cluster:
        yield cluster


@pytest.fixture
def live(cluster: HostedCluster) -> Iterator[str]:
    """A topic that is produced to; sidecars are stopped afterwards, their throttles gone."""
    topic = f"live-{next(_numbers)}"
    cluster.create_topic(topic, {0: [LEADER, PEER]})
    yield topic
    for sidecar in cluster.sidecars.values():
        if sidecar.alive:
            sidecar.kill()


@pytest.fixture
def topics(cluster: HostedCluster, live: str) -> tuple[str, str]:
    """A topic that is moved, and one that is produced to."""
    return filled(cluster, f"moved-of-{live}", [LEADER], 16 * MB), live


def put_in(cluster: HostedCluster, topic: str, *brokers: int, **capture: Any) -> None:
    """Put sidecars in; each throttles `topic` as a leader."""
    for broker in brokers:
        cluster.put_in(broker, capture, {"throttle": throttle(topic, leader=RATE)})
    for broker in brokers:
        cluster.sidecars[broker].wait_until("/readyz", 20)


def refused(sidecar: Sidecar) -> float:
    return sidecar.metrics().value("weir_connections_refused_total", reason="too_many")


def is_captured(cluster: HostedCluster) -> bool:
    """Whether what the peer fetches from the leader passes both sidecars."""
    return links(cluster.sidecars[LEADER], "leader") > 0 and links(cluster.sidecars[PEER], "follower") > 0


def between(cluster: HostedCluster, received: ReceivedBytes, first: int, last: int) -> tuple[float, float]:
    """Wait for so many MB. Returns when the first and the last of them had come."""
    wait_for_bytes(cluster, received, first * MB)
    begun = now(received)
    wait_for_bytes(cluster, received, last * MB)
    return begun, now(received)


def test_sidecars_are_put_in_throttle_a_move_and_are_taken_out(cluster: HostedCluster, topics: tuple[str, str]) -> None:
    moved, live = topics
    with unharmed(cluster, live):
        sleep(2)
        put_in(cluster, moved, LEADER, PEER, FOLLOWER)
        cluster.wait_for("all in the path", lambda: is_captured(cluster), 30)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            begun, end = between(cluster, received, 4, 12)
            for sidecar in cluster.sidecars.values():
                sidecar.send(signal.SIGTERM)
            for sidecar in cluster.sidecars.values():
                assert sidecar.wait(20) == 0
        sleep(1)
    assert_rate(received.series(), begun, end, RATE)
    assert_identical(cluster, [moved], LEADER, FOLLOWER)
    assert all(passes_directly(cluster, broker) for broker in cluster.broker_ids)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_replication_goes_on_past_a_sidecar_that_hangs_or_died(
    cluster: HostedCluster, topics: tuple[str, str], fault: signal.Signals
) -> None:
    """Killed: the kernel removes the rules at once. Hanging: new connections pass beside it after 5 s.

    The kernel then kills it, within 10 s, and so ends the connections that it holds.
    """
    moved, live = topics
    with unharmed(cluster, live, p99_seconds=5.0 if fault == signal.SIGKILL else 15.0):
        put_in(cluster, moved, LEADER, FOLLOWER)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, 4 * MB)
            cluster.sidecars[LEADER].send(fault)
            if fault == signal.SIGSTOP:
                sleep(6)
                assert cluster.sidecars[LEADER].alive
                cluster.hosts.run(PEER, "python3", "-c", _ASKS_API_VERSIONS, cluster.hosts.address(LEADER))
                cluster.wait_for("its end", lambda: not cluster.sidecars[LEADER].alive, 4)
            stopped = monotonic()
        assert monotonic() - stopped < 15  # the rest, 12 MB, takes a second without a throttle
    assert_identical(cluster, [moved], LEADER, FOLLOWER)


_ASKS_API_VERSIONS = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT}), timeout=3) as connection:
    connection.sendall(bytes.fromhex("0000000d" "0012" "0000" "00000001" "0003") + b"new")
    assert len(connection.recv(4)) == 4
"""


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        group = MemoryGroup(f"weir-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error}")
    yield group
    group.remove()


def test_replication_goes_on_past_a_sidecar_out_of_memory(
    cluster: HostedCluster, group: MemoryGroup, topics: tuple[str, str]
) -> None:
    moved, live = topics
    with unharmed(cluster, live):
        put_in(cluster, moved, LEADER, FOLLOWER)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, 4 * MB)
            sidecar = cluster.sidecars[LEADER]
            group.confine(sidecar.pid, PAGE)
            cluster.wait_for("the kill", lambda: not _lives_when_asked(sidecar), 20)
            stopped = monotonic()
        assert monotonic() - stopped < 15
    assert group.kills == 1
    assert_identical(cluster, [moved], LEADER, FOLLOWER)


def _lives_when_asked(sidecar: Sidecar) -> bool:
    """Ask for its metrics, which takes memory."""
    with suppress(OSError, http.client.HTTPException):
        sidecar.http("GET", "/metrics", seconds=1)
    return sidecar.alive


def test_sidecar_is_in_the_path_only_while_it_throttles(cluster: HostedCluster, live: str) -> None:
    """In and out ten times at the leader, each within 10 s of a throttle.

    Each time the follower makes its connection anew and waits for a second (replica.fetch.backoff.ms), so records wait.
    """
    with unharmed(cluster, live, p99_seconds=15):
        sidecar = cluster.put_in(LEADER, {"when": "throttled"})
        sidecar.wait_until("/readyz", 20)
        assert links(sidecar, "leader") == 0
        for _ in range(10):
            sidecar.put_throttle(throttle(live, leader=RATE))
            cluster.wait_for("in the path", lambda: links(sidecar, "leader") > 0, 30)
            assert sidecar.metrics().value("weir_captured") == 1
            sidecar.delete_throttle()
            cluster.wait_for("out of the path", lambda: links(sidecar, "leader") == 0, 30)
            assert sidecar.metrics().value("weir_captured") == 0


def test_bytes_of_clients_past_the_sidecar_count_beside_a_move(cluster: HostedCluster, topics: tuple[str, str]) -> None:
    """`weir move --auto` asks the sidecars what else its links carry: here a consumer's 4 MB, directly."""
    moved, live = topics
    put_in(cluster, live, LEADER, PEER)
    cluster.wait_for("captured", lambda: is_captured(cluster), 30)
    sidecars = Sidecars([cluster.sidecars[LEADER].admin_address])
    before = sidecars.passed(frozenset())[LEADER]
    read = 0
    while read < 4 * MB:
        read += _bytes_read(cluster, moved, seconds=2)
    after = sidecars.passed(frozenset())[LEADER]
    assert before.of_link[1] and after.of_link[1]
    assert read < after.outgoing - before.outgoing < 2.5 * read  # what comes unasked at the end is not read


def test_client_on_the_same_port_is_left_alone(cluster: HostedCluster, live: str) -> None:
    """Its connection stands through all of it, and passes no sidecar."""
    with socket.create_connection((cluster.hosts.address(LEADER), PORT), timeout=5) as client:
        with unharmed(cluster, live):
            put_in(cluster, live, LEADER)
            ports = cluster.hosts.run(LEADER, "ss", "-tnH", "state", "established", f"sport = :{PORT}")
            assert f":{client.getsockname()[1]}" in ports  # it is the broker that it talks to
        client.sendall(bytes.fromhex("0000000d00120000000000010003") + b"old")
        assert len(client.recv(4)) == 4


def test_clients_are_limited_beside_a_quota_at_leaders(cluster: HostedCluster, topics: tuple[str, str]) -> None:
    """Clients and followers use the same port; no broker and no client is configured for it."""
    moved, live = topics
    quota = {"name": "into-3", "side": "follower", "rate": RATE, "peers": [FOLLOWER], "kept_at": "leaders"}
    reader = {"client_id": "reader", "byte.rate.limit": READ_RATE}
    with unharmed(cluster, live):
        for broker in (LEADER, PEER):
            cluster.put_in(
                broker, {"from": "anyone"}, {"throttle": {"quotas": [quota]}, "limits": {"client": [reader]}}
            )
        for broker in (LEADER, PEER):
            cluster.sidecars[broker].wait_until("/readyz", 20)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, 4 * MB)
            begun = now(received)
            read = _bytes_read(cluster, moved, seconds=4)
            end = now(received)
            for broker in (LEADER, PEER):
                cluster.sidecars[broker].delete_throttle()
    assert_rate(received.series(), begun, end, RATE)
    assert 0 < read < 4 * READ_RATE * 1.3  # all of it is a third more
    assert_identical(cluster, [moved], LEADER, FOLLOWER)


def _bytes_read(cluster: HostedCluster, topic: str, seconds: float) -> int:
    """Return how many bytes the client "reader" gets of a topic's first partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, client_id="reader", max_partition_fetch_bytes=50_000
    )
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        read, deadline = 0, monotonic() + seconds
        while monotonic() < deadline:
            polled = consumer.poll(timeout_ms=100)
            read += sum(len(record.value) for records in polled.values() for record in records)
        return read
    finally:
        consumer.close()


def test_captured_sidecars_speak_tls_until_one_is_killed(
    cluster: HostedCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """[tls] around brokers that speak plaintext. Without one of the two, the other goes on without TLS."""
    moved, live = topics
    authority = Authority(tmp_path)
    with unharmed(cluster, live):
        for broker in (LEADER, PEER, FOLLOWER):
            keys = {"certificate": authority.issue(f"broker-{broker}").together, "ca": authority.ca}
            tls = {**keys, "allowed_names": ["broker-*"]}
            sidecar = cluster.put_in(broker, {}, {"tls": tls, "throttle": throttle(moved, leader=RATE)})
            sidecar.wait_until("/readyz", 20)
            cluster.wait_for("captured", partial(captures, sidecar), 20)
        peer = cluster.sidecars[PEER]
        cluster.wait_for("TLS between them", lambda: tls_of(cluster.sidecars[LEADER], "leader", "client") > 0, 20)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            begun, end = between(cluster, received, 2, 8)
            assert_rate(received.series(), begun, end, RATE)
            assert tls_of(cluster.sidecars[FOLLOWER], "follower", "upstream") > 0
            cluster.sidecars[LEADER].kill()
        cluster.wait_for(
            "the peer without TLS", lambda: peer.metrics().value("weir_tls_plaintext_total", side="follower") > 0, 20
        )
    assert_identical(cluster, [moved], LEADER, FOLLOWER)


def captures(sidecar: Sidecar) -> bool:
    return sidecar.metrics().value("weir_captured") > 0


def tls_of(sidecar: Sidecar, side: str, end: str) -> float:
    return sidecar.metrics().value("weir_tls_handshakes_total", side=side, end=end, result="ok")


@contextmanager
def crowding(address: tuple[str, int]) -> Iterator[None]:
    """Take every connection that there is at an address, and each that becomes free."""
    ended = Event()

    def crowd() -> None:
        with ExitStack() as kept:
            while not ended.wait(0.01):
                with suppress(OSError):
                    kept.enter_context(socket.create_connection(address, timeout=5))

    thread = Thread(target=crowd)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_clients_that_take_all_connections_keep_no_broker_out(cluster: HostedCluster, topics: tuple[str, str]) -> None:
    moved, live = topics
    limits = {"max_connections": 64, "max_connections_per_address": 64}
    with unharmed(cluster, live):
        tables = {"throttle": throttle(moved, leader=RATE), "limits": limits}
        sidecar = cluster.put_in(LEADER, {"from": "anyone"}, tables)
        sidecar.wait_until("/readyz", 20)
        with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
            wait_for_bytes(cluster, received, 2 * MB)
            with crowding((cluster.hosts.address(LEADER), PORT)):
                cluster.wait_for("refused clients", lambda: refused(sidecar) > 0, 20)
                cluster.hosts.run(FOLLOWER, "ss", "-KtnH", "dport", "=", f":{PORT}")
                sleep(2)  # the fetcher waits for a second before it comes again
                begun, total = now(received), received.total
                wait_for_bytes(cluster, received, total + 4 * MB)
                assert_rate(received.series(), begun, now(received), RATE)
            sidecar.delete_throttle()
    assert_identical(cluster, [moved], LEADER, FOLLOWER)


def test_broker_that_restarts_comes_back_through_its_sidecar(cluster: HostedCluster, topics: tuple[str, str]) -> None:
    moved, _ = topics
    put_in(cluster, moved, LEADER, PEER)
    cluster.stop_broker(FOLLOWER)
    cluster.put_in(FOLLOWER, {})
    cluster.start_broker(FOLLOWER)
    cluster.sidecars[FOLLOWER].wait_until("/readyz", 20)
    with moving(cluster, [moved], [LEADER, FOLLOWER]) as received:
        begun, end = between(cluster, received, 2, 10)
        cluster.sidecars[LEADER].delete_throttle()
    assert_rate(received.series(), begun, end, RATE)
    assert links(cluster.sidecars[FOLLOWER], "follower") > 0
    assert_identical(cluster, [moved], LEADER, FOLLOWER)


def test_ipv6_is_captured_too() -> None:
    with HostedCluster(brokers=2, ipv6=True) as cluster:
        moved = filled(cluster, "moved", [1], 12 * MB)
        put_in(cluster, moved, 1, 2)
        with moving(cluster, [moved], [1, 2]) as received:
            begun, end = between(cluster, received, 2, 10)
        assert_rate(received.series(), begun, end, RATE)
        assert links(cluster.sidecars[1], "leader") > 0
        assert links(cluster.sidecars[2], "follower") > 0
        assert_identical(cluster, [moved], 1, 2)


def test_sidecar_without_a_file_finds_its_broker(cluster: HostedCluster, live: str, tmp_path: Path) -> None:
    """And answers at an address that other machines reach, to who shows the token."""
    server = cluster.places[PEER].client_address
    admin, token = f"{server.rpartition(':')[0]}:9690", tmp_path / "token"
    token.write_text("of-this-cluster-0123456789\n")
    weir = cluster.hosts.on(PEER, [sys.executable, "-m", "weir"])
    with subprocess.Popen(
        [
            *(*weir, "run", "--capture", str(PORT), "--bootstrap-server", server),
            *("--admin-listen", admin, "--token-file", str(token)),
        ],
        cwd=PROJECT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:

        def status() -> Any:
            asked = subprocess.run(
                [*weir, "status", "--admin", admin, "--json"],
                cwd=PROJECT,
                env={**os.environ, "WEIR_TOKEN_FILE": str(token)},
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            return json.loads(asked.stdout)[0] if asked.returncode == 0 else {}

        try:
            cluster.wait_for("the follower's link", lambda: '"ready": true' in json.dumps(status()), 20)
            assert f'"broker_id": {PEER}' in json.dumps(status())
        finally:
            running.send_signal(signal.SIGTERM)
            _, said = running.communicate(timeout=20)
    assert "event=captured port=9092 peers=2" in said
    assert running.returncode == 0
