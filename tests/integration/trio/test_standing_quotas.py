# SPDX-License-Identifier: Apache-2.0
"""Standing rates on real brokers: a broker that lost its disk recovers at one rate, a reassignment moves at another."""

from __future__ import annotations

import shutil
from time import sleep

import pytest

from tests.integration.moves import MB, assert_identical, assert_rate, filled, moving, now, rate_between, wait_for_bytes
from tests.integration.trio.throttles import on
from weir.control.cluster_admin import Partition
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.quota.settings import (
    FOLLOWER_RECOVERY_RATE,
    LEADER_REASSIGNMENT_RATE,
    LEADER_RECOVERY_RATE,
)

pytestmark = [pytest.mark.integration, on(NEWEST.name, "zookeeper-2.8")]

RATE = MB
LEADER, TARGET, RETURNING = 1, 2, 3


def patch(cluster: Cluster, table: dict[str, object]) -> None:
    for sidecar in cluster.sidecars.values():
        sidecar.patch_throttle(table)


def test_recovery_and_reassignment_have_a_rate_each(cluster: Cluster) -> None:
    """No list of topics is set, and nothing has to be removed afterwards."""
    topics = [filled(cluster, f"recovers-{number}", [LEADER, RETURNING], 6 * MB, partitions=2) for number in range(3)]
    moved = filled(cluster, "moved", [LEADER], 24 * MB)
    cluster.wait_for("all in sync", lambda: all(cluster.is_in_sync(topic) for topic in topics), 30)
    patch(cluster, {LEADER_RECOVERY_RATE: RATE, LEADER_REASSIGNMENT_RATE: 2 * RATE})
    lost = [(topic, partition) for topic in topics for partition in range(2)]
    cluster.kill_broker(RETURNING)
    for topic, partition in lost:
        shutil.rmtree(cluster.brokers[RETURNING].data / f"{topic}-{partition}")
    cluster.start_broker(RETURNING)
    with (
        cluster.received_bytes(RETURNING, lost) as recovered,
        moving(cluster, [moved], [LEADER, TARGET]) as received,
    ):
        wait_for_bytes(cluster, recovered, MB)
        wait_for_bytes(cluster, received, MB)
        begin, begin_moved = now(recovered), now(received)
        sleep(5)
        end, end_moved = now(recovered), now(received)
        assert_rate(received.series(), begin_moved, end_moved, 2 * RATE)
        assert_rate(recovered.series(), begin, end, RATE)
        cluster.wait_for("all in sync", lambda: all(cluster.is_in_sync(topic) for topic in topics), 60)
    metrics = cluster.sidecars[LEADER].metrics()
    assert metrics.value("weir_quota_bytes_per_second", side="leader", quota="recovery") == RATE
    assert metrics.value("weir_quota_bytes_per_second", side="leader", quota="reassignment") == 2 * RATE
    patch(cluster, {LEADER_RECOVERY_RATE: None, LEADER_REASSIGNMENT_RATE: None})
    assert_identical(cluster, topics, LEADER, RETURNING)
    assert_identical(cluster, [moved], LEADER, TARGET)


def test_observed_rate_holds_nothing_back(cluster: Cluster) -> None:
    topic = filled(cluster, "observed", [LEADER], 12 * MB)
    rates = [LEADER_RECOVERY_RATE, LEADER_REASSIGNMENT_RATE, FOLLOWER_RECOVERY_RATE]
    patch(cluster, {"mode": "observe", **dict.fromkeys(rates, RATE)})
    before = cluster.sidecars[LEADER].metrics()
    with moving(cluster, [topic], [LEADER, TARGET], seconds=20) as received:
        pass
    begin, end = received.series().span
    assert rate_between(received.series(), begin, end) > 2 * RATE
    after = cluster.sidecars[LEADER].metrics()
    # of either quota: a move as short as this may have ended before it was known to be one
    assert after.value("weir_would_leave_out_total", side="leader") > 0
    name = "weir_partitions_left_out_total"
    assert after.value(name, side="leader") == before.value(name, side="leader")
    patch(cluster, {"mode": None, **dict.fromkeys(rates)})
    assert_identical(cluster, [topic], LEADER, TARGET)


def test_quota_of_some_peers_and_topics_holds_for_them_alone(cluster: Cluster) -> None:
    slow, fast = filled(cluster, "slow-orders", [LEADER], 10 * MB), filled(cluster, "fast", [LEADER], 10 * MB)
    quota = {"name": "slow", "side": "leader", "rate": RATE, "peers": [TARGET], "topics": ["slow*"]}
    cluster.sidecars[LEADER].patch_throttle({"quotas": [quota]})
    with cluster.received_bytes(TARGET, sorted(cluster.admin.partitions([slow]))) as received:
        cluster.reassign({Partition(*one): [LEADER, TARGET] for one in cluster.admin.partitions([slow, fast])})
        wait_for_bytes(cluster, received, MB)
        assert cluster.wait_for(f"{fast} in sync", lambda: cluster.is_in_sync(fast), 20) < 9  # in the quota: 19 s
        begin = now(received)
        sleep(3)
        assert_rate(received.series(), begin, now(received), RATE)
        cluster.sidecars[LEADER].patch_throttle({"quotas": None})
        cluster.admin.wait_for_reassignments(60)
    assert_identical(cluster, [slow, fast], LEADER, TARGET)
