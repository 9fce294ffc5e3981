# SPDX-License-Identifier: Apache-2.0
"""A broker that comes back soon, under a recovery rate: its leaders wait for it with their high watermarks."""

from time import monotonic, sleep

import pytest

from tests.integration.moves import MB, assert_identical
from weir.lab.modes import MODES
from weir.lab.produce import LiveProducer, latency
from weir.quota.settings import FOLLOWER_RECOVERY_RATE, LEADER_RECOVERY_RATE

pytestmark = pytest.mark.integration

LAG_TIME_MAX_MS = 90_000  # so long that a broker is back within it on a slow machine
AWAY_SECONDS = 14.0
SOON_SECONDS = 15  # more is written than the recovery rate, so what is held to the rate is never in sync
RETURNING = 3
TOPIC = "orders"


def test_producers_do_not_wait_for_a_broker_that_is_back_soon() -> None:
    """Only while it starts and catches up: held to the rate, it would not within LAG_TIME_MAX_MS.

    A busy machine needs seconds to start a broker, and records wait for it meanwhile: up to 19 s were seen without any
    sidecar. So what is bounded is how soon the broker is in sync, and that records wait no longer than for its start.
    """
    properties = {"replica.lag.time.max.ms": LAG_TIME_MAX_MS}
    quota = {"quota": {"replica_lag_time_max_ms": LAG_TIME_MAX_MS}}
    with MODES["kraft-4.1"].cluster(
        3, sidecars=True, poll_isr=True, properties=properties, sidecar_tables=quota
    ) as cluster:
        partitions = range(4)
        assignment = {number: [1 + number % 2, 2 - number % 2, RETURNING] for number in partitions}
        cluster.create_topic(TOPIC, assignment, {"min.insync.replicas": "2"})
        for sidecar in cluster.sidecars.values():
            sidecar.patch_throttle(dict.fromkeys([LEADER_RECOVERY_RATE, FOLLOWER_RECOVERY_RATE], MB // 4))
        with LiveProducer(cluster.bootstrap_servers, TOPIC, partitions, rate=50, message_bytes=10_000) as producer:
            sleep(3)
            cluster.kill_broker(RETURNING)
            killed_at = monotonic()
            cluster.wait_for("a smaller ISR", lambda: not cluster.is_in_sync(TOPIC), 60)
            sleep(max(0.0, killed_at + AWAY_SECONDS - monotonic()))
            first, started_at = producer.sent, monotonic()
            cluster.start_broker(RETURNING)
            assert monotonic() - killed_at < LAG_TIME_MAX_MS / 1000 - 20, "The broker was away for too long."
            seconds = cluster.wait_for("all in sync", lambda: cluster.is_in_sync(TOPIC), 60)
            back_after = monotonic() - started_at
            sleep(1)
        slowest = latency([record for record in producer.acked if record.number >= first], 1)
        print(f"in sync after {seconds:.1f} s; slowest record since the broker was started {slowest:.1f} s")
        assert not producer.failed
        assert seconds < SOON_SECONDS
        assert slowest < back_after + AWAY_SECONDS  # a record sent while the broker was away may wait, too
        assert_identical(cluster, [TOPIC], 1, RETURNING)
