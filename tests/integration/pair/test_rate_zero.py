# SPDX-License-Identifier: Apache-2.0
"""At rate 0 nothing moves (real brokers), and yet no follower is kept from what its leader has to say."""

import re
from time import sleep

import pytest

from tests.integration.moves import (
    MB,
    assert_identical,
    assert_throttled,
    filled,
    moving,
    roles,
    throttle,
)
from weir.lab.cluster import Cluster
from weir.lab.modes import Mode
from weir.lab.settings import Route

pytestmark = pytest.mark.integration

PROBE_SECONDS = 10
LONG_POLL_SECONDS = 0.5
DEBUG = "-Dorg.slf4j.simpleLogger.log.kafka.server.ReplicaFetcherThread=debug"  # NOT_LEADER is logged no higher
# a leader that went knows the next leader epoch, or does not yet
NOT_LEADER = re.compile(r"(?:Remote broker is not the leader for p|P)artition ([\w-]+)(?:,| has an older epoch)")


def fetched_by(cluster: Cluster, follower: int, leader: int) -> int:
    """Return how many partitions a follower has asked a leader for, by the leader's sidecar."""
    return len(cluster.sidecars[leader].metrics().samples("weir_replica_lag_seconds", side="leader", replica=follower))


def probes_to(cluster: Cluster, leader: int) -> int:
    """Return how many probes a leader's sidecar has let through."""
    return int(cluster.sidecars[leader].status()["sides"]["leader"]["offset_probes"])


def test_follower_at_rate_zero_hears_that_its_leader_went(mode: Mode) -> None:
    """Only a probe can tell this follower. Otherwise the controller would tell it first.

    The controller reaches a broker through the broker's ingress, which is down here. What the follower asks of others
    does not go through its ingress.
    """
    cut_off = Route.INGRESS | Route.CONTROLLER
    with mode.cluster(routes={1: Route.INGRESS, 2: cut_off, 3: cut_off}, jvm_flags=[DEBUG]) as cluster:
        leader, peer, follower = roles(cluster)
        topic = filled(cluster, "orders", [leader, peer], 20 * MB)
        sleep(2 * LONG_POLL_SECONDS)  # the peer hears the last high watermark: it could not lead without losses before
        partitions = list(cluster.admin.partitions([topic]))
        names = {f"{topic}-{partition}" for topic, partition in partitions}
        for broker_id in (leader, peer):
            cluster.sidecars[broker_id].put_throttle(throttle(topic, leader=0))
        with moving(cluster, [topic], [peer, leader, follower]) as received:
            cluster.wait_for("fetches of all", lambda: fetched_by(cluster, follower, leader) == len(partitions), 30)
            cluster.kill_sidecar(follower)
            cluster.admin.elect_preferred_leaders(partitions)
            log = cluster.brokers[follower].log
            heard = cluster.wait_for("NOT_LEADER", lambda: set(NOT_LEADER.findall(log.read_text())) == names, 20)
            assert heard < PROBE_SECONDS + 2 * LONG_POLL_SECONDS
            assert (received.total, probes_to(cluster, leader) > 0) == (0, True)
            assert fetched_by(cluster, follower, peer) == 0  # only the leader that went can have told it
            cluster.start_sidecar(follower)
            cluster.sidecars[peer].put_throttle(throttle(topic, leader=10 * MB))
        assert_identical(cluster, [topic], peer, follower)
        assert_throttled(cluster, peer, "leader")
        cluster.check_logs()


def test_rate_zero_on_both_sides_lets_nothing_through(pair: Cluster) -> None:
    """Two hops, each with probes of its own: the first when the follower comes, the second 10 s later."""
    topic = filled(pair, "orders", [1], 5 * MB, partitions=1)
    for sidecar in pair.sidecars.values():
        sidecar.put_throttle(throttle(topic, leader=0, follower=0))
    before = probes_to(pair, 1)
    with moving(pair, [topic], [1, 2]) as received:
        pair.wait_for("a first probe", lambda: probes_to(pair, 1) == before + 1, 20)
        pair.wait_for("a second one", lambda: probes_to(pair, 1) == before + 2, PROBE_SECONDS + 5)
        sleep(1)
        assert (probes_to(pair, 1), received.total) == (before + 2, 0)
        for sidecar in pair.sidecars.values():
            sidecar.put_throttle(throttle(topic, leader=10 * MB, follower=10 * MB))
    assert_identical(pair, [topic], 1, 2)
    assert_throttled(pair, 1, "leader")
    assert_throttled(pair, 2, "follower")
