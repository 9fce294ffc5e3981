# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions as a leader keeps them: FetchSession.scala and FetchManager of Kafka (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterator

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_session import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
)
from weir.protocol.fetch_versions import FETCH_VERSIONS

FIRST_WITH_SESSIONS = 7

Key = tuple[bytes, int]
"""A topic's name, from v13 on its id, and a partition."""


class CachedPartition:
    """A partition in a session, as asked for last, and the high watermark that was sent last."""

    __slots__ = ("entry", "high_watermark", "max_bytes", "offset")

    def __init__(self, entry: bytes, offset: int, max_bytes: int) -> None:
        self.ask(entry, offset, max_bytes)
        self.high_watermark = -1

    def ask(self, entry: bytes, offset: int, max_bytes: int) -> None:
        """Take over what a request has of it; `entry` is that as bytes."""
        self.entry = entry
        self.offset = offset
        self.max_bytes = max_bytes


class LeaderSession:
    """One session; `partitions` in the order in which they are read."""

    __slots__ = ("epoch", "partitions", "uses_topic_ids")

    def __init__(self, uses_topic_ids: bool) -> None:
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.partitions: dict[Key, CachedPartition] = {}

    def update(self, request: FetchRequest) -> None:
        """Take over what a request lists and forgets."""
        for key, entry, offset, max_bytes in listed(request):
            if (cached := self.partitions.get(key)) is None:
                self.partitions[key] = CachedPartition(entry, offset, max_bytes)
            else:
                cached.ask(entry, offset, max_bytes)
        for name, ids, _ in request.forgotten:
            for partition in ids:
                self.partitions.pop((name, partition), None)


class LeaderSessions(dict[int, LeaderSession]):
    """A broker's sessions by id, at most `slots` of them. `full_fetches` counts those that it was sent."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.full_fetches = 0
        self._slots = slots
        self._last_id = 0

    def of(self, request: FetchRequest) -> tuple[LeaderSession | None, int, int]:
        """Return the session that a request is read in, the id that its answer has, and an error code.

        A full fetch is read in a session that has the id 0 where none is kept.
        """
        row = FETCH_VERSIONS[request.header.api_version]
        if request.session_epoch in (0, -1):
            self.full_fetches += 1
            self.pop(request.session_id, None)
            session, session_id = LeaderSession(row.names_topics_by_id), 0
            session.update(request)
            if request.session_epoch == 0 and session.partitions and len(self) < self._slots:
                session_id = self._last_id = self._last_id + 1
                self[session_id] = session
            return session, session_id, 0
        found = self.get(request.session_id)
        if found is None:
            return None, 0, FETCH_SESSION_ID_NOT_FOUND
        if found.epoch != request.session_epoch:
            return None, 0, INVALID_FETCH_SESSION_EPOCH
        if found.uses_topic_ids != row.names_topics_by_id:
            return None, 0, FETCH_SESSION_TOPIC_ID_ERROR
        found.epoch += 1
        found.update(request)
        if not found.partitions:
            del self[request.session_id]
            return found, 0, 0
        return found, request.session_id, 0


def listed(request: FetchRequest) -> Iterator[tuple[Key, bytes, int, int]]:
    """Yield each partition that a request lists: its key, its bytes, fetch offset and partition_max_bytes."""
    row = FETCH_VERSIONS[request.header.api_version]
    for name, entries, stride, _ in request.topics:
        at = 0
        for partition, offset, max_bytes in row.requested(stride).iter_unpack(entries):
            yield (name, partition), entries[at : at + stride], offset, max_bytes
            at += stride
