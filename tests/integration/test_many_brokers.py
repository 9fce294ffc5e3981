# SPDX-License-Identifier: Apache-2.0
"""ReplicationQuotasTest's eight brokers: six lead and two follow, with a quota on either side and on both."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.moves import MB, MESSAGE_BYTES, assert_keeps, assert_throttled
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode
from weir.lab.produce import fill
from weir.quota.figures import SHARE_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RATE = MB
PARTITION_BYTES = 5 * MB
THROTTLED = {0: (1, 7), 1: (2, 7), 2: (3, 7), 3: (4, 8), 4: (5, 8), 5: (6, 8)}  # partition -> leader, follower
UNTHROTTLED = {6: (1, 7), 7: (2, 8)}
FOLLOWERS = (7, 8)
LEAST_MEAN = 0.75  # x quota: ReplicationQuotasTest allows a move 1.5 x the time; 16 processes share the machine here


@pytest.fixture(scope="module")
def cluster(mode: Mode) -> Iterator[Cluster]:
    with mode.cluster(8, sidecars=True, heap_mb=256) as cluster:
        yield cluster
        cluster.check_logs()


def table(topic: str, leader: int | None, follower: int | None) -> dict[str, Any]:
    """A throttle that names the replicas of THROTTLED one by one, on each side that has a rate (bytes/s)."""
    sides = [(0, "leader", leader), (1, "follower", follower)]
    lists = {
        f"{side}.replication.throttled.replicas": ",".join(f"{p}:{ids[index]}" for p, ids in THROTTLED.items())
        for index, side, rate in sides
        if rate
    }
    rates = {f"{side}.replication.throttled.rate": rate for _, side, rate in sides if rate}
    return {**rates, "topics": {topic: lists}}


@pytest.mark.parametrize(
    ("topic", "leader", "follower", "each"),
    [
        ("leaders", RATE, None, 3 * RATE),
        ("followers", None, 3 * RATE, 3 * RATE),
        ("matched", RATE, 3 * RATE, 3 * RATE),
        ("unmatched", RATE, 2 * RATE, 2 * RATE),
    ],
)
def test_asymmetric_moves_keep_the_quotas(
    cluster: Cluster, topic: str, leader: int | None, follower: int | None, each: int
) -> None:
    """Each follower has three leaders; `each` is the rate at which that lets it catch up."""
    moves = {**THROTTLED, **UNTHROTTLED}
    cluster.create_topic(topic, {partition: [home] for partition, (home, _) in moves.items()})
    fill(cluster.bootstrap_servers, topic, dict.fromkeys(moves, PARTITION_BYTES), batch_bytes=MESSAGE_BYTES)
    cluster.assert_no_native_throttle()
    for sidecar in cluster.sidecars.values():
        sidecar.put_throttle(table(topic, leader, follower))
    seven, eight = (
        cluster.received_bytes(follower, [(topic, p) for p, ids in THROTTLED.items() if follower in ids])
        for follower in FOLLOWERS
    )
    free = cluster.received_bytes(7, [(topic, 6)])
    with seven, eight, free:
        cluster.reassign({(topic, partition): ids for partition, ids in moves.items()}, seconds=60)
    # leaders with a quota, or on a busy machine, answer late, and all that was asked of them may come in one moment
    lent = SHARE_SECONDS * (follower or 0)
    for received in (seven, eight):
        assert_keeps(received.series(), each, least=LEAST_MEAN, batch_bytes=3 * MESSAGE_BYTES + round(lent))
        assert free.series().span[1] < received.series().span[1] / 2
    for partition, ids in moves.items():
        cluster.compare_segments(topic, partition, *ids)
    if leader:
        assert_throttled(cluster, 1, "leader")
    if follower:
        assert_throttled(cluster, 7, "follower")
