# SPDX-License-Identifier: Apache-2.0
"""Requests and answers: the real messages, and what each answer's records are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from itertools import groupby

from tests.fakes.kafka.logs import FIRST_WITH_WHOLE_BATCHES
from tests.fakes.kafka.sessions import FIRST_WITH_SESSIONS, Key
from weir.protocol.fetch_request import FetchRequest, ForgottenTopic, replica_state_tags
from weir.protocol.fetch_response import encode_fetch_response
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, SIZE, RequestHeader
from weir.protocol.records import RecordsSeen
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_scanner import Expected, FetchResponseScanner, ResponseHead, ScannedTopic

PARTITION_MAX_BYTES = 1024 * 1024
RESPONSE_MAX_BYTES = 10 * 1024 * 1024
MAX_WAIT_MS = 500


class Response:
    """An answer on its way. `bases` has the offset of the first record of each partition that has any."""

    __slots__ = ("bases", "head", "size", "topics")

    def __init__(self, head: ResponseHead, topics: list[ScannedTopic], bases: dict[Key, int], size: int) -> None:
        self.head = head
        self.topics = topics
        self.bases = bases
        self.size = size  # of all records

    def appended(self, head: ResponseHead, topics: list[ScannedTopic]) -> Response:
        """The same under another head, with more topics."""
        return Response(head, self.topics + topics, self.bases, self.size)


def seen_by_scanner(topics: list[ScannedTopic], walk: Container[bytes]) -> list[ScannedTopic]:
    """`topics` as a scanner that walks only some of them sees them."""
    if all(not topic.records or topic.name in walk for topic in topics):
        return topics
    return [
        topic
        if not topic.records or topic.name in walk
        else topic._replace(records=[RecordsSeen(one.partition, one.size, one.size) for one in topic.records])
        for topic in topics
    ]


@lru_cache(maxsize=4096)
def scan_appended(version: int, appended: bytes, count: int) -> list[ScannedTopic]:
    """Topics that a sidecar made up, as the next reader of the bytes sees them."""
    scanner = FetchResponseScanner(version, 7, Expected(appended, count))
    frame = encode_fetch_response(version, 7, 0, [])
    buffers, _ = scanner.receive(memoryview(frame))
    reader = FetchResponseScanner(version, 7)
    reader.receive(memoryview(b"".join(buffers)))
    assert reader.done
    return reader.topics


def scan(version: int, frame: bytes) -> tuple[ResponseHead, list[ScannedTopic]]:
    """What a whole frame says."""
    row = FETCH_VERSIONS[version]
    (correlation_id,) = SIZE.unpack_from(frame, SIZE.size)
    scanner = FetchResponseScanner(row.api_version, correlation_id)
    scanner.receive(memoryview(frame))
    assert scanner.done
    return scanner.head, scanner.topics


@lru_cache(maxsize=32)
def entry_packer(version: int) -> Callable[[int, int, int, int], bytes]:
    """Packs (partition, leader epoch, fetch offset, partition_max_bytes) of one requested partition.

    Each other field has a value of its own, to be told from what changed it.
    """
    row = FETCH_VERSIONS[version]
    layout, names = row.request_partition.layout, row.request_partition.names
    tail = b"\x00" if row.is_flexible else b""
    places = [
        ("partition", "current_leader_epoch", "fetch_offset", "partition_max_bytes").index(name)
        if name in ("partition", "current_leader_epoch", "fetch_offset", "partition_max_bytes")
        else 4
        for name in names
    ]

    def pack(partition: int, leader_epoch: int, fetch_offset: int, max_bytes: int) -> bytes:
        values = (partition, leader_epoch, fetch_offset, max_bytes, 1_000 + partition)
        return layout.pack(*[values[place] for place in places]) + tail

    return pack


def requested_partition(
    version: int, partition: int, fetch_offset: int, max_bytes: int, leader_epoch: int | None = None
) -> bytes:
    """One partition of a request; of the other fields each has a value of its own, to be told from what changed it."""
    epoch = 1_000 + partition if leader_epoch is None else leader_epoch
    return entry_packer(version)(partition, epoch, fetch_offset, max_bytes)


def request_topics(listed: Iterable[tuple[Key, bytes]]) -> list[RequestTopic]:
    """Partitions of a request, each with its bytes; those of one topic that follow each other are listed in one."""
    topics = []
    for name, of_topic in groupby(listed, lambda one: one[0][0]):
        entries = [entry for _, entry in of_topic]
        topics.append(RequestTopic(name, b"".join(entries), len(entries[0])))
    return topics


def replica_fetch(
    version: int,
    topics: list[RequestTopic],
    *,
    replica_id: int = 2,
    correlation_id: int = 1,
    max_wait_ms: int = MAX_WAIT_MS,
    max_bytes: int = RESPONSE_MAX_BYTES,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: tuple[ForgottenTopic, ...] = (),
) -> FetchRequest:
    """A follower's fetch. The default is one without a session."""
    return FetchRequest(
        RequestHeader(FETCH, version, correlation_id, b"follower"),
        replica_id,
        max_wait_ms,
        1,
        max_bytes if version >= FIRST_WITH_WHOLE_BATCHES else 2**31 - 1,
        topics,
        session_id=session_id if version >= FIRST_WITH_SESSIONS else 0,
        session_epoch=session_epoch if version >= FIRST_WITH_SESSIONS else -1,
        forgotten=forgotten,
        tags=replica_state_tags(replica_id, 1) if FETCH_VERSIONS[version].has_replica_state else b"",
    )
