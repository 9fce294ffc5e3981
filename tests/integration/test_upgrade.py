# SPDX-License-Identifier: Apache-2.0
"""Sidecars that hand over to new processes of them, beside real brokers whose moves and producers go on."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from confluent_kafka import Producer
from kafka.protocol.consumer import FetchRequest

from tests.integration.captures import CAPTURES, links, unharmed
from tests.integration.moves import (
    LONG,
    MB,
    assert_identical,
    assert_rate,
    filled,
    moving,
    now,
    rate_between,
    throttle,
    throttled_move,
    wait_for_bytes,
)
from tests.proxy.limited import SINK
from weir.lab.cluster import Cluster
from weir.lab.connect import through_sidecar
from weir.lab.hosted import HostedCluster
from weir.lab.modes import KraftCluster
from weir.lab.produce import LiveProducer
from weir.lab.settings import Route
from weir.lab.sidecar import Sidecar

pytestmark = pytest.mark.integration

LEADER, FOLLOWER = 1, 2
RATE = 2 * MB
MOST_STALL = 0.8
"""Seconds that a record with acks=all may wait meanwhile: a follower that has to connect again waits for 1 s."""


@contextmanager
def ended(sidecars: Mapping[int, Sidecar]) -> Iterator[None]:
    """End what has taken over from `sidecars`."""
    try:
        yield
    finally:
        for sidecar in sidecars.values():
            with suppress(ProcessLookupError):
                os.killpg(sidecar.pid, signal.SIGKILL)


def hand_over(cluster: Cluster, sidecar: Sidecar, times: int = 2) -> None:
    """Have a sidecar's process hand over, and its successor too."""
    pid = sidecar.pid
    for number in range(1, times + 1):
        os.kill(pid, signal.SIGUSR2)
        cluster.wait_for("a new process", partial(_has_handed_over, sidecar, number), 60)
        pid = int(re.findall(r"event=taken_over.* pid=(\d+)", sidecar.output())[-1])
    assert sidecar.output().count("event=handed_over serves=true") == times
    assert sidecar.wait(10) == 0


def _has_handed_over(sidecar: Sidecar, times: int) -> bool:
    return sidecar.output().count("event=handed_over") == times


def assert_not_stalled(producer: LiveProducer) -> None:
    slowest = max(record.latency for record in producer.acked)
    print(f"slowest record of {len(producer.acked)}: {slowest:.3f} s; p50 {producer.latency(0.5) * 1000:.0f} ms")
    assert slowest < MOST_STALL
    assert not producer.failed


def test_listeners_hand_over_in_mid_move_and_no_record_waits() -> None:
    with KraftCluster(2, sidecars=True) as cluster, ended(cluster.sidecars):
        moved = filled(cluster, "moved", [LEADER], 60 * MB, batch_bytes=LONG)
        cluster.create_topic("live", {0: [LEADER, FOLLOWER]})
        table = {LEADER: throttle(moved, leader=RATE)}
        with (
            LiveProducer(cluster.bootstrap_servers, "live", [0], rate=200) as producer,
            throttled_move(cluster, table, moved) as received,
        ):
            wait_for_bytes(cluster, received[moved], 2 * MB)
            begun = now(received[moved])
            for sidecar in cluster.sidecars.values():
                hand_over(cluster, sidecar)
            wait_for_bytes(cluster, received[moved], received[moved].total + 4 * MB)
            assert_rate(received[moved].series(), begun, now(received[moved]), RATE)
        assert_not_stalled(producer)
        cluster.check_logs()


def test_batches_larger_than_the_quota_are_paid_for_by_the_processes_that_follow() -> None:
    """A batch of 4 MB owes 4 s of the quota, which no new process may forgive."""
    with KraftCluster(2, sidecars=True) as cluster, ended(cluster.sidecars):
        cluster.create_topic("large", {0: [LEADER]}, {"max.message.bytes": str(5 * MB)})
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers[0], "message.max.bytes": 5 * MB})
        for _ in range(10):
            producer.produce("large", os.urandom(4 * MB - 1000), partition=0)
            producer.flush()
        with throttled_move(cluster, {LEADER: throttle("large", leader=MB)}, "large") as received:
            wait_for_bytes(cluster, received["large"], 3 * MB)
            begun = now(received["large"])
            hand_over(cluster, cluster.sidecars[LEADER], 3)
            wait_for_bytes(cluster, received["large"], 35 * MB, 60)
            end = now(received["large"])
            rate = rate_between(received["large"].series(), begun, end)
            print(f"{rate / MB:.3f} of the quota through three upgrades, in {end - begun:.1f} s")
            assert 0.8 * MB <= rate <= 1.1 * MB
        cluster.check_logs()


def test_limited_answer_under_way_comes_whole_and_is_paid_once() -> None:
    """A consumer reads 12 MB of records slowly, so half of them pass after the old process was to go."""
    with KraftCluster(1, routes=Route.INGRESS) as cluster, ended(cluster.sidecars):
        cluster.create_topic("orders", {0: [1]})
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers[0], "linger.ms": 50})
        for _ in range(3000):
            producer.produce("orders", os.urandom(4000), partition=0)
        producer.flush()
        sidecar = cluster.sidecars[1]
        status, body = sidecar.http("PUT", "/v1/limits", {"client": [{"client_id": SINK, "record.rate.limit": 1000}]})
        assert status == 200, body
        host, _, port = through_sidecar(cluster, 1).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as consumer, consumer.makefile("rb") as answers:
            consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            consumer.sendall(_fetch_of_all(1))
            size = answers.read(4)
            os.kill(sidecar.pid, signal.SIGUSR2)
            cluster.wait_for("the hand-over", lambda: "event=handing_over connections=1" in sidecar.output(), 60)
            consumer.sendall(_fetch_of_all(2))
            begin = time.monotonic()
            first = answers.read(int.from_bytes(size))
            passed = time.monotonic()
            again = answers.read(int.from_bytes(answers.read(4)))
            assert begin + 2.9 < time.monotonic() < passed + 6
        assert (first[:4], again[:4]) == ((1).to_bytes(4), (2).to_bytes(4))
        assert len(first) > 12 * MB
        assert first[4:] == again[4:]
        cluster.wait_for("a new process", partial(_has_handed_over, sidecar, 1), 60)
        assert sidecar.wait(10) == 0


def _fetch_of_all(number: int) -> bytes:
    topics = FetchRequest.FetchTopic
    partition = topics.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MB)
    asked = FetchRequest(
        version=12,
        session_id=0,
        session_epoch=-1,
        max_wait_ms=6000,
        topics=[topics(topic="orders", partitions=[partition])],
    )
    asked.with_header(correlation_id=number, client_id=SINK)
    return bytes(asked.encode(version=12, header=True, framed=True))


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
class TestCapture:
    pytestmark = CAPTURES

    def test_it_hands_over_in_mid_move_and_no_record_waits(self, ipv6: bool) -> None:
        with HostedCluster(3, ipv6=ipv6) as cluster, ended(cluster.sidecars):
            moved = filled(cluster, "moved", [1], 100 * MB, batch_bytes=LONG)
            cluster.create_topic("live", {0: [1, 2]})
            for broker in cluster.broker_ids:
                cluster.put_in(broker, {}).wait_until("/readyz", 30)
            leader = cluster.sidecars[1]
            leader.put_throttle(throttle(moved, leader=RATE))
            cluster.wait_for("captured", lambda: _all_pass(cluster), 30)
            with unharmed(cluster, "live") as producer, moving(cluster, [moved], [1, 3]) as received:
                wait_for_bytes(cluster, received, 2 * MB)
                begun = now(received)
                for sidecar in cluster.sidecars.values():
                    hand_over(cluster, sidecar)
                wait_for_bytes(cluster, received, received.total + 4 * MB)
                assert_rate(received.series(), begun, now(received), RATE)
                print(f"worst second: {received.series().worst_window()[0] / RATE:.3f} of the quota")
                assert _all_pass(cluster)
                leader.delete_throttle()
            assert_not_stalled(producer)
            assert_identical(cluster, [moved], 1, 3)


def _all_pass(cluster: Cluster) -> bool:
    sidecars = cluster.sidecars
    return links(sidecars[1], "leader") > 0 and links(sidecars[2], "follower") > 0
