# SPDX-License-Identifier: Apache-2.0
"""A follower's quota that its leaders keep together, and quotas by racks, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep

import pytest

from tests.integration.moves import MB, MESSAGE_BYTES, assert_rate, assert_used, filled, now, throttle, wait_for_bytes
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.lab.received import ReceivedBytes

pytestmark = pytest.mark.integration

RATE = MB
LEADERS, FOLLOWER = (1, 2, 3), 4
SLOW = 100_000
QUOTA = {"name": "into-4", "side": "follower", "rate": RATE, "peers": [FOLLOWER], "kept_at": "leaders"}

LEAST_SUM = 0.85
"""How much of the rate all leaders together have to use here: more than is left where a third is not divided."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    racks = {one: {"broker.rack": "far" if one == FOLLOWER else "near"} for one in (*LEADERS, FOLLOWER)}
    with NEWEST.cluster(
        4, sidecars=True, poll_isr=True, throttle={"quotas": [QUOTA]}, broker_properties=racks
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    """Whatever a test came to, the next one finds no throttle and no move."""
    yield
    for sidecar in cluster.sidecars.values():
        sidecar.delete_throttle()
    cluster.admin.wait_for_reassignments(60)


def _share(cluster: Cluster, leader: int) -> float:
    """Return a leader's part of the rate."""
    metrics = cluster.sidecars[leader].metrics()
    return metrics.value("weir_share_bytes_per_second", rate=f"into-4/{FOLLOWER}") / RATE


def _assert_sum(cluster: Cluster, received: ReceivedBytes, shares: dict[int, float]) -> None:
    """Wait until leaders have these shares, and prove that the rate is used then."""

    def are_there() -> bool:
        return all(abs(_share(cluster, leader) - share) < 0.06 for leader, share in shares.items())

    cluster.wait_for(f"shares of {shares}", are_there, 20)
    sleep(2)  # what was sent in the second before counts in the new share too
    used = assert_used(received, RATE, LEAST_SUM)
    print(f"leaders have {shares}: together {used:.3f} x the rate")


def test_sum_at_the_follower_is_its_quota(cluster: Cluster) -> None:
    """Of three leaders two have much, and one is held up by a quota of its own; one sidecar is killed meanwhile."""
    sizes = {1: 40 * MB, 2: 30 * MB, 3: 8 * MB}
    topics = [
        filled(cluster, f"from-{one}", [one], size, partitions=3, batch_bytes=MESSAGE_BYTES)
        for one, size in sizes.items()
    ]
    cluster.sidecars[3].patch_throttle(throttle("from-3", leader=SLOW))
    partitions = sorted(cluster.admin.partitions(topics))
    with cluster.received_bytes(FOLLOWER, partitions) as received:
        cluster.reassign({(topic, number): [int(topic[-1]), FOLLOWER] for topic, number in partitions})
        wait_for_bytes(cluster, received, RATE)
        _assert_sum(cluster, received, {1: 0.44, 2: 0.44, 3: 0.11})
        cluster.kill_sidecar(2)
        _assert_sum(cluster, received, {1: 0.89, 3: 0.11})
        cluster.start_sidecar(2)
        _assert_sum(cluster, received, {1: 0.44, 2: 0.44, 3: 0.11})
    worst = received.series().worst_window()[0] / RATE
    print(f"worst second {worst:.3f} x the rate")
    assert worst <= 1.10


def test_rack_has_its_rate_and_others_have_none(cluster: Cluster) -> None:
    topic = filled(cluster, "racks", [1], 5 * MB)
    far = {"name": "far", "side": "leader", "rate": MB // 2, "racks": ["far"]}
    cluster.sidecars[1].patch_throttle({"quotas": [far]})
    partitions = sorted(cluster.admin.partitions([topic]))
    with cluster.received_bytes(FOLLOWER, partitions) as slow, cluster.received_bytes(2, partitions) as fast:
        cluster.reassign({partition: [1, 2, FOLLOWER] for partition in partitions})
        wait_for_bytes(cluster, fast, 5 * MB)
        assert slow.total < 2 * MB
        begin = now(slow)
        sleep(4)
        assert_rate(slow.series(), begin, now(slow), MB // 2)
    cluster.check_logs()
