"""One connection's replica fetches: what each brings, which partitions it may fetch now, and what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from protocol.fetch import RESPONSE_ENTRY, FetchRequest, fetch_version
from protocol.response_scanner import RecordsSeen, ScannedTopic
from quota.decisions import Decision
from quota.fetch_plan import decide
from quota.replica_state import UNKNOWN_OFFSET, InFlight, ReplicaPartition, ReplicaTopic
from quota.response_limit import ResponseRotation

if TYPE_CHECKING:
    from quota.throttle import Throttle

UNKNOWN_REPLICA = -1
ABSENT_SECONDS = 15.0  # how long a partition that is not asked for is remembered: longer than one hop leaves it out


class ReplicaLink:
    """One follower's fetches of one leader over one connection.

    `plan` decides about a request; `settle` takes what its answer held. Answers come in the order of the requests that
    were forwarded. `abandon` gives up on every answer still to come, `close` ends the link.
    """

    def __init__(self, throttle: Throttle, peer: int) -> None:
        self.throttle = throttle
        self.peer = peer
        self.replica_id = UNKNOWN_REPLICA
        self.topics: dict[bytes, ReplicaTopic] = {}
        self.queue: dict[ReplicaPartition, None] = {}  # behind or unknown, the one that waited longest first
        self.behind_count = 0
        self.unknown_count = 0
        self.unanswered_since: float | None = None  # since when partitions were left out with no true answer
        self.questioned_at = float("-inf")
        self.in_flight: deque[InFlight] = deque()
        self.response_rotation = ResponseRotation()
        self._unconfirmed = 0  # bytes sent that the follower's next request will show to have arrived
        self._partition_count = 0
        self._most_partitions = 0  # in one request: no more are remembered that are absent
        self._absent: dict[ReplicaPartition, float] = {}  # when to forget it, oldest first
        self._request_number = 0
        self._response_number = 0
        self._generation = throttle.generation

    def plan(self, request: FetchRequest, held_seconds: float = 0.0) -> Decision:
        """Decide about `request`, which was held back for `held_seconds` already (this hop only)."""
        now = self.throttle.clock()
        if held_seconds == 0.0:
            self._take_in(request, now)
        if self._generation != self.throttle.generation:
            self._generation = self.throttle.generation
            for topic in self.topics.values():
                self._reclassify(topic)
        return decide(self, request, now, held_seconds)

    def settle(self, topics: Sequence[ScannedTopic]) -> None:
        """The oldest answer awaited was passed on whole; `topics` is what the leader sent of it."""
        fetch = self.in_flight.popleft()
        throttle = self.throttle
        now = throttle.clock()
        self._response_number += 1
        behind_bytes = in_sync_bytes = 0
        if fetch.asks_all:
            self.unanswered_since = None
        granted = frozenset(fetch.granted)
        barren = set(granted)
        for name, headers, records, _ in topics:
            topic = self.topics.get(name)
            if topic is None:
                self._count_strays(name, records)
                continue
            for seen in records:
                replica = topic.partitions.get(seen.partition)
                is_throttled = seen.partition in topic.throttled
                self._count(name, seen, is_throttled)
                if replica is not None:
                    barren.discard(replica)
                    replica.batches.learn(seen)
                    replica.arrived = seen.complete_bytes
                    topic.batches.learn(seen)
                if is_throttled and replica is not None and (replica.behind or replica in granted):
                    behind_bytes += seen.size
                elif is_throttled:
                    in_sync_bytes += seen.size
            if not topic.repeats_response(headers, self._response_number):
                self._take_answers(topic, headers, now)
        if behind_bytes or in_sync_bytes:
            # An answer without any records says nothing about caps: an earlier hop, or Kafka's own throttle, kept all.
            for replica in barren:
                replica.batches.miss()
        if fetch.is_question:
            # At most one batch comes with a question; no quota could have stopped it.
            throttle.ledger.settle(fetch.reserved, 0)
            throttle.ledger.charge(behind_bytes + in_sync_bytes)
        else:
            throttle.ledger.hand_over(fetch.reserved, behind_bytes)
            self._unconfirmed += behind_bytes
            throttle.ledger.charge(in_sync_bytes)
        if behind_bytes or in_sync_bytes:
            throttle.record(behind_bytes + in_sync_bytes)

    def abandon(self) -> None:
        """No answer will come any more. What was reserved may have been sent in part: it counts as sent."""
        self._confirm()
        while self.in_flight:
            reserved = self.in_flight.popleft().reserved
            self.throttle.ledger.settle(reserved, reserved)

    def close(self) -> None:
        """The connection is gone."""
        self.abandon()
        self.throttle.turns.leave(self)
        self.throttle.links.discard(self)

    # What a request brings

    def _confirm(self) -> None:
        """A fetcher asks again when it has appended what it was sent: only then is it known when that arrived."""
        if self._unconfirmed:
            self.throttle.ledger.confirm(self._unconfirmed)
            self._unconfirmed = 0

    def _take_in(self, request: FetchRequest, now: float) -> None:
        self._confirm()
        self._request_number = number = self._request_number + 1
        self.replica_id = request.replica_id
        count = 0
        row = fetch_version(request.header.api_version)
        topics = self.topics
        for name, entries, stride, _ in request.topics:
            if not entries:
                continue
            topic = topics.get(name)
            if topic is None:
                throttle = self.throttle
                lag = throttle.lag.topic(self.replica_id, name)
                topic = topics[name] = ReplicaTopic(name, lag, throttle.throttled_partitions(name))
            topic.lag.fetched(now)
            count += len(entries) // stride
            if not topic.repeats_request(entries, number):
                self._take_block(topic, row.requested(stride).iter_unpack(entries), now)
        if count != self._partition_count:
            self._set_aside_absent(request, now)
        self._most_partitions = max(self._most_partitions, count)
        while self._absent:
            oldest, until = next(iter(self._absent.items()))
            if until > now and len(self._absent) <= self._most_partitions:
                break
            self._forget(oldest)

    def _take_block(self, topic: ReplicaTopic, entries: Iterable[tuple[int, int, int]], now: float) -> None:
        partitions = topic.partitions
        for partition, fetch_offset, max_bytes in entries:
            replica = partitions.get(partition)
            if replica is None:
                replica = partitions[partition] = self._appeared(topic, partition, fetch_offset, max_bytes)
            elif replica.fetch_offset == fetch_offset and replica.max_bytes == max_bytes:
                continue
            else:
                if fetch_offset < replica.fetch_offset:
                    replica.go_back(now + self.throttle.lag.replica_lag_time_max)
                    topic.forget_responses()
                    replica.fetch_offset = fetch_offset
                elif fetch_offset > replica.fetch_offset:
                    replica.advance(fetch_offset)
                replica.max_bytes = max_bytes
                if replica.high_watermark != UNKNOWN_OFFSET:
                    topic.lag.update(partition, fetch_offset, replica.high_watermark, now)
            self._classify(replica)

    def _appeared(self, topic: ReplicaTopic, partition: int, fetch_offset: int, max_bytes: int) -> ReplicaPartition:
        self._partition_count += 1
        topic.forget_responses()
        replica = topic.absent.pop(partition, None)
        if replica is None:
            return ReplicaPartition(topic, partition, fetch_offset, max_bytes)
        del self._absent[replica]
        replica.fetch_offset, replica.max_bytes, replica.arrived = fetch_offset, max_bytes, 0
        if not fetch_offset:
            replica.forget_sync()
        return replica

    def _set_aside_absent(self, request: FetchRequest, now: float) -> None:
        """Take away the partitions that this request does not ask for.

        Their high watermarks may be stale when they return, so they are unknown then. The rest is remembered for a
        while: the follower's own sidecar leaves out what its quota has no room for, and asks for it again soon.
        """
        present: dict[bytes, set[int]] = {}
        row = fetch_version(request.header.api_version)
        for name, entries, stride, _ in request.topics:
            ids = present.setdefault(name, set())
            ids.update([entry[0] for entry in row.requested(stride).iter_unpack(entries)])
        for name, topic in list(self.topics.items()):
            kept = present.get(name, set())
            for partition in [id_ for id_ in topic.partitions if id_ not in kept]:
                replica = topic.partitions.pop(partition)
                topic.absent[partition] = replica
                self._absent[replica] = now + ABSENT_SECONDS
                self._place(replica, behind=False, unknown=False)
                replica.go_back(now + self.throttle.lag.replica_lag_time_max)
                topic.forget_requests()
            topic.forget_responses()
        self._partition_count = sum(len(topic.partitions) for topic in self.topics.values())

    def _forget(self, replica: ReplicaPartition) -> None:
        """Drop a partition that was absent for long."""
        topic = replica.topic
        del self._absent[replica], topic.absent[replica.partition]
        topic.lag.forget(replica.partition)
        if not topic.partitions and not topic.absent:
            del self.topics[topic.name]

    # What an answer brings

    def _take_answers(self, topic: ReplicaTopic, headers: bytes, now: float) -> None:
        partitions = topic.partitions
        for partition, error_code, high_watermark, _ in RESPONSE_ENTRY.iter_unpack(headers):
            replica = partitions.get(partition)
            if replica is None or error_code or high_watermark == replica.high_watermark:
                continue
            replica.high_watermark = high_watermark
            topic.made_up = None
            topic.lag.update(partition, replica.fetch_offset, high_watermark, now)
            self._classify(replica)

    # Who is behind

    def _reclassify(self, topic: ReplicaTopic) -> None:
        topic.throttled = self.throttle.throttled_partitions(topic.name)
        for replica in topic.partitions.values():
            self._classify(replica)

    def _classify(self, replica: ReplicaPartition) -> None:
        """In sync: at or past the high watermark last reported, lately so before an offset went back, or in the ISR."""
        topic = replica.topic
        if replica.partition not in topic.throttled or self.throttle.in_isr(
            topic.name, replica.partition, self.replica_id
        ):
            self._place(replica, behind=False, unknown=False)
        elif replica.high_watermark == UNKNOWN_OFFSET:
            self._place(replica, behind=False, unknown=True)
        else:
            is_in_sync = replica.has_caught_up or self.throttle.clock() < replica.in_sync_until
            self._place(replica, behind=not is_in_sync, unknown=False)

    def _place(self, replica: ReplicaPartition, *, behind: bool, unknown: bool) -> None:
        topic, partition = replica.topic, replica.partition
        if behind != replica.behind:
            replica.behind = behind
            topic.made_up = None
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
            self.queue.setdefault(replica)
        else:
            self.queue.pop(replica, None)

    # Counting

    def _count(self, topic: bytes, seen: RecordsSeen, is_throttled: bool) -> None:
        stats = self.throttle.stats
        stats.replication_bytes[self.peer, is_throttled] += seen.size
        stats.partition_bytes[topic, seen.partition] += seen.size
        stats.cut_bytes += seen.cut_bytes

    def _count_strays(self, topic: bytes, records: Sequence[RecordsSeen]) -> None:
        """Count what came for a topic that the follower stopped asking for while the answer was on its way."""
        throttled = self.throttle.throttled_partitions(topic)
        for seen in records:
            self._count(topic, seen, seen.partition in throttled)
