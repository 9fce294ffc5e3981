"""Followers and leaders that speak in fetch sessions, made of plain data and Kafka's own rules.

`SessionLeader` follows FetchSession.scala and FetchManager (KIP-227), `SessionFollower` FetchSessionHandler.java: both
refuse what the real ones would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tests.fakes.clock import MovedClock
from tests.fakes.conversation import (
    MAX_WAIT_MS,
    PARTITION_MAX_BYTES,
    RESPONSE_MAX_BYTES,
    Leader,
    requested_partition,
    wait_for_bytes,
)
from tests.fakes.leader_sessions import Key, LeaderSessions
from tests.fakes.take_out import passed, take_out
from tests.quota.model.wire import scan, scan_appended
from weir.protocol.fetch_request import FetchRequest, ForgottenTopic
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ResponseHead, ScannedTopic
from weir.quota.fetch.decisions import Decision, Forward, Hold
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
    slots: int = 1000
    fetches: int = 0
    round_trip: float = 0.004

    def __post_init__(self) -> None:
        self.sessions = LeaderSessions(self.slots)

    @property
    def full_fetches(self) -> int:
        return self.sessions.full_fetches

    def respond(self, request: FetchRequest) -> Response:
        self.fetches += 1
        session, session_id, error_code = self.sessions.of(request)
        self.clock.move(self.round_trip)
        if session is None:
            return ResponseHead(error_code=error_code), []
        is_full = request.session_epoch in (0, -1)
        blocks = [
            RequestTopic(name, cached.entry, len(cached.entry)) for (name, _), cached in session.partitions.items()
        ]
        topics: dict[bytes, ScannedTopic] = {}
        for name, headers, records, _ in self.leader.answer(request.with_(topics=blocks)):
            partition, error_code, high_watermark, _ = RESPONSE_ENTRY.unpack(headers)
            cached = session.partitions[name, partition]
            is_news = bool(records) or error_code or high_watermark != cached.high_watermark
            cached.high_watermark = -1 if error_code else high_watermark
            if records:
                session.partitions[name, partition] = session.partitions.pop((name, partition))
            if is_full or is_news:
                before = topics.get(name, ScannedTopic(name, b"", []))
                topics[name] = ScannedTopic(name, before.headers + headers, before.records + records)
        answered = list(topics.values())
        wait_for_bytes(self.clock, request, answered)
        return ResponseHead(session_id=session_id), answered


@dataclass
class Hop:
    """A sidecar before `upstream`."""

    clock: MovedClock
    link: ReplicaLink
    upstream: Upstream
    decisions: list[Decision] = field(default_factory=list)

    def respond(self, request: FetchRequest) -> Response:
        asked_at = self.clock.now
        decision = self.link.plan(request)
        while isinstance(decision, Hold):
            assert decision.until > self.clock.now, "a hold that does not wait spins"
            self.clock.now = max(decision.until, self.clock.now + 0.0005)
            decision = self.link.plan(request, self.clock.now - asked_at)
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
class SessionFollower:
    """A follower's fetcher: `offsets` are what it wants, `sent` is what its session has."""

    clock: MovedClock
    upstream: Upstream
    offsets: dict[Key, int]
    version: int = 7
    replica_id: int = 2
    leader_epochs: dict[Key, int] = field(default_factory=dict)
    max_bytes: int = PARTITION_MAX_BYTES
    session_id: int = 0
    epoch: int = 0
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
        changed = {key: entry for key, entry in wanted.items() if self.epoch == 0 or self.sent.get(key) != entry}
        forgotten = [key for key in self.sent if key not in wanted] if self.epoch else []
        self.full_fetches += self.epoch == 0
        self.sent = wanted
        self.correlation_id += 1
        header = RequestHeader(FETCH, self.version, self.correlation_id, b"follower")
        return FetchRequest(
            header,
            self.replica_id,
            MAX_WAIT_MS,
            1,
            RESPONSE_MAX_BYTES,
            [RequestTopic(name, entry, len(entry)) for (name, _), entry in changed.items()],
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten=tuple(ForgottenTopic(name, (partition,)) for name, partition in forgotten),
        )

    def fetch(self) -> Response:
        """One fetch, and what it brings appended."""
        self.fetches += 1
        request = self.request()
        head, topics = self.upstream.respond(request)
        if self._take_session(head, topics, is_full=request.session_epoch == 0):
            kept = 0
            for name, _, records, _ in topics:
                for seen in records:
                    if (name, seen.partition) in self.offsets:
                        self.offsets[name, seen.partition] += seen.batches
                        kept += seen.complete_bytes
            if kept:
                self.received.append((self.clock.now, kept))
        return head, topics

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            before = self.clock.now
            self.fetch()
            if self.clock.now == before:
                self.clock.move(0.0005)

    def _take_session(self, head: ResponseHead, topics: list[ScannedTopic], is_full: bool) -> bool:
        if head.error_code:
            self.errors.append(head.error_code)
            self.epoch = 0
            self.session_id = 0 if head.error_code == 70 else self.session_id
            return False
        answered = {(topic.name, p) for topic in topics for p, *_ in RESPONSE_ENTRY.iter_unpack(topic.headers)}
        if (is_full and answered != set(self.sent)) or not answered <= set(self.sent):
            self.refused.append(f"{'full' if is_full else 'incremental'} response with {sorted(answered)}")
            self.session_id, self.epoch = (self.session_id if not is_full else 0), 0
            return False
        if is_full:
            self.session_id, self.epoch = head.session_id, (1 if head.session_id else 0)
        elif head.session_id == 0:
            self.session_id = self.epoch = 0
        else:
            self.epoch += 1
        return True
