# SPDX-License-Identifier: Apache-2.0
"""What one link keeps from one fetch to the next: of its partitions (which wait, which are absent), and of itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from weir.lag.broker_ids import NO_BROKER, STRANGER
from weir.protocol.request_topics import RequestTopic
from weir.protocol.steps import Steps, StepWork
from weir.quota.budget.ledger import LinkAccounts
from weir.quota.budget.quota import Quota
from weir.quota.fetch.order import GrantQueue
from weir.quota.fetch.sessions import FetchSessions
from weir.quota.fetch.state import UNKNOWN_OFFSET, InFlight, LeaderEntry, ReplicaPartition, ReplicaTopic
from weir.quota.figures import LATE_SECONDS, LEAST_SHARED, PARTITIONS_PER_STEP
from weir.quota.scopes import Ends
from weir.quota.side_state import SideState
from weir.quota.topic_names import printed_id


class LinkPartitions:
    """All partitions that one connection's follower asks for."""

    def __init__(self, side: SideState, sessions: FetchSessions, peer: int, *, is_stranger: bool = False) -> None:
        self.side = side
        self.sessions = sessions
        self.peer = peer
        self.is_stranger = is_stranger
        self.claimed_by(NO_BROKER)
        self.topics: dict[bytes, ReplicaTopic] = {}
        self.absent: dict[ReplicaPartition, float] = {}  # when to forget each (clock seconds), oldest first
        self.asked: set[RequestTopic] = set()
        """What the last request listed, if it was whole. Listed again exactly so, it is not looked into."""
        self.told: set[tuple[bytes, bytes]] = set()
        """What the last answer told, if it was whole: (name or id, RESPONSE_ENTRYs). Empty where all is news."""
        self.queue = GrantQueue(side)  # of partitions behind, or without a high watermark
        self.asker = side.lag.asker()
        self.count = 0
        self.behind_count = 0
        self.unknown_count = 0
        self.waited_for: dict[Quota, int] = {}  # how many topics with partitions that wait each quota covers
        self.is_asked_for_none = False  # whether 0 bytes were ever asked for: by the follower's own sidecar
        self.generation = side.rules.generation  # of the rules by which everything is classified

    @property
    def replica_id(self) -> int:
        """The id of the follower by which its lag is told."""
        return STRANGER if self.is_stranger else self.ends.follower

    @property
    def other_id(self) -> int:
        """The id of the broker at the other end, by which it takes turns. On a follower's side that is a leader.

        On the leader's side anyone may claim an id. All whom the broker answers with errors alone take
        turns as one stranger.
        """
        is_refused = self.is_refused and self.side.takes_out
        return STRANGER if self.is_stranger or is_refused else self.ends.other

    @property
    def counted_peer(self) -> int:
        """The id under which the other broker's bytes are counted. On the follower's side it is always a broker's."""
        side = self.side
        return NO_BROKER if side.side == "leader" and side.brokers.is_refused(self.peer) else self.peer

    def claimed_by(self, broker_id: int) -> None:
        """Take the id that a fetch says its follower has: by it quotas cover even a stranger."""
        self.is_refused = broker_id in self.side.refused
        self.ends = Ends(broker_id, broker_id if self.side.side == "leader" else self.peer)

    def new_topic(self, key: bytes) -> ReplicaTopic:
        """Return a topic by its name, or from v13 on by its id. It belongs to the link when it is in `topics`."""
        rules = self.side.rules
        name = rules.topic_names.name_of(key) if self.sessions.row.names_topics_by_id else key
        shown = printed_id(key).encode() if name is None else name
        lag = self.asker.topic(self.replica_id, shown, names_topic=name is not None)
        coverage = rules.coverage(name, key, self.ends)
        return ReplicaTopic(key, name, lag, rules.throttled_partitions(coverage), coverage)

    def __contains__(self, key: object) -> bool:
        """Whether a topic has partitions in a quota. Only there batches are told from cut ones."""
        topic = self.topics.get(key) if isinstance(key, bytes) else None
        return topic is not None and bool(topic.coverage)

    def __iter__(self) -> Iterator[ReplicaPartition]:
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def waiting(self) -> Iterator[ReplicaPartition]:
        """Iterate over the partitions that are throttled and not known to be in sync."""
        if self.behind_count:
            for topic in self.topics.values():
                yield from topic.behind.values()
        yield from self.unknown()

    def unknown(self) -> Iterator[ReplicaPartition]:
        """Iterate over the partitions that are throttled and have no known high watermark."""
        if self.unknown_count:
            for topic in self.topics.values():
                for partition in topic.unknown:
                    yield topic.partitions[partition]

    def forget_all(self) -> Steps[None]:
        """Begin with nothing: what is kept has the layout of another version. Done in steps."""
        self.asker.close()
        self.asker = self.side.lag.asker()
        yield from self.free()

    def free(self) -> Steps[None]:
        """Drop all partitions a few at a time: topics and partitions refer to each other."""
        topics = self.topics
        self.topics, self.absent, self.queue = {}, {}, GrantQueue(self.side)
        self.asked, self.told, self.waited_for = set(), set(), {}
        self.behind_count = self.unknown_count = self.count = 0
        self.sessions.touched = {}
        work = StepWork(PARTITIONS_PER_STEP)
        while topics:
            _, topic = topics.popitem()
            freed = 1 + len(topic.partitions)
            topic.partitions, topic.absent, topic.behind = {}, {}, {}
            if work.is_enough(freed):
                yield

    @property
    def in_sync_until(self) -> float:
        """How long what has caught up until now counts as in sync (clock seconds)."""
        return self.asker.caught_up_at + self.side.lag.replica_lag_time_max

    # Who waits

    def classify_all(self, now: float) -> Steps[None]:
        """Classify every partition anew: "throttled?" or "in sync?" may have changed. Done in steps."""
        self.generation = self.side.rules.generation
        work = StepWork(PARTITIONS_PER_STEP)
        for topic in list(self.topics.values()):
            self._reclassify(topic, now)
            if work.is_enough(1 + self.side.rules.work + len(topic.partitions)):
                yield

    def _reclassify(self, topic: ReplicaTopic, now: float) -> None:
        rules = self.side.rules
        if topic.name is None:
            topic.name = rules.topic_names.name_of(topic.key)
            if topic.name is not None:
                topic.lag.rename(topic.name)
        self.cover(topic)
        tells_lag = not topic.lag.is_known  # perhaps the cluster did not know the follower as a broker until now
        for replica in topic.partitions.values():
            if tells_lag:
                topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, now)
            self.classify(replica)
            if (replica.at_leader is LeaderEntry.AS_CAME) == (rules.is_throttling and replica.is_waiting):
                self.sessions.touch(replica)

    def cover(self, topic: ReplicaTopic) -> None:
        """Look up anew which of a topic's partitions belong to which quota."""
        waits = topic.behind or topic.unknown
        if waits:
            self._note_waiting(topic, -1)
        topic.coverage = self.side.rules.coverage(topic.name, topic.key, self.ends)
        if waits:
            self._note_waiting(topic, 1)
        topic.throttled = self.side.rules.throttled_partitions(topic.coverage)

    def _note_waiting(self, topic: ReplicaTopic, more: int) -> None:
        for quota, _ in topic.coverage:
            count = self.waited_for.pop(quota, 0) + more
            if count:
                self.waited_for[quota] = count

    def classify(self, replica: ReplicaPartition) -> None:
        """Find out whether a partition needs budget: not in sync, and not where it had lately reached the high
        watermark.

        The cluster's ISR decides nothing: it may be old, or of a replica that was deleted and made anew since.
        """
        high_watermark = replica.high_watermark
        is_in_sync = UNKNOWN_OFFSET < high_watermark <= replica.fetch_offset  # for each partition: no call
        is_in_sync = is_in_sync or self.side.clock() < replica.in_sync_until
        waits = not is_in_sync and replica.partition in replica.topic.throttled
        is_unknown = high_watermark == UNKNOWN_OFFSET
        if is_unknown and not self.side.takes_out:  # what an earlier connection, or leader epoch, was told tells enough
            is_unknown = replica.highest <= replica.fetch_offset
        self.place(replica, behind=waits and not is_unknown, unknown=waits and is_unknown)

    def place(self, replica: ReplicaPartition, *, behind: bool, unknown: bool) -> None:
        """Note whether a throttled partition is behind, or has no known high watermark."""
        topic, partition, queue = replica.topic, replica.partition, self.queue
        was_behind, was_unknown = partition in topic.behind, partition in topic.unknown
        if (behind, unknown) != (was_behind, was_unknown) and replica.entry:
            self.sessions.touched[replica] = None
        waited = bool(topic.behind or topic.unknown)
        if behind != was_behind:
            topic.made_up = None
            if behind:
                topic.behind[partition] = replica
                self.behind_count += 1
            else:
                del topic.behind[partition]
                self.behind_count -= 1
        if unknown != was_unknown:
            self.unknown_count += 1 if unknown else -1
            topic.unknown.symmetric_difference_update((partition,))
        if waited is not bool(topic.behind or topic.unknown):
            self._note_waiting(topic, -1 if waited else 1)
        # An earlier hop that asks for 0 bytes wants offsets and errors only: a grant would be a batch that it did not
        # ask for.
        if (behind or unknown) and replica.max_bytes > 0:
            if replica not in queue.waiting:
                queue.enter(replica)
        elif replica in queue.turns:
            queue.leave(replica, returns=behind or unknown or topic.partitions.get(partition) is not replica)

    def leave_out(self, granted: Sequence[ReplicaPartition] = ()) -> None:
        """Count that a fetch leaves out every partition behind but those in `granted`."""
        left_out = self.behind_count - sum([replica.partition in replica.topic.behind for replica in granted])
        stats = self.side.stats
        stats.partitions_left_out += left_out
        if stats.interval is not None:
            stats.interval.link(self.counted_peer).left_out += left_out


class LinkState:
    """State that the modules of `weir.quota.fetch` share. Only intake, settlement, `commit` and the link change it.

    Times are in clock seconds.
    """

    def __init__(self, throttle: SideState, peer: int, *, is_stranger: bool = False) -> None:
        self.throttle = throttle
        self.sessions = FetchSessions()
        self.partitions = LinkPartitions(throttle, self.sessions, peer, is_stranger=is_stranger)
        self.accounts = LinkAccounts()  # what the link holds of the budget
        self.in_flight: InFlight | None = None  # the fetch that is forwarded
        self.number = 0  # of requests and answers so far
        self.unanswered_since: float | None = None
        """The time since which some partitions had no true answer, as they were left out; None where all had one."""
        self.crowded_until = -math.inf  # up to this time answers are expected to be full of what is not granted
        self.grants_filled_answer = False
        """Whether grants in front left others no room in the last answer, or may have. Then all else is next."""
        self.most_shared = LEAST_SHARED  # how many partitions may share what a fetch is granted
        self.answer_seconds = 0.0  # how long the answer to the last grant took (seconds)
        self.pace = math.inf  # bytes/s at which the last answer to a grant came; inf where it came in one piece
        self.distance = LATE_SECONDS
        """How long the quickest answer took to begin (seconds): the way to the leader and back. Beside it: the last."""
        self.made_to_wait_at = -math.inf
        """When an answer to a grant came last that was late: the leader's side throttles too, or the broker is slow."""
        self.most_beside_live = math.inf
        """What passed on the link in PASSING_SECONDS while the last answer came (bytes)."""
        self.answered: tuple[float, int] | None = None
        """When an answer was passed on, and its bytes where most were granted; None once its follower asks again."""
        self.quickest = math.inf  # seconds after which the follower has asked again: the way there and back
        self.live_until = -math.inf
        """Up to this time records of partitions that need no budget are expected on the link."""
        self.moved_at = -math.inf  # when the follower was last seen to take a part of an answer, or all of it
        self.on_way = math.inf
        """Bytes that may be on their way to a slow follower, as last told; inf where it is not known to be slow."""
