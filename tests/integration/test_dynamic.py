# SPDX-License-Identifier: Apache-2.0
"""The throttle is changed while real brokers move data: what is set counts at once, with no restart."""

from collections.abc import Iterator
from time import sleep

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
    wait_for_probes,
)
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode

pytestmark = pytest.mark.integration

PATIENT = 3  # the broker whose fetches may be held for long
LONG_POLL_SECONDS = 10  # of that broker
SETTLING_SECONDS = 1.5  # after a change; the window of the last second must run out first


@pytest.fixture(scope="module")
def running(mode: Mode) -> Iterator[Cluster]:
    patient = {"replica.fetch.wait.max.ms": LONG_POLL_SECONDS * 1000}
    with mode.cluster(sidecars=True, broker_properties={PATIENT: patient}) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The module's cluster; afterwards its sidecars are the processes that they were, and all logs are clean."""
    pids = {broker_id: sidecar.pid for broker_id, sidecar in running.sidecars.items()}
    yield running
    assert {broker_id: sidecar.pid for broker_id, sidecar in running.sidecars.items() if sidecar.alive} == pids
    assert_throttled(running, 1, "leader")
    running.check_logs()


def test_rate_that_is_put_during_a_move_is_followed_up_and_down(cluster: Cluster) -> None:
    topic = filled(cluster, "rates", [1], 36 * MB)
    changes = [(2 * MB, 3.0), (6 * MB, 4.0), (MB, 4.0)]  # rate, and how long it is in force
    begun = []
    cluster.sidecars[1].put_throttle(throttle(topic, leader=0))
    with moving(cluster, [topic], [1, 2]) as received:
        wait_for_probes(cluster)
        assert received.total == 0
        for rate, seconds in changes:
            cluster.sidecars[1].put_throttle(throttle(topic, leader=rate))
            begun.append(now(received))
            sleep(seconds)
        cluster.sidecars[1].put_throttle(throttle(topic, leader=20 * MB))
    series = received.series()
    for (rate, seconds), begin in zip(changes, begun, strict=True):
        assert_rate(series, begin + SETTLING_SECONDS, begin + seconds, rate)
    assert_identical(cluster, [topic], 1, 2)


def test_topic_that_is_patched_out_moves_and_the_others_stay(cluster: Cluster) -> None:
    out, kept = filled(cluster, "out", [1], 10 * MB), filled(cluster, "kept", [1], 10 * MB)
    cluster.sidecars[1].put_throttle(throttle(out, kept, leader=MB // 2))
    escaped = "weir_catch_up_beside_throttle_bytes_total"
    with moving(cluster, [out, kept], [1, 2]) as received:
        wait_for_bytes(cluster, received, MB)
        before = cluster.sidecars[1].metrics().value(escaped, side="leader")
        cluster.sidecars[1].patch_throttle({"topics": {out: None}})
        assert (
            cluster.wait_for(f"{out} in sync", lambda: cluster.is_in_sync(out), 20) < 9
        )  # by the throttle: 19 s or more
        metrics = cluster.sidecars[1].metrics()
        assert metrics.value(escaped, side="leader") - before > 5 * MB
        assert {one.labels["topic"] for one in metrics.samples("weir_replica_throttled", side="leader")} == {kept}
        begin = now(received)
        sleep(2)
        end = now(received)
        assert_rate(received.series(), begin, end, MB // 2)
        cluster.sidecars[1].delete_throttle()
        assert cluster.wait_for(f"{kept} in sync", lambda: cluster.is_in_sync(kept), 20) < 7  # by the throttle: 13 s
    assert_identical(cluster, [out, kept], 1, 2)


def test_held_fetch_goes_at_once_when_the_throttle_changes(cluster: Cluster) -> None:
    """At rate 0 a sidecar may hold a fetch for as long as the follower polls, here 10 s: PUT and DELETE end that."""
    topic = filled(cluster, "held", [1], 6 * MB)
    sidecar = cluster.sidecars[1]
    sidecar.put_throttle(throttle(topic, leader=0))
    with moving(cluster, [topic], [1, PATIENT]) as received:
        for change, table in (("PUT", throttle(topic, leader=MB)), ("DELETE", None)):
            sidecar.put_throttle(throttle(topic, leader=0))
            sleep(1)
            total = received.total
            sleep(1)  # nothing moves
            assert (received.total, sidecar.metrics().value("weir_fetches_waiting", side="leader")) == (total, 1)
            assert sidecar.http(change, "/v1/throttle", table)[0] == 200
            assert wait_for_bytes(cluster, received, total) < LONG_POLL_SECONDS / 3
    assert_identical(cluster, [topic], 1, PATIENT)
