# SPDX-License-Identifier: Apache-2.0
"""Throttled moves by the replica fetchers of Kafka 0.8.2, 0.9 and 0.10.0: Fetch v0, v1 and v2."""

import pytest

from tests.integration.moves import (
    LEAST_MEAN,
    MB,
    assert_identical,
    assert_throttled,
    filled,
    moving,
    throttle,
)
from tests.modes import every_mode
from weir.lab.modes import MODES, Mode

pytestmark = pytest.mark.integration

RATE = 5 * MB
PARTITION_MAX_BYTES = 2**20  # replica.fetch.max.bytes: what comes in one piece


@pytest.mark.parametrize("mode", every_mode(lambda mode: mode.fetch_version < 3, always=MODES.values()))
def test_move_of_an_old_fetch_version_keeps_mean_and_bytes(mode: Mode) -> None:
    """Below v3 a partition goes whole or not at all, so a second may hold that much more than the quota."""
    with mode.cluster(2, sidecars=True) as cluster:
        topic = filled(cluster, "orders", [1], 30 * MB)
        cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
        with moving(cluster, [topic], [1, 2]) as received:
            pass
        series = received.series()
        assert LEAST_MEAN * RATE <= series.mean_rate() <= 1.05 * RATE
        assert series.worst_window()[0] <= 1.05 * RATE + PARTITION_MAX_BYTES
        assert_identical(cluster, [topic], 1, 2)
        assert_throttled(cluster, 1, "leader")
        cluster.check_logs()
