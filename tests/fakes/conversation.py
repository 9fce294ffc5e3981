"""A leader and a follower made of plain data, so that a throttle can be watched event by event with a moved clock.

`Leader.answer` follows Kafka's ReplicaManager.readFromLog and UnifiedLog.read: partitions in the request's order, the
first one with data returns at least one batch from v3 on, a cap below the first batch returns nothing from v3 on and a
part of it below v3, and a cap behind whole batches cuts the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from tests.fakes.clock import MovedClock
from tests.fakes.take_out import passed, take_out
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.records import RecordsSeen
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.fetch.link import ReplicaLink

MAX_WAIT_MS = 500
PARTITION_MAX_BYTES = 1024 * 1024
RESPONSE_MAX_BYTES = 10 * 1024 * 1024


def requested_partition(
    version: int, partition: int, fetch_offset: int, max_bytes: int, leader_epoch: int | None = None
) -> bytes:
    """One partition of a request; of the other fields each has a value of its own, to be told from what changed it."""
    values = {"partition": partition, "fetch_offset": fetch_offset, "partition_max_bytes": max_bytes}
    if leader_epoch is not None:
        values["current_leader_epoch"] = leader_epoch
    fields = FETCH_VERSIONS[version].request_partition
    packed = fields.layout.pack(*[values.get(name, 1_000 + partition) for name in fields.names])
    return packed + b"\x00" if FETCH_VERSIONS[version].is_flexible else packed


def requested(request: FetchRequest) -> dict[tuple[bytes, int], tuple[int, int]]:
    """(fetch_offset, partition_max_bytes) of each partition that a request asks for, in its order."""
    row = FETCH_VERSIONS[request.header.api_version]
    return {
        (name, partition): (fetch_offset, max_bytes)
        for name, entries, stride, _ in request.topics
        for partition, fetch_offset, max_bytes in row.requested(stride).iter_unpack(entries)
    }


@dataclass
class Log:
    """A leader's partition: one offset a batch, so that an offset is an index of `batches` (sizes in bytes)."""

    batches: list[int]
    high_watermark: int | None = None  # None: all of it
    error_code: int = 0

    @property
    def visible_high_watermark(self) -> int:
        return len(self.batches) if self.high_watermark is None else self.high_watermark

    def read(self, fetch_offset: int, limit: int, at_least_one: bool, version: int) -> tuple[int, list[int], int]:
        """(bytes sent, sizes of the whole batches, size of the batch that was cut or 0)."""
        if fetch_offset >= len(self.batches):
            return 0, [], 0
        if at_least_one and version >= 3:
            limit = max(limit, self.batches[fetch_offset])
        whole: list[int] = []
        total = 0
        for size in islice(self.batches, fetch_offset, None):
            if total + size > limit:
                if not whole and version >= 3:
                    return 0, [], 0
                return limit, whole, size if limit > total else 0
            whole.append(size)
            total += size
        return total, whole, 0


@dataclass
class Leader:
    """What a leader holds, by topic and partition."""

    logs: dict[tuple[bytes, int], Log] = field(default_factory=dict)

    def answer(self, request: FetchRequest) -> list[ScannedTopic]:
        """The answer as a scanner sees it; at once, whether or not there is data."""
        version = request.header.api_version
        left = request.max_bytes
        at_least_one = True
        topics: list[ScannedTopic] = []
        for name, entries, stride, _ in request.topics:
            headers = b""
            records: list[RecordsSeen] = []
            for partition, fetch_offset, max_bytes in FETCH_VERSIONS[version].requested(stride).iter_unpack(entries):
                log = self.logs[name, partition]
                if log.error_code:
                    headers += RESPONSE_ENTRY.pack(partition, log.error_code, -1, 0)
                    continue
                size, whole, cut = log.read(fetch_offset, min(max_bytes, left), at_least_one, version)
                headers += RESPONSE_ENTRY.pack(partition, 0, log.visible_high_watermark, size)
                if size:
                    at_least_one = False
                    left = max(0, left - size)
                    tail = size - sum(whole)
                    records.append(
                        RecordsSeen(
                            partition=partition,
                            size=size,
                            complete_bytes=sum(whole),
                            batches=len(whole),
                            cut_bytes=tail,
                            smallest=min(whole, default=0),
                            largest=max(whole, default=0),
                            next_batch_size=cut if tail >= 12 else 0,
                        )
                    )
            topics.append(ScannedTopic(name, headers, records))
        return topics


@dataclass
class Follower:
    """A follower's fetch offsets, in its own order: what returned data moves to the end, as Kafka's fetcher does."""

    offsets: dict[tuple[bytes, int], int]
    replica_id: int = 2
    version: int = 3
    correlation_id: int = 0
    received: list[tuple[float, int]] = field(default_factory=list)  # (time, whole batches' bytes)
    partition_max_bytes: int = PARTITION_MAX_BYTES

    def request(self, max_wait_ms: int = MAX_WAIT_MS) -> FetchRequest:
        self.correlation_id += 1
        topics: list[RequestTopic] = []
        for (name, partition), offset in self.offsets.items():
            entry = requested_partition(self.version, partition, offset, self.partition_max_bytes)
            if topics and topics[-1].name == name:
                topics[-1] = RequestTopic(name, topics[-1].entries + entry, len(entry))
            else:
                topics.append(RequestTopic(name, entry, len(entry)))
        header = RequestHeader(FETCH, self.version, self.correlation_id, b"follower")
        max_bytes = RESPONSE_MAX_BYTES if self.version >= 3 else 2**31 - 1
        return FetchRequest(header, self.replica_id, max_wait_ms, 1, max_bytes, topics)

    def take(self, topics: list[ScannedTopic], now: float) -> int:
        """Append what came; returns the bytes kept."""
        kept = 0
        for name, _, records, _ in topics:
            for seen in records:
                self.offsets[name, seen.partition] = self.offsets.pop((name, seen.partition)) + seen.batches
                kept += seen.complete_bytes
        if kept:
            self.received.append((now, kept))
        return kept


def wait_for_bytes(clock: MovedClock, request: FetchRequest, topics: list[ScannedTopic]) -> None:
    """With fewer bytes than min_bytes an answer comes when max_wait_ms is over."""
    if sum(seen.size for topic in topics for seen in topic.records) < request.min_bytes:
        clock.move(request.max_wait_ms / 1000)


@dataclass
class NextHop:
    """A leader behind a sidecar of its own, with a round trip between the two."""

    clock: MovedClock
    link: ReplicaLink
    leader: Leader
    round_trip: float = 0.004
    fetches: int = 0

    def answer(self, request: FetchRequest) -> list[ScannedTopic]:
        """What the leader's sidecar passes back; its made-up entries, which show nothing new, are not part of it."""
        self.fetches += 1
        asked_at = self.clock.now
        decision = self.link.plan(request)
        while isinstance(decision, Hold):
            self.clock.now = max(decision.until, self.clock.now + 0.0005)
            decision = self.link.plan(request, self.clock.now - asked_at)
        if isinstance(decision, Answer):
            return []
        topics = self.leader.answer(decision.request)
        self.clock.move(self.round_trip)
        wait_for_bytes(self.clock, decision.request, topics)
        topics = take_out(topics, decision)
        self.link.settle(topics)
        return passed(topics)


@dataclass
class Conversation:
    """One follower's fetches of one leader through one link, with a round trip's time for each."""

    clock: MovedClock
    link: ReplicaLink
    leader: Leader
    follower: Follower
    round_trip: float = 0.004
    next_hop: NextHop | None = None  # between the link and the leader
    forwarded: list[Forward] = field(default_factory=list)
    fetches: int = 0

    def next_decision(self) -> Decision:
        """The follower asks, holds pass; returns the first decision that is not a hold."""
        request = self.follower.request()
        self.fetches += 1
        asked_at = self.clock.now
        decision = self.link.plan(request)
        while isinstance(decision, Hold):
            assert decision.until > self.clock.now or self.clock.now == asked_at, "a hold that does not wait spins"
            self.clock.now = max(decision.until, self.clock.now + 0.0005)
            decision = self.link.plan(request, self.clock.now - asked_at)
        return decision

    def exchange(self) -> Decision:
        """One fetch with its answer, taken in by the follower."""
        decision = self.next_decision()
        if isinstance(decision, Forward):
            self.forwarded.append(decision)
            topics = (self.next_hop or self.leader).answer(decision.request)
            self.clock.move(self.round_trip)
            if self.next_hop is None:
                wait_for_bytes(self.clock, decision.request, topics)
            topics = take_out(topics, decision)
            self.link.settle(topics)
            self.follower.take(passed(topics), self.clock.now)
        else:
            assert isinstance(decision, Answer)
            self.clock.move(self.round_trip / 4)
        return decision

    def run(self, seconds: float) -> None:
        """Exchange until `seconds` have passed."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.exchange()


def mean_rate(received: list[tuple[float, int]], start: float, end: float) -> float:
    """Bytes/s kept between two times."""
    return sum(size for at, size in received if start < at <= end) / (end - start)


def worst_second(received: list[tuple[float, int]]) -> int:
    """The most bytes kept in any sliding second, its first end included."""
    return max(
        (sum(size for other, size in received if at - 1.0 < other <= at) for at, _ in received),
        default=0,
    )
