# SPDX-License-Identifier: Apache-2.0
"""Sidecars forget the lag of replicas that a broker has no more: an emptied broker must not look as if it were down."""

from __future__ import annotations

from time import sleep

import pytest

from tests.integration.moves import MB, filled, lead_from
from weir.lab.cluster import Cluster
from weir.lab.modes import NEWEST
from weir.lab.produce import LiveProducer

pytestmark = pytest.mark.integration

LAG_TIME_MAX_SECONDS = 3.0
POLL_SECONDS = 1.0


def replicas(cluster: Cluster, broker_id: int, side: str) -> set[tuple[str, str]]:
    """Topics and replicas of which a sidecar tells the lag."""
    samples = cluster.sidecars[broker_id].metrics().samples("weir_replica_lag_seconds", side=side)
    return {(sample.labels["topic"], sample.labels["replica"]) for sample in samples}


def test_lag_goes_with_its_replica_and_a_followers_stays() -> None:
    tables = {
        "cluster": {"poll_seconds": POLL_SECONDS},
        "quota": {"replica_lag_time_max_ms": round(LAG_TIME_MAX_SECONDS * 1000)},
    }
    properties = {"replica.lag.time.max.ms": round(LAG_TIME_MAX_SECONDS * 1000)}
    with NEWEST.cluster(2, sidecars=True, poll_isr=True, sidecar_tables=tables, properties=properties) as cluster:
        moved = filled(cluster, "moved", [1, 2], MB // 10, partitions=2)
        cluster.create_topic("deleted", {0: [1, 2]})
        led = filled(cluster, "led", [1, 2], MB // 10, partitions=1)
        everything = {(moved, "2"), ("deleted", "2"), (led, "2")}
        cluster.wait_for("all of them fetched", lambda: replicas(cluster, 1, "leader") == everything, 30)
        cluster.admin.delete_topic("deleted")
        cluster.reassign({(moved, partition): [1] for partition in range(2)}, 10)
        lead_from(cluster, [led], [2, 1])
        cluster.wait_for(
            "the rows of broker 2 are gone",
            lambda: not replicas(cluster, 1, "leader") and not replicas(cluster, 2, "follower"),
            # Silent for a third of it, left out by an answer then, and a third later again.
            LAG_TIME_MAX_SECONDS * 2 / 3 + 2 * POLL_SECONDS + 1,
        )
        assert replicas(cluster, 2, "leader") == {(led, "1")}
        cluster.reassign({(moved, 0): [1, 2]}, 10)
        cluster.wait_for("it is back", lambda: replicas(cluster, 1, "leader") == {(moved, "2")}, 10)
        cluster.kill_sidecar(2)  # nothing that broker 2 fetches goes through any more

        def stuck() -> list[tuple[str, int, int]]:
            worst = cluster.sidecars[1].status()["sides"]["leader"]["lag"]["worst"]
            return [(row["topic"], row["partition"], row["replica"]) for row in worst if row["stuck"]]

        # While nothing is written Kafka keeps a silent replica in the ISR, and the cluster's word holds.
        with LiveProducer(cluster.bootstrap_servers, moved, [0], rate=10, message_bytes=1000):
            cluster.wait_for("what is assigned is stuck", lambda: bool(stuck()), 5 * LAG_TIME_MAX_SECONDS)
            sleep(2 * POLL_SECONDS)
            assert stuck() == [(moved, 0, 2)]
        assert cluster.sidecars[1].metrics().value("weir_internal_errors_total") == 0
