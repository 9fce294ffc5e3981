# SPDX-License-Identifier: Apache-2.0
"""Replica ids that somebody made up have no series; those of brokers have them at once."""

from __future__ import annotations

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from weir.lag.broker_ids import NO_BROKER, BrokerIds
from weir.proxy.cluster.removed_replicas import Assignment, RemovedReplicas, Replicas
from weir.quota.throttle import Throttle

LEADER, FOLLOWER = 1, 2
ORDERS: Assignment = {0: Replicas(LEADER, frozenset({FOLLOWER, 3}))}


class Cluster:
    """The leader's side of broker 1, and whoever fetches `orders` from it."""

    def __init__(self) -> None:
        self.clock = MovedClock()
        self.throttle = Throttle("leader", LEADER, self.clock)
        self.asking = RemovedReplicas([self.throttle])

    def fetches(self, replica: int, seconds: float = 1.0) -> Conversation:
        """A connection that fetches for so long, and stays open."""
        logs = {(b"orders", 0): Log([100] * 20)}
        follower = Follower(dict.fromkeys(logs, 0), replica)
        talk = Conversation(self.clock, self.throttle.link(replica), Leader(logs), follower)
        talk.run(seconds)
        return talk

    def poll(self, orders: Assignment) -> None:
        for _ in self.asking.check():
            pass
        told = {b"orders": orders} if b"orders" in self.asking.topics else {}
        for _ in self.asking.take(told):
            pass

    @property
    def replicas(self) -> set[int]:
        return {row.replica for row in self.throttle.lag.rows()}

    @property
    def peers(self) -> set[int]:
        return {peer for peer, _ in self.throttle.stats.replication_bytes}


def test_made_up_ids_have_no_series_once_the_cluster_was_asked() -> None:
    cluster = Cluster()
    for replica in (FOLLOWER, *range(1000, 1100)):
        cluster.fetches(replica, 0.1)
    cluster.poll(ORDERS)
    assert cluster.replicas == {FOLLOWER}
    assert cluster.peers == {FOLLOWER, NO_BROKER}
    assert cluster.throttle.brokers.refused == 100
    cluster.fetches(1000)
    assert (cluster.replicas, cluster.peers) == ({FOLLOWER}, {FOLLOWER, NO_BROKER})


def test_more_made_up_ids_than_a_look_forgets_have_no_series() -> None:
    cluster = Cluster()
    for replica in (FOLLOWER, *range(1000, 1600)):
        cluster.fetches(replica)
    cluster.poll(ORDERS)
    while len(cluster.throttle.lag.topics()) > 1:
        assert cluster.replicas == {FOLLOWER}


def test_bytes_of_made_up_replica_ids_are_all_counted() -> None:
    cluster = Cluster()
    for replica in (FOLLOWER, 1000, 1001):
        cluster.fetches(replica)
    before = sum(cluster.throttle.stats.replication_bytes.values())
    cluster.poll(ORDERS)
    assert sum(cluster.throttle.stats.replication_bytes.values()) == before == 3 * 20 * 100


def test_broker_unknown_to_metadata_gets_series_at_next_answer() -> None:
    """It was added a moment ago: its first fetches come before the answer that names it."""
    cluster = Cluster()
    new = cluster.fetches(4)
    cluster.poll(ORDERS)
    assert cluster.replicas == set()
    new.follower.offsets[b"orders", 0] = 5
    new.exchange()
    cluster.poll({0: Replicas(LEADER, frozenset({FOLLOWER, 4}))})
    new.exchange()
    assert cluster.replicas == {4}


def test_refused_idle_broker_has_its_series_once_it_is_known() -> None:
    cluster = Cluster()
    new = cluster.fetches(4)
    cluster.poll(ORDERS)
    cluster.fetches(4)  # another connection of its: it is asked for again
    cluster.poll({0: Replicas(LEADER, frozenset({FOLLOWER, 4}))})
    new.exchange()
    assert cluster.replicas == {4}


def test_broker_whose_topic_was_moved_away_is_not_refused() -> None:
    cluster = Cluster()
    moved = cluster.fetches(4)
    del moved.follower.offsets[b"orders", 0]
    moved.exchange()
    cluster.poll(ORDERS)
    assert cluster.throttle.brokers.refused == 0


def test_nobody_is_refused_while_the_cluster_does_not_tell() -> None:
    cluster = Cluster()
    cluster.fetches(4)
    for answer in ({0: None}, {}):
        cluster.poll(answer)
        assert cluster.replicas == {4}
    assert cluster.throttle.brokers.refused == 0


def test_ids_of_a_cluster_that_cannot_be_asked_are_bounded() -> None:
    brokers = BrokerIds(most=3)
    brokers.learn([1])
    assert [brokers.admits(broker_id, b"t") for broker_id in (1, 2, 3, 4, 5)] == [True, True, True, False, False]
    assert brokers.refused == 2
    brokers.forget(2)
    assert brokers.admits(6, b"t")


def test_ids_that_were_refused_are_bounded() -> None:
    brokers = BrokerIds(most=3)
    for broker_id in range(10):
        brokers.admits(broker_id, b"t")
    assert [broker_id for broker_id in range(10) if brokers.is_refused(broker_id)] == [7, 8, 9]


def test_known_id_is_admitted_however_many_others_there_are() -> None:
    """Known is an id of which the cluster has told."""
    brokers = BrokerIds(most=1)
    brokers.admits(8, b"t")
    assert not brokers.admits(9, b"t")
    assert brokers.learn([9])
    assert brokers.admits(9, b"t")
