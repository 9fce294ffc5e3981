# SPDX-License-Identifier: Apache-2.0
"""A follower and a leader made of plain data: a throttle between them can be watched event by event.

What the leader answers is Kafka's rule: see tests/fakes/kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fakes.clock import MovedClock
from tests.fakes.kafka.leader import Leader
from tests.fakes.kafka.logs import Log
from tests.fakes.kafka.take_out import passed, take_out
from tests.fakes.kafka.wire import (
    MAX_WAIT_MS,
    PARTITION_MAX_BYTES,
    RESPONSE_MAX_BYTES,
    replica_fetch,
    request_topics,
    requested_partition,
)
from tests.fakes.session_conversation import Hop, SessionLeader, planned
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.response_scanner import ScannedTopic
from weir.quota.fetch.decisions import Answer, Forward
from weir.quota.fetch.link import ReplicaLink

__all__ = [
    "MAX_WAIT_MS",
    "PARTITION_MAX_BYTES",
    "RESPONSE_MAX_BYTES",
    "Conversation",
    "Follower",
    "Leader",
    "Log",
    "mean_rate",
    "requested",
    "requested_partition",
    "worst_second",
]


def requested(request: FetchRequest) -> dict[tuple[bytes, int], tuple[int, int]]:
    """(fetch_offset, partition_max_bytes) of each partition that a request asks for, in its order."""
    row = FETCH_VERSIONS[request.header.api_version]
    return {
        (name, partition): (fetch_offset, max_bytes)
        for name, entries, stride, _ in request.topics
        for partition, fetch_offset, max_bytes in row.requested(stride).iter_unpack(entries)
    }


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
        entries = [
            (key, requested_partition(self.version, key[1], offset, self.partition_max_bytes))
            for key, offset in self.offsets.items()
        ]
        return replica_fetch(
            self.version,
            request_topics(entries),
            replica_id=self.replica_id,
            correlation_id=self.correlation_id,
            max_wait_ms=max_wait_ms,
        )

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


@dataclass
class Conversation:
    """One follower's fetches of one leader through one link, with a round trip's time for each."""

    clock: MovedClock
    link: ReplicaLink
    leader: Leader
    follower: Follower
    round_trip: float = 0.004
    next_hop: Hop | None = None  # between the link and the leader
    forwarded: list[Forward] = field(default_factory=list)
    fetches: int = 0

    def __post_init__(self) -> None:
        self.upstream = self.next_hop or SessionLeader(self.clock, self.leader, round_trip=0.0)

    def next_decision(self) -> Answer | Forward:
        """The follower asks, holds pass; returns the first decision that is not a hold."""
        self.fetches += 1
        return planned(self.clock, self.link, self.follower.request())

    def exchange(self) -> Answer | Forward:
        """One fetch with its answer, taken in by the follower."""
        decision = self.next_decision()
        if isinstance(decision, Forward):
            self.forwarded.append(decision)
            self.clock.move(self.round_trip)
            _, topics = self.upstream.respond(decision.request)
            topics = take_out(topics, decision)
            is_lent = self.link.is_lent
            self.link.settle(topics)
            parts = self._pass(passed(topics)) if is_lent else []
            if self.follower.take(passed(topics), self.clock.now) and parts:
                self.follower.received[-1:] = parts
        else:
            self.clock.move(self.round_trip / 4)
        return decision

    def _pass(self, topics: list[ScannedTopic]) -> list[tuple[float, int]]:
        """Let a late answer pass as there is room for it, as the relay does. Returns when how many bytes arrived."""
        left = sum([seen.size for _, _, records, _ in topics for seen in records])
        parts: list[tuple[float, int]] = []
        arrived, waited = 0, 0.0
        while left:
            arrived = int(self.link.let_pass(arrived, 0, left, waited))
            left -= arrived
            if arrived:
                parts.append((self.clock.now, arrived))
            waited = 0.0 if arrived else waited + 0.01
            self.clock.move(0.001 if arrived else 0.01)
        return parts

    def run(self, seconds: float) -> None:
        """Exchange until `seconds` have passed."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.exchange()


def mean_rate(received: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Bytes/s kept between two times."""
    return sum(size for at, size in received if start < at <= end) / (end - start)


def worst_second(received: Sequence[tuple[float, float]]) -> float:
    """The most bytes kept in any sliding second, its first end included."""
    received = sorted(received)
    worst: float = 0
    total: float = 0
    first = 0
    for at, size in received:
        total += size
        while received[first][0] <= at - 1.0:
            total -= received[first][1]
            first += 1
        worst = max(worst, total)
    return worst
