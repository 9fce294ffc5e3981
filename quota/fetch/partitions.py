"""The partitions that one follower asks for: which of them wait for budget, and which are absent for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.fetch import NO_LEADER_EPOCH
from protocol.steps import Steps
from quota.counters import IntervalCounts
from quota.fetch.grant_queue import GrantQueue
from quota.fetch.sessions import FetchSessions
from quota.fetch.state import NEVER, UNKNOWN_OFFSET, ReplicaPartition, ReplicaTopic, Upstream
from quota.side_state import SideState
from quota.topic_names import printed_id

UNKNOWN_REPLICA = -1
PARTITIONS_PER_STEP = 1_000  # looked at again within about 2 ms
ABSENT_SECONDS = 15.0  # how long a partition that is not asked for is remembered: longer than one hop leaves it out


class LinkPartitions:
    """All that one connection's follower asks for. Every change of it goes through here, so that its counts agree."""

    def __init__(self, side: SideState, sessions: FetchSessions, peer: int) -> None:
        self.side = side
        self.sessions = sessions
        self.peer = peer
        self.replica_id = UNKNOWN_REPLICA
        self.topics: dict[bytes, ReplicaTopic] = {}
        self.absent: dict[ReplicaPartition, float] = {}  # when to forget it (clock seconds), oldest first
        self.queue = GrantQueue()  # behind or unknown
        self.asker = side.lag.asker()
        self.count = 0
        self.behind_count = 0
        self.unknown_count = 0
        self.most = 0  # at one time: no more are remembered that are absent
        self.most_max_bytes = 0  # partition_max_bytes that was asked for
        self.left_out_count = 0  # fetches that left out all that was behind, but for what they were granted
        self._generation = side.generation

    @property
    def counted_peer(self) -> int:
        """The other broker's id, as its bytes are counted."""
        return self.side.counted_peer(self.peer)

    @property
    def any_wait(self) -> bool:
        """Whether any partition that is asked for is throttled, and not known to be in sync."""
        return self.behind_count > 0 or self.unknown_count > 0

    @property
    def all_wait(self) -> bool:
        """Whether every partition that is asked for is throttled, and not known to be in sync."""
        return self.count == self.behind_count + self.unknown_count

    def topic(self, key: bytes, is_id: bool) -> ReplicaTopic:
        """The topic of this name, or of this id; it is made where it is new."""
        topic = self.topics.get(key)
        if topic is None:
            side = self.side
            name = side.topic_names.name_of(key) if is_id else key
            shown = printed_id(key).encode() if name is None else name
            lag = self.asker.topic(self.replica_id, shown, names_topic=name is not None)
            throttled, coverage = side.throttled_partitions(name, key), side.coverage(name, key)
            topic = self.topics[key] = ReplicaTopic(key, name, lag, throttled, coverage, side.largest_batches.of(key))
        return topic

    def __iter__(self) -> Iterator[ReplicaPartition]:
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def waiting(self) -> Iterator[ReplicaPartition]:
        """All that are throttled and not known to be in sync."""
        for topic in self.topics.values():
            yield from topic.behind.values()
        yield from self.unknown()

    def unknown(self) -> Iterator[ReplicaPartition]:
        """All that are throttled and whose high watermark is not known."""
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
        in_sync_until: float = NEVER,
    ) -> ReplicaPartition:
        """A partition is asked for that was not asked for before, or not lately."""
        topic.lag.ask(partition, now)
        topic.forget_responses()
        self.count += 1
        replica = topic.absent.pop(partition, None)
        if replica is None:
            replica = topic.partitions[partition] = ReplicaPartition(topic, partition, fetch_offset, max_bytes)
            return replica
        topic.partitions[partition] = replica
        del self.absent[replica]
        if leader_epoch != replica.leader_epoch or fetch_offset < replica.fetch_offset:
            replica.go_back(fetch_offset, in_sync_until)  # what was told may be of another leader epoch
        replica.fetch_offset, replica.max_bytes, replica.arrived = fetch_offset, max_bytes, 0
        if not fetch_offset:
            replica.forget_sync()
        return replica

    def move(self, replica: ReplicaPartition, fetch_offset: int, now: float, in_sync_until: float = NEVER) -> None:
        """The follower asks for a partition from another offset on, perhaps."""
        topic = replica.topic
        if fetch_offset < replica.fetch_offset:
            replica.go_back(fetch_offset, in_sync_until)
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
                # Its last bytes may have come in an interval before: without a line it would be behind there for good.
                interval.link(self.counted_peer).topics[topic.name].touch(replica.partition)

    def set_aside(self, topic: ReplicaTopic, partition: int, now: float) -> None:
        """Take away a partition that is not asked for.

        It is remembered for a while: the follower's own sidecar leaves out what its quota has no room for, and asks for
        it again soon. The high watermark that it was told still tells what it is behind of. Nor does an entry made up
        of it hurt: what a follower has below a high watermark is committed, so applied again it changes nothing; and a
        follower whose log was cut since then comes back from an earlier offset, or in another leader epoch.
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
        """Drop the partitions that were absent for long, and those that are too many."""
        self.most = max(self.most, self.count)
        too_many = len(self.absent) - self.most
        gone: list[ReplicaPartition] = []
        for replica, until in self.absent.items():  # one walk: a dictionary is slow where its first entries are deleted
            if until > now and len(gone) >= too_many:
                break
            gone.append(replica)
        for replica in gone:
            topic = replica.topic
            del self.absent[replica], topic.absent[replica.partition]
            if not topic.partitions and not topic.absent:
                del self.topics[topic.key]

    def forget_all(self) -> None:
        """Begin with nothing: what is kept is of another version's layout."""
        self.count_all_left_out()
        self.asker.close()
        self.asker = self.side.lag.asker()
        self.topics, self.absent, self.queue = {}, {}, GrantQueue()
        self.behind_count = self.unknown_count = self.count = 0
        self.sessions.touched = {}

    def close(self) -> None:
        """The connection is gone."""
        self.count_all_left_out()
        self.asker.close()

    # Who waits

    def reclassify_when_due(self, now: float) -> Steps[None]:
        """Look at all partitions again where the answer to "throttled?" or "in sync?" may have changed.

        Done in steps.
        """
        generation = self.side.generation_at(now)
        if self._generation == generation:
            return
        self._generation = generation
        count = 0
        for topic in list(self.topics.values()):
            self._reclassify(topic, now)
            count += 1 + len(topic.partitions)
            if count >= PARTITIONS_PER_STEP:
                yield
                count = 0

    def _reclassify(self, topic: ReplicaTopic, now: float) -> None:
        if topic.name is None:
            topic.name = self.side.topic_names.name_of(topic.key)
            if topic.name is not None:
                topic.lag.rename(topic.name)
        topic.throttled = self.side.throttled_partitions(topic.name, topic.key)
        topic.coverage = self.side.coverage(topic.name, topic.key)
        tells_lag = not topic.lag.is_known  # its follower was taken for no broker, perhaps
        is_throttling = self.side.is_throttling
        for replica in topic.partitions.values():
            if tells_lag:
                topic.lag.update(replica.partition, replica.fetch_offset, replica.high_watermark, now)
            self.classify(replica)
            if (replica.upstream is Upstream.AS_CAME) == (is_throttling and replica.is_waiting):
                self.sessions.touch(replica)

    def classify(self, replica: ReplicaPartition) -> None:
        """In sync: at or past the high watermark last reported, or lately so before an offset went back.

        The cluster's ISR counts only where no high watermark is known, and not at offset 0. It may be old, and none of
        its members is below a high watermark that it was told: the leader's is at most the least offset of them all.
        """
        is_in_sync = replica.has_caught_up or self.side.clock() < replica.in_sync_until
        if is_in_sync or replica.partition not in replica.topic.throttled:
            self.place(replica, behind=False, unknown=False)
        elif replica.high_watermark == UNKNOWN_OFFSET:
            self.place(replica, behind=False, unknown=not self._is_in_isr(replica))
        else:
            self.place(replica, behind=True, unknown=False)

    def _is_in_isr(self, replica: ReplicaPartition) -> bool:
        name = replica.topic.name
        if name is None or not replica.fetch_offset:
            return False  # deleted and made anew: the ISR may be of the one before
        return self.side.in_isr(name, replica.partition, self.replica_id)

    def place(self, replica: ReplicaPartition, *, behind: bool, unknown: bool) -> None:
        """Note whether a partition is throttled and behind, or throttled with an unknown high watermark."""
        topic, partition = replica.topic, replica.partition
        if behind != replica.behind or unknown != (partition in topic.unknown):
            self.sessions.touch(replica)
        if behind != replica.behind:
            self.count_left_out(replica, self.side.stats.interval)
            replica.behind = behind
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
        # An earlier hop that asks for 0 bytes wants the partition's offsets only: nothing may be granted here.
        if (behind or unknown) and replica.max_bytes > 0:
            self.queue.enter(replica, is_capped=replica.max_bytes < self.most_max_bytes)
        else:
            self.queue.leave(replica)
            if not (behind or unknown) and replica.is_present:
                replica.was_queued = replica.is_paced = False

    # How often each was left out

    def leave_out(self, granted: Sequence[ReplicaPartition] = ()) -> None:
        """A fetch leaves out all that is behind, but for `granted`.

        It costs nothing for each of them: a partition behind knows from which count on it was left out each time.
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
        """Count in `interval` how often a partition was left out since that was last counted."""
        left_out = self.left_out_count - replica.left_out_from
        if not replica.behind or not left_out:
            return
        replica.left_out_from = self.left_out_count
        if interval is not None and replica.topic.name is not None:
            interval.link(self.counted_peer).topics[replica.topic.name].leave_out(replica.partition, left_out)

    def count_all_left_out(self) -> None:
        """Count what is left to count of every partition: its counts are about to go."""
        for topic in self.topics.values():
            for replica in topic.behind.values():
                self.count_left_out(replica, self.side.stats.interval)
