"""The partitions that one follower asks for: which wait for budget, and which are absent for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weir.lag.broker_ids import STRANGER
from weir.protocol.fetch_versions import NO_LEADER_EPOCH
from weir.protocol.steps import PER_STEP, Steps, StepWork
from weir.quota.counters import IntervalCounts
from weir.quota.fetch.order import GrantQueue
from weir.quota.fetch.sessions import FetchSessions
from weir.quota.fetch.state import UNKNOWN_OFFSET, LeaderEntry, ReplicaPartition, ReplicaTopic
from weir.quota.scopes import Ends
from weir.quota.side_state import SideState
from weir.quota.topic_names import printed_id

LAST_VERSION_BEFORE_LEADER_EPOCHS = 4  # followers below level 0.11 (KIP-101): they truncate to their high watermark
FREED_PER_STEP = 300  # topics and partitions
# how long a partition is remembered after the last fetch that asked for it: longer than a hop leaves one out
ABSENT_SECONDS = 15.0


class LinkPartitions:
    """All partitions that one connection's follower asks for. Every change goes through this class."""

    def __init__(self, side: SideState, sessions: FetchSessions, peer: int) -> None:
        self.side = side
        self.sessions = sessions
        self.peer = peer
        self.is_stranger = False
        self.claimed_id = -1  # by the last fetch
        self.topics: dict[bytes, ReplicaTopic] = {}
        self.absent: dict[ReplicaPartition, float] = {}  # when to forget each (clock seconds), oldest first
        self.queue = GrantQueue(side)  # of partitions behind, or without a high watermark
        self.asker = side.lag.asker()
        self.failed: list[ReplicaPartition] = []  # answered with an error while no high watermark was known
        self.count = 0
        self.behind_count = 0
        self.unknown_count = 0
        self.most = 0  # the most partitions at one time: no more absent ones than that are remembered
        self.is_asked_for_none = False  # whether 0 bytes were ever asked for: by the follower's own sidecar
        self.left_out_count = 0  # fetches so far that left out what is behind; `left_out_from` counts the exceptions
        self._generation = side.generation

    @property
    def counted_peer(self) -> int:
        """The id under which the other broker's bytes are counted."""
        return self.side.counted_peer(self.peer)

    @property
    def replica_id(self) -> int:
        """The id of the follower by which it takes turns, and by which its lag is told."""
        return STRANGER if self.is_stranger else self.claimed_id

    @property
    def ends(self) -> Ends:
        """The brokers of the link, as far as quotas care: a stranger is throttled as who it claims to be."""
        return Ends(self.claimed_id, self.claimed_id if self.side.side == "leader" else self.peer)

    @property
    def waiting_count(self) -> int:
        """How many partitions are throttled and not known to be in sync."""
        return self.behind_count + self.unknown_count

    def topic(self, key: bytes, is_id: bool) -> ReplicaTopic:
        """Return the topic of this name (from v13 on: id); it is made at its first use."""
        topic = self.topics.get(key)
        if topic is None:
            side = self.side
            name = side.topic_names.name_of(key) if is_id else key
            shown = printed_id(key).encode() if name is None else name
            lag = self.asker.topic(self.replica_id, shown, names_topic=name is not None)
            throttled = side.rules.throttled_partitions(name, key, self.ends)
            coverage = side.rules.coverage(name, key, self.ends)
            topic = self.topics[key] = ReplicaTopic(key, name, lag, throttled, coverage)
        return topic

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

    # What a request changes

    def appear(
        self,
        topic: ReplicaTopic,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        now: float,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> ReplicaPartition:
        """Add a partition that was not asked for before. One set aside lately keeps what was known of it."""
        caught_up = topic.lag.caught_up(partition)
        topic.lag.ask(partition, now)
        topic.forget_responses()
        self.count += 1
        replica = topic.absent.pop(partition, None)
        if replica is None:
            replica = topic.partitions[partition] = ReplicaPartition(topic, partition, fetch_offset, max_bytes)
            if caught_up is not None and fetch_offset >= caught_up.offset:
                replica.keep_in_sync(caught_up.offset, caught_up.at + self.side.lag.replica_lag_time_max)
            return replica
        topic.partitions[partition] = replica
        del self.absent[replica]
        if leader_epoch != replica.leader_epoch or fetch_offset < replica.fetch_offset:
            # the high watermark that was told may belong to an earlier leader epoch
            self.go_back(replica, fetch_offset)
        replica.fetch_offset, replica.max_bytes, replica.arrived = fetch_offset, max_bytes, 0
        if not fetch_offset:
            replica.forget_sync()
        return replica

    @property
    def in_sync_until(self) -> float:
        """How long what has caught up until now counts as in sync (clock seconds)."""
        return self.asker.caught_up_at + self.side.lag.replica_lag_time_max

    def go_back(self, replica: ReplicaPartition, fetch_offset: int) -> None:
        """Drop the high watermark of a partition that is asked for from an earlier offset or by another epoch."""
        truncates = self.sessions.api_version <= LAST_VERSION_BEFORE_LEADER_EPOCHS
        replica.go_back(fetch_offset, self.in_sync_until, truncates=truncates)

    def move(self, replica: ReplicaPartition, fetch_offset: int, now: float) -> None:
        """Take the offset from which the follower asks for a partition now; it may be the same as before."""
        topic = replica.topic
        if fetch_offset < replica.fetch_offset:
            self.go_back(replica, fetch_offset)
            if not fetch_offset:  # deleted and made anew while its last fetch waited at the leader
                replica.forget_sync()
            topic.forget_responses()
            replica.fetch_offset = fetch_offset
        elif fetch_offset > replica.fetch_offset:
            replica.advance(fetch_offset)
        if replica.high_watermark != UNKNOWN_OFFSET:
            topic.lag.update(replica.partition, fetch_offset, replica.high_watermark, now)
            interval = self.side.stats.interval
            if interval is not None and topic.name is not None and fetch_offset >= replica.high_watermark:
                # The last bytes may have come in the interval before. Without a line in this one the samples would show
                # the partition behind for good.
                interval.link(self.counted_peer).topics[topic.name].touch(replica.partition)

    def set_aside(self, topic: ReplicaTopic, partition: int, now: float) -> None:
        """Take away a partition that the follower does not ask for now, and remember it for a while.

        The follower's own sidecar leaves out what its quota has no room for, and asks for it again soon: it is then
        known to be behind without an offset probe. One whose log was cut meanwhile comes back with an earlier offset or
        another leader epoch, and then the high watermark is dropped.
        """
        replica = topic.partitions.pop(partition)
        topic.lag.leave(partition, now)
        topic.absent[partition] = replica
        self.absent[replica] = now + ABSENT_SECONDS
        self.count -= 1
        self.place(replica, behind=False, unknown=False)
        topic.forget_requests()
        topic.forget_responses()
        self.sessions.touch(replica)

    def forget_absent(self, now: float) -> None:
        """Drop partitions that were absent for too long, and the oldest of those beyond `most`."""
        self.most = max(self.most, self.count)
        too_many = len(self.absent) - self.most
        gone: list[ReplicaPartition] = []
        # one walk: deleting the first entry of a dictionary again and again is slow
        for replica, until in self.absent.items():
            if until > now and len(gone) >= too_many:
                break
            gone.append(replica)
        for replica in gone:
            topic = replica.topic
            del self.absent[replica], topic.absent[replica.partition]
            self.queue.leave(replica, returns=False)
            if not topic.partitions and not topic.absent:
                del self.topics[topic.key]

    def forget_all(self) -> Steps[None]:
        """Begin with nothing: what is kept has the layout of another version. Done in steps."""
        self.close()
        self.asker = self.side.lag.asker()
        yield from self.free()

    def close(self) -> None:
        """The connection has ended."""
        self.count_all_left_out()
        self.asker.close()

    def free(self) -> Steps[None]:
        """Drop all partitions a few at a time: topics and partitions refer to each other."""
        topics = self.topics
        self.topics, self.absent, self.queue, self.failed = {}, {}, GrantQueue(self.side), []
        self.behind_count = self.unknown_count = self.count = 0
        self.sessions.touched = {}
        work = StepWork(FREED_PER_STEP)
        while topics:
            _, topic = topics.popitem()
            freed = 1 + len(topic.partitions)
            topic.let_go()
            if work.is_enough(freed):
                yield

    # Who waits

    def reclassify_when_due(self, now: float) -> Steps[None]:
        """Classify every partition anew where "throttled?" or "in sync?" may have changed. Done in steps."""
        generation = self.side.generation
        if self._generation == generation:
            return
        self._generation = generation
        self.queue.rank_anew()
        work = StepWork(PER_STEP)
        for topic in list(self.topics.values()):
            self._reclassify(topic, now)
            if work.is_enough(1 + len(topic.partitions)):
                yield

    def _reclassify(self, topic: ReplicaTopic, now: float) -> None:
        if topic.name is None:
            topic.name = self.side.topic_names.name_of(topic.key)
            if topic.name is not None:
                topic.lag.rename(topic.name)
        topic.throttled = self.side.rules.throttled_partitions(topic.name, topic.key, self.ends)
        topic.coverage = self.side.rules.coverage(topic.name, topic.key, self.ends)
        tells_lag = not topic.lag.is_known  # perhaps the cluster did not know the follower as a broker until now
        is_throttling = self.side.is_throttling
        for replica in topic.partitions.values():
            if tells_lag:
                topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, now)
            self.classify(replica)
            if (replica.at_leader is LeaderEntry.AS_CAME) == (is_throttling and replica.is_waiting):
                self.sessions.touch(replica)

    def classify(self, replica: ReplicaPartition) -> None:
        """Find out whether a partition needs budget: not in sync, and not where it had lately reached the high
        watermark.

        The cluster's ISR decides nothing: it may be old, or of a replica that was deleted and made anew since.
        """
        if replica.is_in_sync(self.side.clock()) or replica.partition not in replica.topic.throttled:
            self.place(replica, behind=False, unknown=False)
        elif replica.high_watermark == UNKNOWN_OFFSET:
            self.place(replica, behind=False, unknown=True)
        else:
            self.place(replica, behind=True, unknown=False)

    def fail(self, replica: ReplicaPartition) -> None:
        """Note an error in place of the first high watermark: the fetch under way is done with this partition."""
        self.place(replica, behind=False, unknown=False)
        self.failed.append(replica)

    def classify_failed(self) -> Steps[None]:
        """Classify anew what failed, now that it is asked for again. Done in steps."""
        failed, self.failed = self.failed, []
        for number, replica in enumerate(failed, start=1):
            if not number % PER_STEP:
                yield
            if replica.is_present:
                replica.topic.forget_responses()
                self.classify(replica)

    def place(self, replica: ReplicaPartition, *, behind: bool, unknown: bool) -> None:
        """Note whether a throttled partition is behind, or has no known high watermark."""
        topic, partition = replica.topic, replica.partition
        if behind != replica.behind or unknown != (partition in topic.unknown):
            self.sessions.touch(replica)
        if behind != replica.behind:
            self.count_left_out(replica, self.side.stats.interval)
            topic.made_up = None
            replica.left_out_from = self.left_out_count
            if behind:
                topic.behind[partition] = replica
                self.behind_count += 1
            else:
                del topic.behind[partition]
                self.behind_count -= 1
        if unknown != (partition in topic.unknown):
            self.unknown_count += 1 if unknown else -1
            topic.unknown.symmetric_difference_update((partition,))
        # An earlier hop that asks for 0 bytes wants offsets and errors only: a grant would be a batch that it did not
        # ask for.
        if (behind or unknown) and replica.max_bytes > 0:
            self.queue.enter(replica)
        else:
            self.queue.leave(replica, returns=behind or unknown or not replica.is_present)

    # How often each was left out

    def leave_out(self, granted: Sequence[ReplicaPartition] = ()) -> None:
        """Note that a fetch leaves out every partition behind but those in `granted`.

        One counter of the link grows, and each partition knows where it began (`left_out_from`).
        """
        left_out = self.behind_count
        self.left_out_count += 1
        for replica in granted:
            if replica.behind:
                left_out -= 1
                replica.left_out_from += 1
        stats = self.side.stats
        stats.partitions_left_out += left_out
        if stats.interval is not None:
            stats.interval.link(self.counted_peer).left_out += left_out

    def count_left_out(self, replica: ReplicaPartition, interval: IntervalCounts | None) -> None:
        """Add to `interval` how often a partition was left out since the last time this was called for it."""
        left_out = self.left_out_count - replica.left_out_from
        if not replica.behind or not left_out:
            return
        replica.left_out_from = self.left_out_count
        if interval is not None and replica.topic.name is not None:
            interval.link(self.counted_peer).topics[replica.topic.name].leave_out(replica.partition, left_out)

    def count_all_left_out(self) -> None:
        """Count the rest for every partition, before all of them go."""
        for topic in self.topics.values():
            for replica in topic.behind.values():
                self.count_left_out(replica, self.side.stats.interval)
