# SPDX-License-Identifier: Apache-2.0
"""Followers, leaders and clients that cost next to nothing, so that the sidecar between them is what is measured.

Followers and leaders speak Fetch v3 to v18 as Kafka's do: partitions in their order, at least one whole batch from the
first one with data, fetch sessions from v7 on with an order of their own. An offset counts batches.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, encode_fetch_request, replica_state_tags
from weir.protocol.fetch_session import FIRST_SESSION_VERSION, INITIAL_EPOCH, next_epoch
from weir.protocol.fetch_versions import FetchVersion, fetch_version
from weir.protocol.header import FETCH, SIZE, RequestHeader
from weir.protocol.primitives import CLASSIC, COMPACT
from weir.protocol.request_topics import RequestTopic, write_name
from weir.protocol.response_scanner import ResponseHead, ScannedTopic

BATCH_BYTES = 10_000
PARTITION_MAX_BYTES = 2**20
MAX_WAIT_MS = 500  # replica.fetch.wait.max.ms
RESPONSE_MAX_BYTES = 10 * 2**20
FAR = 10**9
"""A high watermark that no fetch here reaches."""

DIRECTORY_ID = b"\x01\x00\x10" + bytes(range(16))
"""A tag buffer with a replica_directory_id, as Kafka 4 sends it in each requested partition from v17 on."""

Key = tuple[bytes, int]
"""Topic (from v13 on its id) and partition."""

Topics = list[tuple[bytes, list[bytes]]]
"""Of an answer: each with its partitions."""


def fetch_request(correlation_id: int, response_size: int) -> bytes:
    """A replica's Fetch v3 request whose response frame has `response_size` bytes in all."""
    row = fetch_version(3)
    records = response_size - len(answer_frame(row, 0, [(b"t", [answered(row, 0, 0, b"")])]))
    return request_frame(row, correlation_id, [RequestTopic(b"t", requested(row, 0, 7, records), row.partition_size)])


def keys_of(topics: int, partitions: int) -> list[Key]:
    """Partitions of topics whose names are as long as a topic id."""
    return [(b"topic-%010d" % topic, partition) for topic in range(topics) for partition in range(partitions)]


def batch_of(size: int) -> bytes:
    """A record batch (magic 2) of so many bytes, of which only the head is ever read."""
    return struct.pack(">qiib", 0, size - 12, 0, 2) + bytes(size - 17)


def requested(row: FetchVersion, partition: int, fetch_offset: int, max_bytes: int, tags: bytes = b"") -> bytes:
    """A partition of a request, without leader epochs."""
    values = {"partition": partition, "fetch_offset": fetch_offset, "log_start_offset": 0}
    values |= {"partition_max_bytes": max_bytes}
    packed = row.request_partition.layout.pack(*[values.get(name, -1) for name in row.request_partition.names])
    return packed + (COMPACT if row.is_flexible else CLASSIC).tags(tags)


def request_frame(
    row: FetchVersion,
    correlation_id: int,
    topics: list[RequestTopic],
    *,
    replica_id: int = 2,
    session: tuple[int, int] = (0, INITIAL_EPOCH),
    max_wait_ms: int = MAX_WAIT_MS,
) -> bytes:
    """A replica's Fetch request."""
    header = RequestHeader(FETCH, row.api_version, correlation_id, b"broker-2-fetcher-0")
    tags = replica_state_tags(replica_id, 5) if row.has_replica_state else b""
    id_, epoch = session
    request = FetchRequest(header, replica_id, max_wait_ms, 1, RESPONSE_MAX_BYTES, topics, 0, id_, epoch, tags=tags)
    return encode_fetch_request(request)


def answered(row: FetchVersion, partition: int, high_watermark: int, records: bytes) -> bytes:
    """A partition of an answer."""
    encoding = COMPACT if row.is_flexible else CLASSIC
    values = {"partition": partition, "error_code": 0, "log_start_offset": 0}
    names = row.response_partition.names
    parts = [row.response_partition.layout.pack(*[values.get(name, high_watermark) for name in names])]
    if row.has_aborted_transactions:
        parts.append(encoding.count(-1))
    if row.has_preferred_read_replica:
        parts.append(SIZE.pack(-1))
    return b"".join((*parts, encoding.count(len(records)), records, encoding.tags(b"")))


def add_partition(topics: Topics, name: bytes, partition: bytes) -> None:
    """Append a partition to an answer; a topic is named once for neighbours only, as Kafka's brokers do."""
    if not topics or topics[-1][0] != name:
        topics.append((name, []))
    topics[-1][1].append(partition)


def answer_frame(row: FetchVersion, correlation_id: int, topics: Topics, session_id: int = 0) -> bytes:
    """A leader's answer with these topics."""
    encoding = COMPACT if row.is_flexible else CLASSIC
    head = row.response_head.layout.pack(*[session_id * (name == "session_id") for name in row.response_head.names])
    parts = [b"", SIZE.pack(correlation_id), encoding.tags(b""), head, encoding.count(len(topics))]
    for name, partitions in topics:
        parts += (write_name(name, row), encoding.count(len(partitions)), *partitions, encoding.tags(b""))
    parts.append(encoding.tags(b""))
    parts[0] = SIZE.pack(sum(map(len, parts)))
    return b"".join(parts)


class Leader:
    """A leader's end of one connection.

    `behind` are partitions that have batches of `batch_bytes` without end (None: all); 0 are none, though more is told
    of. `active` ones have one of 1 KB for every fetch. All others have none, and end at the follower's offset.
    """

    def __init__(
        self, batch_bytes: int = BATCH_BYTES, behind: Collection[Key] | None = None, active: Collection[Key] = ()
    ) -> None:
        self._behind, self._active = behind, active
        self._batch_bytes = batch_bytes
        self._endless = batch_of(batch_bytes) * (1 + PARTITION_MAX_BYTES // batch_bytes) if batch_bytes else b""
        self._small = batch_of(1024)
        self._session: dict[Key, tuple[int, int]] = {}  # what is asked for from which offset on, and how many bytes
        self._session_id = 0
        self._told: set[Key] = set()
        """The partitions of the session that an answer has had."""
        self._ready: dict[Key, None] = {}
        """Those of the session that may have something to tell, in the order in which they are read."""

    def answer(self, frame: bytes) -> bytes:
        """Answer a request (without its size) at once."""
        request = decode_fetch_request(frame)
        row = fetch_version(request.header.api_version)
        listed = {
            (name, partition): (offset, max_bytes)
            for name, entries, stride, _ in request.topics
            for partition, offset, max_bytes in row.requested(stride).iter_unpack(entries)
        }
        is_incremental = row.api_version >= FIRST_SESSION_VERSION and request.session_epoch > INITIAL_EPOCH
        if is_incremental:
            for name, partitions, _ in request.forgotten:
                for partition in partitions:
                    self._session.pop((name, partition), None)
                    self._ready.pop((name, partition), None)
                    self._told.discard((name, partition))
            self._session.update(listed)
            self._ready.update(dict.fromkeys(listed))
        else:
            self._session = listed
            self._ready = dict.fromkeys(listed)
            self._told.clear()
            self._session_id += 1
        found = self._read(row, request.max_bytes)
        begins = is_incremental or request.session_epoch == INITIAL_EPOCH
        return answer_frame(row, request.header.correlation_id, found, self._session_id if begins else 0)

    def _read(self, row: FetchVersion, left: int) -> Topics:
        """The partitions of an answer with at most `left` bytes, or one batch."""
        found: Topics = []
        has_data = False
        for key in list(self._ready):
            offset, most = self._session[key]
            high_watermark, batch, records = FAR, self._batch_bytes, self._endless
            if self._behind is not None and key not in self._behind:
                records = self._small if key in self._active else b""
                high_watermark, batch = offset, len(records)
            size = min(most, left, len(records))
            if size < batch:
                size = 0 if has_data else batch
            if size:
                has_data = True
                left = max(0, left - size)
                self._ready[key] = self._ready.pop(key)  # behind the others
            elif not records:
                del self._ready[key]
            if size or key not in self._told:
                self._told.add(key)
                add_partition(found, key[0], answered(row, key[1], high_watermark, records[:size]))
        return found


class Follower:
    """A follower's fetches of these partitions. `moves`: what returned data goes to the end, as in Kafka's fetcher."""

    def __init__(
        self, version: int, keys: Iterable[Key], *, replica_id: int = 2, entry_tags: bytes = b"", moves: bool = True
    ) -> None:
        self._row = fetch_version(version)
        self.version = version
        self._replica_id = replica_id
        self._entry_tags = entry_tags
        self._moves = moves
        self._offsets = dict.fromkeys(keys, 0)
        self.topics = frozenset(name for name, _ in self._offsets)
        self._entries = {key: self._entry(key) for key in self._offsets}
        self._changed: list[Key] = []
        self._session = (0, INITIAL_EPOCH)
        self.correlation_id = 0

    def request(self, *, is_full: bool = False) -> bytes:
        """The next fetch's frame."""
        self.correlation_id += 1
        if is_full:
            self._session = (self._session[0], INITIAL_EPOCH)
        keys: Iterable[Key] = self._entries if self._session[1] == INITIAL_EPOCH else self._changed
        topics: list[RequestTopic] = []
        for name, neighbours in groupby(keys, itemgetter(0)):
            entries = [self._entries[key] for key in neighbours]
            topics.append(RequestTopic(name, b"".join(entries), len(entries[0])))
        return request_frame(self._row, self.correlation_id, topics, replica_id=self._replica_id, session=self._session)

    def take(self, topics: Sequence[ScannedTopic], head: ResponseHead) -> int:
        """Note an answer, so that the next fetch asks for what is behind its records. Returns their bytes."""
        self._changed = []
        size = 0
        for name, _, records, _ in topics:
            for seen in records:
                key = name, seen.partition
                size += seen.size
                self._offsets[key] += seen.batches or 1  # of a topic that is not throttled batches are not counted
                if self._moves:
                    del self._entries[key]
                self._entries[key] = self._entry(key)
                self._changed.append(key)
        begins = head.session_id and not head.error_code
        self._session = (head.session_id, next_epoch(self._session[1])) if begins else (0, INITIAL_EPOCH)
        return size

    def _entry(self, key: Key) -> bytes:
        return requested(self._row, key[1], self._offsets[key], PARTITION_MAX_BYTES, self._entry_tags)
