# SPDX-License-Identifier: Apache-2.0
"""In-sync replicas are never throttled (KAFKA-4313), on real brokers with more produced than the quota."""

from contextlib import ExitStack
from functools import partial
from time import sleep

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_throttled,
    filled,
    moving,
    roles,
    throttle,
)
from weir.lab.cluster import Cluster
from weir.lab.modes import MODES, Mode
from weir.lab.produce import LiveProducer

pytestmark = pytest.mark.integration

RATE = MB // 8
LAG_TIME_MAX_SECONDS = 3


def sends_more(cluster: Cluster, broker_id: int) -> bool:
    """Whether the leader's side of a broker sends more of throttled topics than the quota."""
    metrics = cluster.sidecars[broker_id].metrics()
    return metrics.value("weir_throttled_rate_bytes_per_second", side="leader") > 1.05 * RATE


def test_no_replica_leaves_the_isr_above_the_quota(mode: Mode) -> None:
    """Topics of mixed volume, all of them throttled on both sides, while another one moves in beside them."""
    volumes = {"high": (40, 10_240), "medium": (50, 1024), "low": (2, 100)}  # records/s, bytes each: 0.46 MB/s in all
    lag_time_max = {"replica.lag.time.max.ms": LAG_TIME_MAX_SECONDS * 1000}
    with mode.cluster(2, sidecars=True, properties=lag_time_max) as cluster, ExitStack() as producing:
        for topic in volumes:
            cluster.create_topic(topic, {0: [1, 2], 1: [2, 1]})
        bulk = filled(cluster, "bulk", [1], 20 * MB)
        table = throttle(bulk, *volumes, leader=RATE, follower=RATE)
        for sidecar in cluster.sidecars.values():
            sidecar.put_throttle(table)
        producers = [
            producing.enter_context(
                LiveProducer(cluster.bootstrap_servers, topic, [0, 1], rate=rate, message_bytes=size)
            )
            for topic, (rate, size) in volumes.items()
        ]
        with moving(cluster, [bulk], [1, 2]) as received:
            sleep(3 * LAG_TIME_MAX_SECONDS)
            cluster.check_logs()
            for broker_id in (1, 2):  # each leads half of it, and sends more than the quota
                cluster.wait_for("more than the quota sent", partial(sends_more, cluster, broker_id), 40)
            assert received.total < MB  # so the move has to wait
            assert all(cluster.is_in_sync(topic) for topic in volumes)
            for producer in producers:
                assert producer.failed == 0
                assert producer.latency(0.99) < LAG_TIME_MAX_SECONDS
            producing.close()
            for sidecar in cluster.sidecars.values():
                sidecar.delete_throttle()
        assert_identical(cluster, [bulk, *volumes], 1, 2)
        assert_throttled(cluster, 1, "leader")
        assert_throttled(cluster, 2, "follower")
        cluster.check_logs()


def test_in_sync_replica_that_truncates_is_not_throttled() -> None:
    """A move begins a leader epoch: below 0.11 (KIP-101) a follower then truncates to its own high watermark.

    That is older than its leader's while records come, but the follower is in the ISR all the same: were it throttled,
    every producer with acks=all would wait.
    """
    with MODES["zookeeper-0.10.1"].cluster(sidecars=True) as cluster:
        leader, peer, follower = roles(cluster)
        topic, partitions = "orders", range(20)
        cluster.create_topic(topic, {partition: [leader, peer] for partition in partitions})
        with LiveProducer(cluster.bootstrap_servers, topic, partitions, rate=500, linger_ms=100) as producer:
            sleep(2)
            cluster.sidecars[leader].put_throttle(throttle(topic, leader=0))
            with moving(cluster, [topic], [leader, peer, follower]):
                sleep(7)
                cluster.sidecars[leader].delete_throttle()
        assert_throttled(cluster, leader, "leader")
        assert producer.failed == 0
        assert producer.latency(1) < 6  # one that is throttled waits for 7 s and more
        cluster.check_logs(allow={"Truncating"})
