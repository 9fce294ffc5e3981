"""A leader as Kafka's ReplicaManager, FetchManager (KIP-227) and DelayedFetch behave."""

from __future__ import annotations

from typing import Protocol

from tests.fakes.leader_sessions import CachedPartition, Key, LeaderSessions, listed
from tests.quota.model.logs import FIRST_WITH_WHOLE_BATCHES, Log
from tests.quota.model.wire import Response
from tests.quota.model.world import World
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.records import RecordsSeen
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import ResponseHead, ScannedTopic

FIRST_WITH_SESSIONS = 7
UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_OUT_OF_RANGE = 1


class Asker(Protocol):
    """Who is answered."""

    is_open: bool

    def answered(self, response: Response) -> None:
        """The leader sends this."""


_Read = tuple[Key, int, int, RecordsSeen | None, int]


class _Waiting:
    __slots__ = ("asker", "is_done", "is_full", "request", "session_id", "wanted")

    def __init__(
        self, asker: Asker, request: FetchRequest, wanted: dict[Key, CachedPartition], session_id: int, is_full: bool
    ) -> None:
        self.asker = asker
        self.request = request
        self.wanted = wanted
        self.session_id = session_id
        self.is_full = is_full
        self.is_done = False


class LeaderNode:
    """One broker that leads `logs`; it keeps at most `slots` sessions."""

    def __init__(self, world: World, broker_id: int, slots: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.logs: dict[Key, Log] = {}
        self.deleted: dict[Key, Log] = {}  # answers may be on their way that have records of them
        self.sessions = LeaderSessions(slots)
        self.latest = 0.0  # answers come up to so many seconds late
        self._answers = 0
        self._waiting: dict[_Waiting, None] = {}

    def next_lateness(self) -> float:
        """By how much the next answer is late."""
        self._answers += 1
        return self.latest * (self._answers * 7 % 13) / 13

    def append(self, log: Log, size: int) -> None:
        """A producer's batch: whoever waits for it is answered."""
        log.append(size, self.world.now)
        self._look_again(log.key)

    def fail(self, log: Log, error_code: int) -> None:
        """From now on `log` is answered so; 0 is no error."""
        log.error_code = error_code
        if error_code:
            self._look_again(log.key)

    def delete(self, key: Key) -> None:
        """The partition is here no more."""
        if (log := self.logs.pop(key, None)) is not None:
            self.deleted[key] = log
        self._look_again(key)

    def fetch(self, asker: Asker, request: FetchRequest) -> None:
        """Answer now, or when there is enough or the time is over."""
        version = request.header.api_version
        session_id, is_full = 0, True
        if version >= FIRST_WITH_SESSIONS:
            session, session_id, error_code = self.sessions.of(request)
            if session is None:
                asker.answered(Response(ResponseHead(error_code=error_code), [], {}, 0))
                return
            wanted, is_full = session.partitions, request.session_epoch in (0, -1)
        else:
            wanted = {key: CachedPartition(entry, offset, size) for key, entry, offset, size in listed(request)}
        waiting = _Waiting(asker, request, wanted, session_id, is_full)
        reads, size, has_error = self._read(waiting)
        if request.max_wait_ms <= 0 or not wanted or has_error or size >= request.min_bytes or self._is_enough(waiting):
            self._respond(waiting, reads, size)
        else:
            self._waiting[waiting] = None
            self.world.after(request.max_wait_ms / 1000, self._complete, waiting)

    def _look_again(self, key: Key) -> None:
        for waiting in [one for one in self._waiting if key in one.wanted]:
            log = self.logs.get(key)
            if log is None or log.error_code or self._is_enough(waiting):
                self._complete(waiting)

    def _complete(self, waiting: _Waiting) -> None:
        if self._waiting.pop(waiting, self) is None and waiting.asker.is_open:
            reads, size, _ = self._read(waiting)
            self._respond(waiting, reads, size)

    def _is_enough(self, waiting: _Waiting) -> bool:
        """DelayedFetch.tryComplete: what is there, each partition up to its cap."""
        missing = waiting.request.min_bytes
        for key, cached in waiting.wanted.items():
            log = self.logs.get(key)
            if log is None:
                return True
            ends = log.ends
            if cached.offset < len(ends) - 1:
                missing -= min(ends[-1] - ends[cached.offset], cached.max_bytes)
                if missing <= 0:
                    return True
        return False

    def _read(self, waiting: _Waiting) -> tuple[list[_Read], int, bool]:
        """ReplicaManager.readFromLog; then what it tells of the follower."""
        request, logs, now = waiting.request, self.logs, self.world.now
        version = request.header.api_version
        left, total, at_least_one = request.max_bytes, 0, version >= FIRST_WITH_WHOLE_BATCHES
        reads: list[_Read] = []
        has_error = False
        for key, cached in waiting.wanted.items():
            log = logs.get(key)
            offset = cached.offset
            error_code = UNKNOWN_TOPIC_OR_PARTITION if log is None else log.error_code
            if log is not None and not error_code and not 0 <= offset <= log.end:
                error_code = OFFSET_OUT_OF_RANGE
            if error_code or log is None:
                has_error = True
                reads.append((key, error_code, -1, None, offset))
                continue
            high_watermark = log.high_watermark
            log.fetched(request.replica_id, offset, now)
            max_bytes = cached.max_bytes
            seen = log.read(offset, max_bytes if max_bytes < left else left, at_least_one, version)
            if seen is not None:
                at_least_one = False
                left = max(0, left - seen.size)
                total += seen.size
            reads.append((key, 0, high_watermark, seen, offset))
        return reads, total, has_error

    def _respond(self, waiting: _Waiting, reads: list[_Read], size: int) -> None:
        version = waiting.request.header.api_version
        topics: list[ScannedTopic] = []
        bases: dict[Key, int] = {}
        if version >= FIRST_WITH_SESSIONS:
            reads = self._news(waiting, reads)
        name, headers, records = b"", b"", list[RecordsSeen]()
        for key, error_code, high_watermark, seen, offset in reads:
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
        waiting.asker.answered(Response(ResponseHead(session_id=waiting.session_id), topics, bases, size))

    def _news(self, waiting: _Waiting, reads: list[_Read]) -> list[_Read]:
        """What an answer holds, of a session what is new; and partitions with data go to the session's end."""
        news: list[_Read] = []
        wanted = waiting.wanted
        for read in reads:
            key, error_code, high_watermark, seen, _ = read
            cached = wanted.get(key)
            if cached is None:
                continue
            if waiting.is_full or seen is not None or error_code or high_watermark != cached.high_watermark:
                news.append(read)
            cached.high_watermark = -1 if error_code else high_watermark
            if seen is not None and waiting.session_id:
                wanted[key] = wanted.pop(key)
        return news
