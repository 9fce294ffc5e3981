# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions on real brokers: what is lost or changed heals by itself. The steady state: trio/."""

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_rate,
    assert_throttled,
    filled,
    moving,
    now,
    throttle,
    wait_for_bytes,
)
from tests.integration.sessions import full_fetches
from weir.lab.modes import MODES, NEWEST

pytestmark = pytest.mark.integration

RATE = 2 * MB


def test_leader_with_two_slots_for_sessions_is_moved_from() -> None:
    """Four fetchers want a session of the leader, which evicts each that was unused for a second."""
    scarce = {
        "max.incremental.fetch.session.cache.slots": 2,
        "min.incremental.fetch.session.eviction.ms": 1000,
        "num.replica.fetchers": 2,
    }
    with NEWEST.cluster(3, sidecars=True, properties=scarce) as cluster:
        topic = filled(cluster, "orders", [1], 10 * MB)
        cluster.create_topic("live", {partition: [1, 2, 3] for partition in range(10)})
        cluster.sidecars[1].put_throttle(throttle(topic, leader=2 * RATE))
        before = full_fetches(cluster)
        with moving(cluster, [topic], [1, 2, 3]) as received:
            pass
        assert full_fetches(cluster)["sidecar"] - before["sidecar"] > 10, "a leader without a slot gets full fetches"
        # Two followers share the leader's quota; this is one of them.
        assert 0.25 * 2 * RATE <= received.series().mean_rate() <= 1.02 * 2 * RATE
        for follower in (2, 3):
            assert_identical(cluster, [topic], 1, follower)
        assert_throttled(cluster, 1, "leader")
        cluster.check_logs()


def test_level_is_raised_while_a_move_is_throttled() -> None:
    """From metadata.version 3.4 (Fetch v13) to 3.9 (v17), on connections and sessions that began before."""
    with MODES["kraft-3.4"].cluster(2, sidecars=True) as cluster:
        topic = filled(cluster, "orders", [1], 16 * MB)
        cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
        with moving(cluster, [topic], [1, 2]) as received:
            wait_for_bytes(cluster, received, 2 * MB)
            upgrade = ["--bootstrap-server", ",".join(cluster.bootstrap_servers), "upgrade", "--metadata", "3.9"]
            cluster.java_tool("features", "org.apache.kafka.tools.FeatureCommand", upgrade)
            raised = now(received)
        assert_rate(received.series(), raised, received.series().span[1], RATE)
        metrics = cluster.sidecars[1].metrics()
        for version in (13, 17):
            assert metrics.value("weir_fetch_requests_total", side="leader", api_version=version) > 0
        for sidecar in cluster.sidecars.values():
            assert not [one for one in sidecar.metrics().samples("weir_passthrough_total") if one.value]
        assert_identical(cluster, [topic], 1, 2)
        cluster.check_logs()


@pytest.mark.slow
def test_brokers_change_from_names_to_topic_ids_in_mid_move() -> None:
    """inter.broker.protocol.version 2.8 (Fetch v12) to 3.4 (v13): follower first, then the leader."""
    with MODES["zookeeper-2.8"].cluster(2, sidecars=True) as cluster:
        topic = filled(cluster, "orders", [1], 30 * MB)
        cluster.sidecars[1].put_throttle(throttle(topic, leader=RATE))
        with moving(cluster, [topic], [1, 2], seconds=120) as received:
            for broker_id in (2, 1):
                wait_for_bytes(cluster, received, received.total + MB)
                cluster.stop_broker(broker_id)
                properties = cluster.brokers[broker_id].properties
                text = properties.read_text()
                assert "inter.broker.protocol.version=2.8" in text
                properties.write_text(
                    text.replace("inter.broker.protocol.version=2.8", "inter.broker.protocol.version=3.4")
                )
                cluster.start_broker(broker_id)
        metrics = cluster.sidecars[1].metrics()
        for version in (12, 13):
            assert metrics.value("weir_fetch_requests_total", side="leader", api_version=version) > 0
        assert received.series().worst_window()[0] <= 1.1 * RATE
        assert_identical(cluster, [topic], 1, 2)
