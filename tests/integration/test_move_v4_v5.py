"""A throttled move by the replica fetchers of Kafka 0.11 and 1.0: Fetch v4 and v5. Replicas never use v6."""

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_throttled,
    cluster_at,
    filled,
    moving,
    throttle,
)

pytestmark = pytest.mark.integration

RATE = 5 * MB


@pytest.mark.parametrize(("level", "api_version"), [("0.11.0-IV0", 4), ("1.0", 5)])
def test_move_of_v4_and_v5_keeps_the_quota_and_the_bytes(level: str, api_version: int) -> None:
    with cluster_at(level) as cluster:
        topic = filled(cluster, "orders", [1], 40 * MB)
        cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
        with moving(cluster, [topic], [1, 2]) as received:
            pass
        series = received.series()
        assert 0.94 * RATE <= series.mean_rate() <= 1.02 * RATE
        assert series.worst_window()[0] <= 1.2 * RATE  # test_both_sides holds the strict promise; here it is the codec
        assert_identical(cluster, [topic], 1, 2)
        assert_throttled(cluster, 1, "leader", api_version)
        cluster.check_logs()
