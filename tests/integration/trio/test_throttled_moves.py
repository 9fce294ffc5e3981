# SPDX-License-Identifier: Apache-2.0
"""What Kafka's own tests check of throttled replication, in which nothing fails, with sidecars in place of its quota.

The newest Fetch version always; v3 and v12, which most other tests use, where minutes are there.
"""

from time import sleep

import pytest

from tests.integration.moves import (
    BATCH_BYTES,
    MB,
    assert_identical,
    assert_keeps,
    assert_rate,
    assert_read_once,
    assert_throttled,
    filled,
    lead_from,
    moving,
    now,
    throttle,
    wait_for_bytes,
)
from tests.integration.trio.throttles import on
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS, NEWEST
from weir.lab.produce import LiveProducer, fill

OTHERS = [pytest.param(mode.name, marks=pytest.mark.slow) for mode in CORNERS if mode != NEWEST]
pytestmark = [pytest.mark.integration, on(NEWEST.name, *OTHERS)]

RATE = 2 * MB


def test_old_segments_are_throttled(cluster: Cluster) -> None:
    """ReplicationQuotasTest.shouldThrottleOldSegments: what is moved lies in many closed segments."""
    topic, partition = "old", 0
    cluster.create_topic(topic, {partition: [1]}, {"segment.bytes": str(2**20)})
    fill(cluster.bootstrap_servers, topic, {partition: 12 * MB}, batch_bytes=BATCH_BYTES)
    assert len(cluster.segments(topic, partition, 1)) > 10
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with moving(cluster, [topic], [1, 2]) as received:
        pass
    assert_keeps(received.series(), RATE)
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")


def test_rest_of_a_move_is_free_when_the_throttle_is_removed(cluster: Cluster) -> None:
    topic = filled(cluster, "freed", [1], 40 * MB)
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with moving(cluster, [topic], [1, 2]) as received:
        wait_for_bytes(cluster, received, 4 * MB)
        assert received.series().mean_rate() < 1.2 * RATE
        cluster.sidecars[1].delete_throttle()
        assert cluster.wait_for(f"{topic} in sync", lambda: cluster.is_in_sync(topic), 30) < 12  # by the throttle: 18 s
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")


def test_move_goes_on_throttled_under_a_new_leader(cluster: Cluster) -> None:
    """The follower changes over to the new leader, whose sidecar has a budget of its own; no byte comes twice."""
    topic, size = filled(cluster, "elected", [1, 2], 24 * MB), 24 * MB
    cluster.create_topic("elected-live", {0: [1, 2]})
    sleep(1)  # the peer hears the last high watermark: levels below 0.11 truncate to it
    rates = {1: 2 * RATE, 2: RATE}
    for broker_id, rate in rates.items():
        cluster.sidecars[broker_id].put_throttle(throttle(topic, leader=rate))
    with (
        LiveProducer(cluster.bootstrap_servers, "elected-live", [0], rate=20) as producer,
        moving(cluster, [topic], [1, 2, 3]) as received,
    ):
        wait_for_bytes(cluster, received, size // 2)
        assert_rate(received.series(), *received.series().span, rates[1])
        lead_from(cluster, [topic], [2, 1, 3])
        sleep(1.5)  # the new leader's first second
        begin = now(received)
    series = received.series()
    assert_rate(series, begin, series.span[1], rates[2])
    for follower in (1, 3):
        assert assert_identical(cluster, [topic], 2, follower) == series.received
    assert producer.failed == 0
    assert_read_once(cluster, "elected-live", producer)
    for broker_id in rates:
        assert_throttled(cluster, broker_id, "leader")


def test_cancelled_move_leaves_nothing_and_can_begin_anew(cluster: Cluster) -> None:
    topic = filled(cluster, "cancelled", [1], 12 * MB, partitions=1)  # of several, some would be there already
    partitions = sorted(cluster.admin.partitions([topic]))
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with cluster.received_bytes(2, partitions) as received:
        cluster.reassign(dict.fromkeys(partitions, (1, 2)))
        wait_for_bytes(cluster, received, 4 * MB)
        cluster.admin.reassign(dict.fromkeys(partitions))
        homes = [cluster.brokers[2].data / f"{topic}-{partition}" for _, partition in partitions]
        cluster.wait_for("the end of the replicas", lambda: not any(home.exists() for home in homes), 30)
    assert {state.replicas for state in cluster.admin.partitions([topic]).values()} == {(1,)}
    with moving(cluster, [topic], [1, 2]) as received:
        pass
    assert_keeps(received.series(), RATE)
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")
