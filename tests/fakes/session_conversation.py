# SPDX-License-Identifier: Apache-2.0
"""Followers and leaders that speak in fetch sessions, made of plain data and Kafka's own rules.

`SessionLeader` follows FetchSession.scala and FetchManager (KIP-227), `SessionFollower` FetchSessionHandler.java: both
refuse what the real ones would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tests.fakes.clock import MovedClock
from tests.fakes.kafka.fetcher_session import BACKOFF_SECONDS, FetcherSession, answered_partitions
from tests.fakes.kafka.leader import Fetch, Leader
from tests.fakes.kafka.sessions import Key, LeaderSessions
from tests.fakes.kafka.take_out import passed, take_out
from tests.fakes.kafka.wire import (
    PARTITION_MAX_BYTES,
    replica_fetch,
    request_topics,
    requested_partition,
    scan,
    scan_appended,
)
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.quota.fetch.decisions import Answer, Decision, Forward, Hold
from weir.quota.fetch.link import ReplicaLink

Response = tuple[ResponseHead, list[ScannedTopic]]


class Upstream(Protocol):
    """A leader, or a sidecar in front of one."""

    def respond(self, request: FetchRequest) -> Response:
        """Answer a request, while the clock moves."""


@dataclass
class SessionLeader:
    """A broker with sessions. `full_fetches` counts those it was sent."""

    clock: MovedClock
    leader: Leader
    slots: int | None = None  # of sessions, where they matter
    fetches: int = 0
    round_trip: float = 0.004

    def __post_init__(self) -> None:
        if self.slots is not None:
            self.leader.sessions = LeaderSessions(self.slots)

    @property
    def sessions(self) -> LeaderSessions:
        return self.leader.sessions

    @property
    def full_fetches(self) -> int:
        return self.sessions.full_fetches

    def respond(self, request: FetchRequest) -> Response:
        """Answer a round trip later; where a fetch waits for more bytes, after max_wait_ms."""
        self.fetches += 1
        self.clock.move(self.round_trip)
        leader, fetch = self.leader, Fetch(request, self.sessions)
        leader.shrink_isrs(self.clock.now)
        leader.read(fetch, self.clock.now)
        if leader.waits(fetch):
            self.clock.move(request.max_wait_ms / 1000)
            leader.read(fetch, self.clock.now)
        response = leader.response(fetch)
        return response.head, response.topics


def planned(clock: MovedClock, link: ReplicaLink, request: FetchRequest) -> Answer | Forward:
    """What is decided of a request at last. While it is held, the clock moves."""
    asked_at = clock.now
    decision = link.plan(request)
    while isinstance(decision, Hold):
        assert decision.until > clock.now, "a hold that does not wait spins"
        clock.now = max(decision.until, clock.now + 0.0005)
        decision = link.plan(request, clock.now - asked_at)
    return decision


@dataclass
class Hop:
    """A sidecar before `upstream`."""

    clock: MovedClock
    link: ReplicaLink
    upstream: Upstream
    decisions: list[Decision] = field(default_factory=list)

    def respond(self, request: FetchRequest) -> Response:
        decision = planned(self.clock, self.link, request)
        self.decisions.append(decision)
        if not isinstance(decision, Forward):
            return scan(request.header.api_version, decision.frame)
        is_full = request.session_epoch in (0, -1)
        assert is_full or not decision.expected.appended, "an incremental answer makes nothing up"
        head, answered = self.upstream.respond(decision.request)
        topics = take_out(answered, decision)
        self.link.settle(topics, head)
        patched = head if decision.expected.head_patch is None else decision.expected.head_patch(head)
        return patched, passed(topics) + appended_topics(decision)


def appended_topics(decision: Forward) -> list[ScannedTopic]:
    """The topics that a sidecar made up, as the follower sees them."""
    version = decision.request.header.api_version
    return scan_appended(version, *decision.expected[:2]) if decision.expected.appended else []


@dataclass
class SessionFollower(FetcherSession):
    """A follower's fetcher, below v7 without a session: `offsets` are what it wants, what returned data at the end.

    `sent` is what it asked of each when it asked last.
    """

    clock: MovedClock
    upstream: Upstream
    offsets: dict[Key, int]
    version: int = 7
    replica_id: int = 2
    leader_epochs: dict[Key, int] = field(default_factory=dict)
    max_bytes: int = PARTITION_MAX_BYTES
    sent: dict[Key, bytes] = field(default_factory=dict)
    correlation_id: int = 0
    full_fetches: int = 0
    errors: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    received: list[tuple[float, int]] = field(default_factory=list)
    fetches: int = 0

    def entry(self, key: Key) -> bytes:
        """What this follower asks of a partition now."""
        return requested_partition(
            self.version, key[1], self.offsets[key], self.max_bytes, self.leader_epochs.get(key, 0)
        )

    def request(self) -> FetchRequest:
        """The next fetch: full, or what changed since the last."""
        wanted = {key: self.entry(key) for key in self.offsets}
        changed = [key for key, entry in wanted.items() if self.sent.get(key) != entry]
        listed, forgotten = self.next_fetch(wanted, changed)
        self.full_fetches += self.is_full
        self.sent = wanted
        self.correlation_id += 1
        return replica_fetch(
            self.version,
            request_topics((key, wanted[key]) for key in listed),
            replica_id=self.replica_id,
            correlation_id=self.correlation_id,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten=forgotten,
        )

    def fetch(self) -> Response:
        """One fetch, and what it brings appended."""
        self.fetches += 1
        head, topics = self.upstream.respond(self.request())
        if self.take_head(head, topics):
            kept = 0
            for name, _, records, _ in topics:
                for seen in records:
                    if (name, seen.partition) in self.offsets:
                        self.offsets[name, seen.partition] = self.offsets.pop((name, seen.partition)) + seen.batches
                        kept += seen.complete_bytes
            if kept:
                self.received.append((self.clock.now, kept))
        self.errors += [head.error_code] if head.error_code else []
        self.refused += [self.complaint] if self.complaint else []
        return head, topics

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            before = self.clock.now
            _, topics = self.fetch()
            if {key for key, error_code in answered_partitions(topics) if error_code} >= self.offsets.keys():
                self.clock.move(BACKOFF_SECONDS)  # nothing is left to ask for
            if self.clock.now == before:
                self.clock.move(0.0005)
