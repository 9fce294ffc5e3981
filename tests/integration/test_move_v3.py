"""A throttled move on real brokers with Fetch v3 replica fetchers."""

import pytest

from lab.modes import ZooKeeperCluster
from lab.produce import fill

RATE = 5_000_000
TOTAL = 40_000_000
PARTITIONS = [("orders", partition) for partition in range(20)]


@pytest.mark.integration
def test_move_throttled_by_the_leaders_sidecar_keeps_the_quota_and_the_bytes() -> None:
    """Two hops, the leader's quota: the mean keeps to it, every byte arrives, and Fetch v3 was what was throttled."""
    throttle = {
        "leader.replication.throttled.rate": RATE,
        "topics": {"orders": {"leader.replication.throttled.replicas": "*"}},
    }
    with ZooKeeperCluster("3.9.1", inter_broker_protocol_version="0.10.1", sidecars=True) as cluster:
        cluster.create_topic("orders", {partition: [1] for _, partition in PARTITIONS})
        fill(cluster.bootstrap_servers, "orders", {partition: TOTAL // 20 for _, partition in PARTITIONS})
        cluster.assert_no_native_throttle()
        cluster.sidecars[1].put_throttle(throttle)
        with cluster.received_bytes(2, PARTITIONS) as received:
            cluster.reassign({partition: [1, 2] for partition in PARTITIONS}, seconds=90)
        series = received.series()
        metrics = cluster.sidecars[1].metrics()
        assert 0.95 * RATE <= series.mean_rate() <= 1.03 * RATE
        assert metrics.value("weir_replication_bytes_total", side="leader", throttled="true") >= TOTAL
        assert metrics.value("weir_fetch_requests_total", side="leader", api_version="3") > 0
        for topic, partition in PARTITIONS:
            cluster.compare_segments(topic, partition, 1, 2)
        cluster.check_logs()
