# SPDX-License-Identifier: Apache-2.0
"""A sidecar or a broker is killed during a throttled move (both hops): nothing is lost, and the move ends."""

from collections.abc import Iterator
from time import sleep

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_rate,
    assert_read_once,
    assert_throttled,
    filled,
    moving,
    now,
    roles,
    throttle,
    wait_for_bytes,
)
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode
from weir.lab.produce import LiveProducer

pytestmark = pytest.mark.integration

RATE = 3 * MB
TOPICS = ("sidecar-0", "sidecar-2", "broker-1", "broker-2", "live-1", "live-2")  # named by the role of what is killed
LEADER, PEER, FOLLOWER = range(3)


@pytest.fixture(scope="module")
def cluster(mode: Mode) -> Iterator[Cluster]:
    """Three brokers; the throttle is in the sidecars' files, where a restarted one finds it."""
    # A killed follower truncates to the high watermark on its disk: 5 s old by default, and then all is moved again.
    checkpoints = {"replica.high.watermark.checkpoint.interval.ms": 500}
    with mode.cluster(sidecars=True, throttle=throttle(*TOPICS, leader=RATE), properties=checkpoints) as cluster:
        yield cluster


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
def test_move_goes_on_at_its_rate_when_a_killed_sidecar_is_back(cluster: Cluster, role: int) -> None:
    brokers = roles(cluster)
    leader, killed, follower = brokers[LEADER], brokers[role], brokers[FOLLOWER]
    topic = filled(cluster, f"sidecar-{role}", [leader], 18 * MB)
    with moving(cluster, [topic], [leader, follower]) as received:
        wait_for_bytes(cluster, received, 6 * MB)
        cluster.kill_sidecar(killed)
        sleep(0.5)  # what was on its way arrives
        total = received.total
        sleep(1)
        assert received.total == total
        cluster.start_sidecar(killed)
        wait_for_bytes(cluster, received, total)
        back = now(received)
    series = received.series()
    assert_rate(series, back, series.span[1], RATE)
    assert assert_identical(cluster, [topic], leader, follower) == series.received
    assert_throttled(cluster, leader, "leader")
    cluster.check_logs()


@pytest.mark.parametrize(("role", "size"), [(PEER, 30 * MB), (FOLLOWER, 12 * MB)])
def test_no_acked_record_is_lost_when_a_killed_broker_is_back(cluster: Cluster, role: int, size: int) -> None:
    """The moving leader's in-sync peer, or the follower that is moved to, while a producer waits for all in sync."""
    brokers = leader, peer, follower = roles(cluster)
    topic, live = filled(cluster, f"broker-{role}", [leader, peer], size), f"live-{role}"
    cluster.create_topic(live, {0: [leader, peer]})
    with (
        LiveProducer(cluster.bootstrap_servers, live, [0], rate=30) as producer,
        moving(cluster, [topic, live], [leader, peer, follower]) as received,
    ):
        wait_for_bytes(cluster, received, 4 * MB)
        cluster.kill_broker(brokers[role])
        cluster.start_broker(brokers[role])
    cluster.wait_for("all in sync", lambda: cluster.is_in_sync(topic) and cluster.is_in_sync(live), 30)
    assert_read_once(cluster, live, producer)
    for other in (peer, follower):
        assert_identical(cluster, [topic, live], leader, other)
    assert_throttled(cluster, leader, "leader")
    cluster.check_logs(allow={"Shrinking ISR", "Truncating"})
