# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions of real brokers stay while a move is throttled."""

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_keeps,
    assert_throttled,
    filled,
    moving,
    throttle,
    wait_for_bytes,
)
from tests.integration.sessions import full_fetches
from tests.integration.trio.throttles import on
from weir.lab.cluster import Cluster
from weir.lab.modes import CORNERS

pytestmark = pytest.mark.integration

RATE = 2 * MB


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
@on(*(mode.name for mode in CORNERS[1:]))
def test_no_full_fetch_is_sent_while_a_move_is_throttled(cluster: Cluster, seconds: int) -> None:
    """The leader's sidecar counts what the follower's sidecar sends. What it sends to the broker it counts itself."""
    topic = filled(cluster, "steady", [1], (seconds + 4) * RATE)
    cluster.create_topic("steady-idle", {partition: [1, 2] for partition in range(50)})
    cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
    with moving(cluster, [topic], [1, 2], seconds=seconds + 30) as received:
        wait_for_bytes(cluster, received, RATE)
        before = full_fetches(cluster)
        wait_for_bytes(cluster, received, (seconds + 1) * RATE, seconds=seconds + 20)
        assert full_fetches(cluster) == before
    assert_keeps(received.series(), RATE)
    assert_identical(cluster, [topic], 1, 2)
    assert_throttled(cluster, 1, "leader")
