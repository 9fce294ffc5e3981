# SPDX-License-Identifier: Apache-2.0
"""How a leader answers a Fetch: Kafka's ReplicaManager, FetchManager (KIP-227) and DelayedFetch."""

from __future__ import annotations

from tests.fakes.kafka.logs import FIRST_WITH_WHOLE_BATCHES, Log
from tests.fakes.kafka.sessions import FIRST_WITH_SESSIONS, CachedPartition, Key, LeaderSessions, listed
from tests.fakes.kafka.wire import Response
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.metadata import UNKNOWN_TOPIC_OR_PARTITION
from weir.protocol.records import RecordsSeen
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ResponseHead, ScannedTopic

OFFSET_OUT_OF_RANGE = 1

_Read = tuple[Key, int, int, RecordsSeen | None, int]
"""A partition, its error code, high watermark and records, and the offset of the first of these."""


class Fetch:
    """A request that a leader took, with what it read for it last.

    `wanted` is what its session has, or what it lists, where there is none; `size` the bytes of all records.
    """

    __slots__ = ("error_code", "has_error", "is_full", "reads", "request", "session_id", "size", "wanted")

    def __init__(self, request: FetchRequest, sessions: LeaderSessions) -> None:
        self.request = request
        self.session_id = self.error_code = 0
        self.is_full = True
        self.reads: list[_Read] = []
        self.size = 0
        self.has_error = False
        self.wanted: dict[Key, CachedPartition] = {}
        if request.header.api_version >= FIRST_WITH_SESSIONS:
            session, self.session_id, self.error_code = sessions.of(request)
            self.is_full = request.session_epoch in (0, -1)
            if session is not None:
                self.wanted = session.partitions
        else:
            self.wanted = {key: CachedPartition(entry, offset, size) for key, entry, offset, size in listed(request)}


class Leader:
    """One broker: the partitions that it leads, and at most `slots` sessions of followers."""

    def __init__(self, logs: dict[Key, Log] | None = None, slots: int = 1000) -> None:
        self.logs: dict[Key, Log] = {} if logs is None else logs
        self.sessions = LeaderSessions(slots)
        self._seen_at = 0.0  # when its ISRs were looked at

    def answer(self, request: FetchRequest, now: float | None = None) -> list[ScannedTopic]:
        """The topics of an answer as a scanner sees them; at once, whether or not there is data."""
        self.shrink_isrs(self._seen_at if now is None else now)
        fetch = Fetch(request, self.sessions)
        self.read(fetch, self._seen_at)
        return self.response(fetch).topics

    def shrink_isrs(self, now: float) -> None:
        """ReplicaManager.maybeShrinkIsr, which brokers call every few seconds."""
        self._seen_at = now
        for log in self.logs.values():
            log.shrink_isr(now)

    def read(self, fetch: Fetch, now: float) -> None:
        """ReplicaManager.readFromLog: partitions in their order, and what that tells of the follower."""
        request, logs = fetch.request, self.logs
        version, replica = request.header.api_version, request.replica_id
        left, total, at_least_one = request.max_bytes, 0, version >= FIRST_WITH_WHOLE_BATCHES
        reads = fetch.reads = []
        fetch.has_error = False
        for key, cached in fetch.wanted.items():
            log = logs.get(key)
            offset = cached.offset
            error_code = UNKNOWN_TOPIC_OR_PARTITION if log is None else log.error_code
            if log is not None and not error_code and not 0 <= offset <= log.end:
                error_code = OFFSET_OUT_OF_RANGE
            if error_code or log is None:
                fetch.has_error = True
                reads.append((key, error_code, -1, None, offset))
                continue
            told = log.high_watermark if log.told_high_watermark is None else log.told_high_watermark
            log.fetched(replica, offset, now)
            max_bytes = cached.max_bytes
            seen = log.read(key[1], offset, max_bytes if max_bytes < left else left, at_least_one, version)
            if seen is not None:
                at_least_one = False
                left = max(0, left - seen.size)
                total += seen.size
            reads.append((key, 0, told, seen, offset))
        fetch.size = total

    def waits(self, fetch: Fetch) -> bool:
        """Whether a fetch that was read waits for more, until max_wait_ms are over."""
        request = fetch.request
        return not (
            request.max_wait_ms <= 0
            or not fetch.wanted
            or fetch.has_error
            or fetch.size >= request.min_bytes
            or self.is_enough(fetch)
        )

    def is_enough(self, fetch: Fetch) -> bool:
        """DelayedFetch.tryComplete: what is there, each partition up to its cap."""
        missing = fetch.request.min_bytes
        for key, cached in fetch.wanted.items():
            log = self.logs.get(key)
            if log is None:
                return True
            ends = log.ends
            if cached.offset < len(ends) - 1 and not log.is_throttled:
                missing -= min(ends[-1] - ends[cached.offset], cached.max_bytes)
                if missing <= 0:
                    return True
        return False

    def response(self, fetch: Fetch) -> Response:
        """The answer that has what was read; in a session that was there before, only what is new of it."""
        if fetch.error_code:
            return Response(ResponseHead(error_code=fetch.error_code), [], {}, 0)
        if fetch.request.header.api_version >= FIRST_WITH_SESSIONS:
            fetch.reads = _news(fetch)
        topics: list[ScannedTopic] = []
        bases: dict[Key, int] = {}
        name, headers, records = b"", b"", list[RecordsSeen]()
        for key, error_code, high_watermark, seen, offset in fetch.reads:
            if key[0] != name:
                if headers:
                    topics.append(ScannedTopic(name, headers, records))
                name, headers, records = key[0], b"", []
            headers += RESPONSE_ENTRY.pack(key[1], error_code, high_watermark, 0 if seen is None else seen.size)
            if seen is not None:
                records.append(seen)
                bases[key] = offset
        if headers:
            topics.append(ScannedTopic(name, headers, records))
        return Response(ResponseHead(session_id=fetch.session_id), topics, bases, fetch.size)


def _news(fetch: Fetch) -> list[_Read]:
    """What an answer holds, of a session what is new; and partitions with data go to the session's end."""
    news: list[_Read] = []
    wanted = fetch.wanted
    for read in fetch.reads:
        key, error_code, high_watermark, seen, _ = read
        cached = wanted.get(key)
        if cached is None:
            continue
        if fetch.is_full or seen is not None or error_code or high_watermark != cached.high_watermark:
            news.append(read)
        cached.high_watermark = -1 if error_code else high_watermark
        if seen is not None and fetch.session_id:
            wanted[key] = wanted.pop(key)
    return news
