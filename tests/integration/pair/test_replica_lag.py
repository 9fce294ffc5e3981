# SPDX-License-Identifier: Apache-2.0
"""KIP-16's expected scenarios on real brokers: how far replicas are behind, by their leader's sidecar."""

import signal
from time import monotonic, sleep

import pytest

from tests.integration.moves import (
    MB,
    MESSAGE_BYTES,
    assert_identical,
    assert_throttled,
    filled,
    moving,
    throttle,
    wait_for_bytes,
)
from weir.lab.cluster import Cluster
from weir.lab.produce import LiveProducer
from weir.lab.sidecar import Metrics

pytestmark = pytest.mark.integration


def lag(metrics: Metrics, topic: str) -> float:
    """Seconds that broker 2's replica of a topic of one partition is behind."""
    (sample,) = metrics.samples("weir_replica_lag_seconds", side="leader", topic=topic, partition=0, replica=2)
    return sample.value


def lag_messages(metrics: Metrics) -> float:
    return metrics.value("weir_replica_lag_messages_sum", side="leader")


def test_lag_grows_in_seconds_and_messages(pair: Cluster) -> None:
    """1 MB/s is produced, a tenth of it may go out."""
    topic = filled(pair, "lagging", [1], MB, partitions=1)
    sidecar = pair.sidecars[1]
    sidecar.put_throttle(throttle(topic, leader=MB // 10))
    with moving(pair, [topic], [1, 2]) as received:
        with LiveProducer(pair.bootstrap_servers, topic, [0], rate=100, message_bytes=10_240) as producer:
            wait_for_bytes(pair, received, 0)
            sleep(1)
            began, first = monotonic(), sidecar.metrics()
            written, moved = len(producer.acked), received.total
            sleep(3)
            seconds, later = monotonic() - began, sidecar.metrics()
            grown_by = len(producer.acked) - written - (received.total - moved) / MESSAGE_BYTES
        assert lag(later, topic) - lag(first, topic) == pytest.approx(seconds, rel=0.2)
        assert lag_messages(later) - lag_messages(first) == pytest.approx(grown_by, rel=0.2, abs=20)
        sidecar.delete_throttle()
    pair.wait_for("no lag", lambda: lag(sidecar.metrics(), topic) == lag_messages(sidecar.metrics()) == 0, 20)
    assert_identical(pair, [topic], 1, 2)
    assert_throttled(pair, 1, "leader")


def test_bootstrapping_follower_lags_until_it_has_caught_up(pair: Cluster) -> None:
    topic = filled(pair, "bootstrapping", [1], 8 * MB, partitions=1)
    sidecar = pair.sidecars[1]
    sidecar.put_throttle(throttle(topic, leader=2 * MB))
    with moving(pair, [topic], [1, 2]) as received:
        wait_for_bytes(pair, received, 0)
        sleep(1)
        began, first = monotonic(), sidecar.metrics()
        sleep(2)
        seconds, later = monotonic() - began, sidecar.metrics()
        assert lag(later, topic) - lag(first, topic) == pytest.approx(seconds, rel=0.2)
        assert lag_messages(later) < lag_messages(first) <= 8 * MB / 10_240
    pair.wait_for("no lag", lambda: lag(sidecar.metrics(), topic) == lag_messages(sidecar.metrics()) == 0, 20)
    assert_identical(pair, [topic], 1, 2)
    assert_throttled(pair, 1, "leader")


def test_stuck_follower_that_asks_for_nothing_lags_ever_longer(pair: Cluster) -> None:
    topic = filled(pair, "steady", [1, 2], MB, partitions=1)
    sidecar = pair.sidecars[1]
    pair.wait_for("no lag", lambda: lag(sidecar.metrics(), topic) == 0, 20)
    pair.brokers[2].send(signal.SIGSTOP)
    try:
        sleep(2.5)  # a fetch on its way ends, and silence becomes lag
        began, first = monotonic(), sidecar.metrics()
        sleep(1.5)
        seconds, later = monotonic() - began, sidecar.metrics()
    finally:
        pair.brokers[2].send(signal.SIGCONT)
    fetches = [metrics.value("weir_fetch_requests_total", side="leader") for metrics in (first, later)]
    assert fetches[0] == fetches[1]
    assert lag(first, topic) >= 2
    assert lag(later, topic) - lag(first, topic) == pytest.approx(seconds, rel=0.2)
    pair.wait_for("no lag", lambda: lag(sidecar.metrics(), topic) == 0, 20)
