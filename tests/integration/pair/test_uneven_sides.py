# SPDX-License-Identifier: Apache-2.0
"""Two sidecars in a row that throttle other rates or other topics: each side's quota holds, and nobody is hurt.

What the follower's sidecar leaves out is not in the leader's sidecar's requests, and comes back as if it were new.
"""

from time import sleep

import pytest

from tests.integration.moves import (
    LONG,
    MB,
    filled,
    now,
    rate_between,
    throttle,
    throttled_move,
    wait_for_bytes,
    wait_for_probes,
)
from weir.lab.cluster import Cluster
from weir.lab.produce import fill

pytestmark = pytest.mark.integration

LARGE_BATCH_BYTES = 900_500
PROBE_SECONDS = 10


def large(cluster: Cluster, topic: str, size: int, message_bytes: int = LARGE_BATCH_BYTES - 500) -> str:
    """Create a topic of three partitions on broker 1, each with `size` bytes in large batches; return its name."""
    partitions = range(3)
    cluster.create_topic(topic, {key: [1] for key in partitions})
    fill(cluster.bootstrap_servers, topic, dict.fromkeys(partitions, size), message_bytes=message_bytes)
    return topic


def messages_behind(cluster: Cluster, broker_id: int, side: str) -> float:
    return cluster.sidecars[broker_id].metrics().value("weir_replica_lag_messages_sum", side=side)


def test_leader_at_rate_zero_sends_nothing(pair: Cluster) -> None:
    """The follower has quota, and asks again and again; one partition in sync keeps its requests from being held."""
    topic = large(pair, "at-zero", 4 * MB)
    pair.create_topic("calm-at-zero", {0: [1, 2]})
    tables = {1: throttle(topic, leader=0), 2: throttle(topic, follower=5 * MB)}
    with throttled_move(pair, tables, topic) as received:
        wait_for_probes(pair, 2)
        assert received[topic].total == 0


def test_leaders_quota_holds_whatever_the_follower_leaves_out(pair: Cluster) -> None:
    topic, rate = large(pair, "left-out", 8 * MB), MB
    pair.create_topic("calm-left-out", {0: [1, 2]})
    tables = {1: throttle(topic, leader=rate), 2: throttle(topic, follower=5 * rate)}
    with throttled_move(pair, tables, topic) as received:
        wait_for_bytes(pair, received[topic], 0)
        sleep(PROBE_SECONDS)
        series = received[topic].series()
        begin, end = series.span[0], now(received[topic])
        assert series.worst_window()[0] <= 1.05 * rate + 2 * LARGE_BATCH_BYTES  # one of them was late on its way
        assert 0.4 * rate * (end - begin) <= series.received <= 1.05 * rate * (end - begin) + 2 * LARGE_BATCH_BYTES


def test_topic_of_two_quotas_is_served_beside_one_of_the_leader(pair: Cluster) -> None:
    """What is granted on one side now and on the other then keeps its place in the line."""
    both, leaders = (
        filled(pair, "both", [1], 20 * MB, batch_bytes=LONG),
        filled(pair, "leaders", [1], 60 * MB, batch_bytes=LONG),
    )
    tables = {1: throttle(both, leaders, leader=4 * MB), 2: throttle(both, follower=2 * MB)}
    with throttled_move(pair, tables, both, leaders) as received:
        wait_for_bytes(pair, received[leaders], 0)
        begin = now(received[both])
        sleep(6)
        end = now(received[both])
        behind = [messages_behind(pair, 2, "follower"), messages_behind(pair, 1, "leader")]
        assert rate_between(received[both].series(), begin, end) > 0.25 * 2 * MB
        # nothing is written, so only what the follower asks for tells the leader's side how far it has come
        assert behind[1] == pytest.approx(behind[0], abs=300)


def test_no_answer_is_refused_where_the_sides_topics_differ(pair: Cluster) -> None:
    """The leader's sidecar may answer nothing at all; what the follower's adds would make that an incomplete answer."""
    rate, batch_bytes = MB // 10, 100_000
    followers, leaders = (large(pair, name, 2 * MB, batch_bytes) for name in ("followers", "leaders"))
    tables = {1: throttle(leaders, leader=rate), 2: throttle(followers, follower=rate)}
    before = set(pair.bad_signs())
    with throttled_move(pair, tables, followers, leaders) as received:
        wait_for_bytes(pair, received[followers], 0)
        begin = now(received[followers])
        sleep(7)
        assert set(pair.bad_signs()) - before == set()
        for topic in (followers, leaders):
            assert rate_between(received[topic].series(), begin, now(received[topic])) > 0.4 * rate
