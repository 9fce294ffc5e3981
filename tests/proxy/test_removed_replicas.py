# SPDX-License-Identifier: Apache-2.0
"""Replicas that the cluster's metadata no longer shows are forgotten, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import Conversation, Follower, Leader, Log
from tests.fakes.session_conversation import Hop, SessionFollower, SessionLeader
from weir.lag.topic_lag import LagRow
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.metadata import NO_ID
from weir.proxy.cluster.removed_replicas import SILENT_SECONDS, Assignment, RemovedReplicas, Replicas
from weir.quota.fetch.link import ReplicaLink
from weir.quota.settings import SideName, ThrottleSettings
from weir.quota.throttle import Throttle
from weir.quota.throttled_replicas import ALL_REPLICAS
from weir.quota.topic_names import CLUSTER_METADATA_ID

LEADER = 1
FOLLOWER = 2


def led(*replicas: int, leader: int = LEADER, in_sync: frozenset[int] = frozenset()) -> Replicas:
    """A partition with these replicas, of which the leader is one."""
    return Replicas(leader, frozenset(replicas) - {leader}, in_sync)


DELETED: Assignment = {}
ON_BOTH: Assignment = {0: led(1, FOLLOWER)}
MOVED_AWAY: Assignment = {0: led(1)}
POLL_SECONDS = 5.0


class LeaderSide:
    """The leader's side of broker 1, its poll of the metadata, and followers' connections."""

    def __init__(
        self, settings: ThrottleSettings | None = None, most_topics: int = 500, side: SideName = "leader"
    ) -> None:
        self.clock = MovedClock()
        self.throttle = Throttle(side, 1, self.clock, settings)
        self.throttle.brokers.learn([FOLLOWER, 3])
        self.removed = RemovedReplicas([self.throttle], most_topics)

    def fetched(self, *partitions: tuple[bytes, int], replica: int = FOLLOWER, behind: int = 0) -> ReplicaLink:
        """A connection that has fetched these partitions, and is open still."""
        leader = Leader({key: Log([100] * (behind + 1)) for key in partitions})
        link = self.throttle.link(replica)
        follower = Follower(dict.fromkeys(partitions, 1), replica)
        Conversation(self.clock, link, leader, follower).exchange()
        return link

    def closed(self, *partitions: tuple[bytes, int], replica: int = FOLLOWER, behind: int = 0) -> None:
        """The same, closed."""
        self.fetched(*partitions, replica=replica, behind=behind).close()

    def topics(self) -> list[bytes]:
        """The topics to ask for now."""
        for _ in self.removed.check():
            pass
        return self.removed.topics

    def poll(self, **assignments: Assignment) -> int:
        """Ask once and answer; returns how many partitions are forgotten."""
        asked = {name.decode() for name in self.topics()}
        answered = {name.encode(): assignment for name, assignment in assignments.items() if name in asked}
        return sum(self.removed.take(answered))

    def polled_for(self, seconds: float, **assignments: Assignment) -> int:
        """Poll as often as a sidecar does for so long."""
        forgotten = 0
        for _ in range(round(seconds / POLL_SECONDS)):
            self.clock.move(POLL_SECONDS)
            forgotten += self.poll(**assignments)
        return forgotten

    @property
    def rows(self) -> list[tuple[bytes, int, int]]:
        return [(row.topic, row.partition, row.replica) for row in self.throttle.lag.rows()]

    @property
    def row(self) -> LagRow:
        (row,) = self.throttle.lag.rows()
        return row


@pytest.mark.parametrize("assignment", [MOVED_AWAY, DELETED, {1: led(FOLLOWER)}])
def test_gone_replica_is_forgotten_before_it_is_out_of_sync(assignment: Assignment) -> None:
    """Moved away; its topic deleted; and its partition alone, as in a topic that was made anew with fewer."""
    side = LeaderSide()
    side.closed((b"orders", 0), behind=3)
    assert side.throttle.lag.sum_messages() == 3
    assert side.polled_for(30, orders=assignment) == 1
    assert side.rows == []
    assert side.throttle.lag.sum_messages() == 0


def test_replica_led_by_another_broker_is_no_lag_of_this_one() -> None:
    """This broker was restarted, and leads nothing any more: its followers fetch elsewhere."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    assert side.polled_for(30, orders={0: led(1, 2, 3, leader=3)}) == 1
    assert side.rows == []


def test_replica_on_the_followers_side_is_kept_whoever_leads_it() -> None:
    side = LeaderSide(side="follower")
    side.closed((b"orders", 0), replica=1)
    assert side.polled_for(300, orders={0: led(1, 2, 3, leader=3)}) == 0
    assert side.row.stuck
    assert side.polled_for(30, orders={0: led(1, 2, 3, leader=1)}) == 1


def test_replica_has_no_lag_while_the_cluster_has_it_in_sync() -> None:
    """Its fetches go another way than through this sidecar. In the ISR it was caught up 30 s before at the most."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.polled_for(300, orders={0: led(1, FOLLOWER, in_sync=frozenset({1, FOLLOWER}))})
    assert (side.row.lag_seconds, side.row.stuck) == (0, False)
    side.polled_for(40, orders=ON_BOTH)
    assert (side.row.lag_seconds, side.row.stuck) == (70, True)


def test_dead_replica_is_over_the_limit_once_it_leaves_the_isr() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.polled_for(35, orders={0: led(1, FOLLOWER, in_sync=frozenset({1, FOLLOWER}))})
    assert (side.row.lag_seconds, side.row.stuck) == (0, False)
    side.polled_for(5, orders=ON_BOTH)
    assert (side.row.lag_seconds, side.row.stuck) == (35, True)


def test_replica_in_a_throttled_topics_isr_has_no_lag_at_once() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.throttle.set_in_sync_replicas({(b"orders", 0): frozenset({1, FOLLOWER})})
    side.clock.move(100)
    assert (side.row.lag_seconds, side.row.stuck) == (0, False)
    side.throttle.set_in_sync_replicas({})
    side.clock.move(40)
    assert (side.row.lag_seconds, side.row.stuck) == (70, True)


@pytest.mark.parametrize("error_code", [3, 6])
def test_refused_replica_is_forgotten_when_another_leads(error_code: int) -> None:
    """It asks on, and has errors only."""
    side = LeaderSide()
    leader = Leader({(b"orders", 0): Log([100])})
    talk = Conversation(side.clock, side.throttle.link(FOLLOWER), leader, Follower({(b"orders", 0): 1}, FOLLOWER))
    talk.run(1)
    leader.logs[b"orders", 0].error_code = error_code
    forgotten = 0
    for _ in range(6):
        talk.run(POLL_SECONDS)
        forgotten += side.poll(orders={0: led(1, FOLLOWER, leader=3)})
    assert forgotten == 1
    assert side.rows == []


def test_partition_left_away_by_one_connection_is_forgotten() -> None:
    """It was moved away; another partition of its topic stays."""
    side = LeaderSide()
    logs = {(b"orders", partition): Log([100]) for partition in range(2)}
    follower = Follower(dict.fromkeys(logs, 1), FOLLOWER)
    talk = Conversation(side.clock, side.throttle.link(FOLLOWER), Leader(logs), follower)
    talk.run(1)
    del follower.offsets[b"orders", 0]
    for _ in range(6):
        talk.run(POLL_SECONDS)
        side.poll(orders={0: led(1), 1: led(1, FOLLOWER)})
    assert side.rows == [(b"orders", 1, FOLLOWER)]


def test_assigned_replica_is_kept_while_its_broker_is_down() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0))
    assert side.polled_for(3000, orders=ON_BOTH) == 0
    assert side.row.stuck
    assert side.row.lag_seconds > 2999


@pytest.mark.parametrize("assignment", [None, {0: None}])
def test_replica_of_which_the_cluster_tells_nothing_is_kept(assignment: Assignment | None) -> None:
    """The topic or the partition has an error, or the broker does not answer."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    assert side.polled_for(300, **({} if assignment is None else {"orders": assignment})) == 0
    assert side.row.stuck


def test_replica_in_a_reassignment_is_kept_until_it_is_removed() -> None:
    """Metadata shows the replicas that are added and those that are removed until the move is over."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.closed((b"orders", 0), replica=3)
    assert side.polled_for(60, orders={0: led(1, 2, 3)}) == 0
    side.polled_for(60, orders={0: led(1, 3)})
    assert side.rows == [(b"orders", 0, 3)]


def test_replica_that_was_silent_for_a_moment_is_not_asked_for() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.clock.move(SILENT_SECONDS - 1)
    assert side.topics() == []
    side.clock.move(2)
    assert side.topics() == [b"orders"]


def test_replica_that_old_metadata_leaves_out_is_kept() -> None:
    """An answer from before the replica was added, and then the true one: again and again nothing is forgotten."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    for _ in range(100):
        assert side.polled_for(2 * POLL_SECONDS, orders=MOVED_AWAY) == 0
        assert side.polled_for(POLL_SECONDS, orders=ON_BOTH) == 0
    assert len(side.rows) == 1


def test_replica_that_fetches_between_two_answers_is_kept() -> None:
    """Both answers leave it out."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    for _ in range(10):
        assert side.polled_for(2 * POLL_SECONDS + POLL_SECONDS, orders=MOVED_AWAY) == 0
        side.closed((b"orders", 0))
        side.poll(orders=MOVED_AWAY)
    assert len(side.rows) == 1


def test_replica_that_fetches_while_an_answer_comes_is_kept() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.polled_for(15, orders=MOVED_AWAY)
    side.clock.move(10)
    assert side.topics() == [b"orders"]
    side.closed((b"orders", 0))
    assert sum(side.removed.take({b"orders": MOVED_AWAY})) == 0
    assert len(side.rows) == 1


def test_replica_that_fetches_while_the_answer_is_taken_is_kept() -> None:
    side = LeaderSide()
    for name in (b"a", b"b"):
        side.closed((name, 0))
    side.polled_for(15, a=DELETED, b=DELETED)
    side.clock.move(10)
    side.topics()
    taking = side.removed.take({b"a": DELETED, b"b": DELETED})
    assert next(taking) == 1
    side.closed((b"b", 0))
    assert sum(taking) == 0
    assert side.rows == [(b"b", 0, FOLLOWER)]


def test_returning_replica_has_its_row_with_its_first_answer() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.polled_for(60, orders=MOVED_AWAY)
    assert side.rows == []
    side.fetched((b"orders", 0), behind=5)
    assert (side.row.lag_messages, side.row.stuck, side.row.lag_seconds < 1) == (5, False, True)


@pytest.mark.parametrize("version", [3, 12])
def test_silent_idle_replica_is_back_with_its_next_fetch(version: int) -> None:
    """Kafka 4.1 keeps the connection when the last replica was moved away; and a broker may have hung."""
    side = LeaderSide()
    link = side.throttle.link(FOLLOWER)
    logs = Leader({(b"orders", 0): Log([100])})
    exchange: Callable[[], object]
    if version == 3:
        exchange = Conversation(side.clock, link, logs, Follower({(b"orders", 0): 1}, FOLLOWER)).exchange
    else:
        hop = Hop(side.clock, link, SessionLeader(side.clock, logs))
        exchange = SessionFollower(side.clock, hop, {(b"orders", 0): 1}, version, FOLLOWER).fetch
    exchange()
    exchange()
    assert len(side.rows) == 1
    assert side.polled_for(60, orders=MOVED_AWAY) == 1
    assert side.rows == []
    exchange()
    assert (side.row.lag_messages, side.row.lag_seconds, side.row.stuck) == (0, 0, False)


def test_forgotten_replica_is_not_back_by_another_connection() -> None:
    """The other connection asks for another partition of its topic."""
    side = LeaderSide()
    link = side.fetched((b"orders", 0))
    side.polled_for(60, orders={0: led(1), 1: led(1, FOLLOWER)})
    link.close()
    side.fetched((b"orders", 1))
    assert side.rows == [(b"orders", 1, FOLLOWER)]


def test_partition_lagging_alone_is_forgotten_beside_others() -> None:
    """A move that was cancelled, with a fetcher of its own: the topic is not silent, the partition lags for ever."""
    side = LeaderSide()
    side.fetched((b"orders", 0), behind=3)  # the connection is open
    leader = Leader({(b"orders", partition): Log([100] * 9) for partition in (1, 2)})
    follower = Follower({(b"orders", 1): 9, (b"orders", 2): 9}, FOLLOWER)
    fetching = Conversation(side.clock, side.throttle.link(FOLLOWER), leader, follower)
    fetching.exchange()
    follower.offsets[b"orders", 2] = 5
    both = led(1, FOLLOWER)
    forgotten = 0
    for answered in range(30):
        for _ in range(4):
            leader.logs[b"orders", 2].told_high_watermark = 10 + answered  # never caught up
            fetching.link.plan(follower.request())
            fetching.link.settle(leader.answer(follower.request()))
            side.clock.move(1)
        forgotten += side.poll(orders={0: led(1), 1: both})  # and a stale answer for partition 2
    assert forgotten == 1
    assert side.rows == [(b"orders", 1, FOLLOWER), (b"orders", 2, FOLLOWER)]
    assert side.throttle.lag.sum_messages() > 0


def test_partitions_of_a_topic_are_forgotten_one_by_one() -> None:
    side = LeaderSide()
    side.closed((b"orders", 0), (b"orders", 1), (b"payments", 0))
    both = led(1, FOLLOWER)
    assert side.polled_for(60, orders={0: led(1), 1: both}, payments={0: both}) == 1
    assert side.rows == [(b"orders", 1, FOLLOWER), (b"payments", 0, FOLLOWER)]


def test_topics_bytes_count_on_after_replicas_are_forgotten() -> None:
    """Prometheus may not have read the last of them yet; they go when the topic has been silent for an hour."""
    side = LeaderSide()
    side.closed((b"orders", 0))
    side.throttle.stats.partition_bytes[b"orders"][0] = 100
    assert side.polled_for(60, orders=DELETED) == 1
    assert side.throttle.stats.partition_bytes[b"orders"][0] == 100
    side.clock.move(3600)
    assert (side.rows, dict(side.throttle.stats.partition_bytes)) == ([], {})


def test_topics_are_asked_for_in_turn_where_they_are_many() -> None:
    side = LeaderSide(most_topics=2)
    side.closed(*((name, 0) for name in (b"a", b"b", b"c")))
    side.clock.move(SILENT_SECONDS + 1)
    asked = [side.topics() for _ in range(4)]
    assert asked == [[b"a", b"b"], [b"c", b"a"], [b"b", b"c"], [b"a", b"b"]]


def test_topics_unknown_by_name_to_metadata_are_not_asked_for() -> None:
    """The cluster's own log, and a topic whose id has no name (yet): both would count as deleted."""
    side = LeaderSide()
    side.closed((b"__cluster_metadata", 0))
    for topic_id in (CLUSTER_METADATA_ID, b"\x07" * 16, NO_ID):
        link = side.throttle.link(FOLLOWER)
        link.partitions.asker.fetched(side.clock())
        link.sessions.row = fetch_version(13)
        link.partitions.new_topic(topic_id).lag.update(0, 1, 1, side.clock())
    side.clock.move(60)
    assert len(side.rows) == 4
    assert side.topics() == []


def test_short_replica_lag_time_max_shortens_what_is_waited() -> None:
    side = LeaderSide(ThrottleSettings(replica_lag_time_max_ms=3000))
    side.closed((b"orders", 0))
    forgotten = []
    for _ in range(3):
        side.clock.move(1.0)
        forgotten.append(side.poll(orders=DELETED))
    assert forgotten == [0, 1, 0]


def test_throttled_replica_that_is_gone_leaves_its_move_no_lag() -> None:
    """What WeirMoveStuck looks at: the messages behind, while a throttle is left in force."""
    side = LeaderSide(ThrottleSettings(rate=0, replicas={"orders": ALL_REPLICAS}))
    side.closed((b"orders", 0), behind=3)
    assert side.throttle.lag.sum_messages() == 3
    side.polled_for(30, orders=MOVED_AWAY)
    assert side.throttle.lag.sum_messages() == 0
