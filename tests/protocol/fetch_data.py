# SPDX-License-Identifier: Apache-2.0
"""Fetch responses for tests, written field by field, and what a scanner has to find in them, found the slow way."""

import struct
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from tests.protocol.wire import compact_string, string, tag_buffer, varint
from tests.protocol.wire import response as response_frame
from weir.protocol.fetch_request import FetchRequest
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_scanner import FetchResponseScanner, RecordsSeen, ScannedTopic

VERSIONS = tuple(range(19))
OLD_VERSIONS = (0, 1, 2, 3)

NO_TAGS = tag_buffer()
DIVERGING = (0, struct.pack(">iq", 3, 40) + NO_TAGS)
CURRENT_LEADER = (1, struct.pack(">ii", 1, 4) + NO_TAGS)
UNKNOWN_TAG = (300, b"?" * 129)

REQUEST_ENTRY = struct.Struct(">iqi")
"""A requested partition, v0 to v4: partition, fetch_offset, partition_max_bytes."""


class Partition(NamedTuple):
    """One partition of a response; records of None go out as null."""

    partition: int
    error_code: int
    high_watermark: int
    records: bytes | None
    transactions: int = -1
    """How many were aborted; -1 for null."""
    tags: tuple[tuple[int, bytes], ...] = ()
    log_start_offset: int = -1


Topics = Sequence[tuple[bytes, Sequence[Partition]]]


def batch(size: int, *, magic: int = 2, offset: int = 0) -> bytes:
    """A batch (magic 2) or message (0 and 1) of `size` bytes in all. Its magic stands where Kafka has it."""
    return struct.pack(">qiib", offset, size - 12, 0, magic) + b"\xee" * (size - 17)


def header(partition: Partition) -> bytes:
    """What a scanner keeps of a partition; up to v3 its header as on the wire."""
    size = -1 if partition.records is None else len(partition.records)
    return struct.pack(">ihqi", *partition[:3], size)


def with_ids(version: int, topics: Topics) -> Topics:
    """The same topics; in versions without names each has an id made of its name."""
    return [(name if version < 13 else name[:16].ljust(16, b"."), partitions) for name, partitions in topics]


def response(
    version: int,
    correlation_id: int,
    topics: Topics,
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    tags: bytes = NO_TAGS,
) -> bytes:
    """A whole response frame."""

    def array(count: int) -> bytes:
        return varint(count + 1) if version >= 12 else struct.pack(">i", count)

    body = bytearray(NO_TAGS if version >= 12 else b"")
    body += struct.pack(">i", throttle_time_ms) if version >= 1 else b""
    body += struct.pack(">hi", error_code, session_id) if version >= 7 else b""
    body += array(len(topics))
    for name, partitions in topics:
        body += name if version >= 13 else compact_string(name) if version >= 12 else string(name)
        body += array(len(partitions))
        for one in partitions:
            body += struct.pack(">ihq", *one[:3])
            body += struct.pack(">q", one.high_watermark) if version >= 4 else b""
            body += struct.pack(">q", one.log_start_offset) if version >= 5 else b""
            if version >= 4:
                transaction = struct.pack(">qq", 5, 6) + (NO_TAGS if version >= 12 else b"")
                body += array(one.transactions) + transaction * one.transactions
            body += struct.pack(">i", -1) if version >= 11 else b""
            body += array(-1 if one.records is None else len(one.records)) + (one.records or b"")
            body += tag_buffer(*one.tags) if version >= 12 else b""
        body += NO_TAGS if version >= 12 else b""
    return response_frame(correlation_id, bytes(body) + (tags if version >= 12 else b""))


def seen(partition: int, records: bytes) -> RecordsSeen:
    """What walking `records` has to find, found by slicing."""
    found = RecordsSeen(partition, len(records))
    sizes = []
    rest = records
    while rest:
        whole = 12 + struct.unpack(">i", rest[8:12])[0] if len(rest) >= 12 else 0
        if not 26 <= whole <= len(rest):
            found.cut_bytes = len(rest)
            found.next_batch_size = whole if whole >= 26 else 0
            break
        sizes.append(whole)
        rest = rest[whole:]
    found.batches = len(sizes)
    found.complete_bytes = sum(sizes)
    found.smallest, found.largest = min(sizes, default=0), max(sizes, default=0)
    return found


def scanned(topics: Topics, walk: Container[bytes], version: int = 3) -> list[ScannedTopic]:
    """What a scanner has to say about `topics`."""
    return [
        ScannedTopic(
            name,
            b"".join(map(header, partitions)),
            [
                seen(p.partition, p.records)
                if name in walk
                else RecordsSeen(p.partition, len(p.records), complete_bytes=len(p.records))
                for p in partitions
                if p.records
            ],
            tuple(p.partition for p in partitions if version >= 12 and DIVERGING in p.tags),
        )
        for name, partitions in topics
    ]


def feed(scanner: FetchResponseScanner, chunks: Iterable[bytes]) -> bytes:
    """All that `scanner` sends for `chunks`, each of which lies in a buffer that is overwritten afterwards."""
    sent = b""
    for chunk in chunks:
        buffer = bytearray(chunk)
        buffers, used = scanner.receive(memoryview(buffer))
        sent += b"".join(buffers)
        assert used == len(chunk)
        buffers.clear()
        buffer[:] = b"\xaa" * len(buffer)
    return sent


def single_bytes(data: bytes) -> list[bytes]:
    """`data` cut into its bytes."""
    return [data[at : at + 1] for at in range(len(data))]


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`data` cut at each of `cuts`."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def request(version: int, topics: list[RequestTopic], *, max_bytes: int = 2**31 - 1) -> FetchRequest:
    """A replica's request."""
    return FetchRequest(RequestHeader(FETCH, version, 7, b"c"), 2, 500, 1, max_bytes, topics)


int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.binary(max_size=12)

_batches = st.lists(st.builds(batch, st.integers(26, 80), magic=st.integers(0, 2)), max_size=4).map(b"".join)
_cut_batches = st.builds(lambda whole, cut: whole[: max(0, len(whole) - cut)], _batches, st.integers(0, 60))
records = st.one_of(st.none(), st.just(b""), _batches, _cut_batches, st.binary(max_size=40))

_tags = st.sampled_from(((), (), (DIVERGING,), (CURRENT_LEADER,), (DIVERGING, CURRENT_LEADER, UNKNOWN_TAG)))
_partitions = st.builds(
    Partition, int32, int16, int64, records, st.sampled_from((-1, -1, 0, 1, 3)), _tags, st.sampled_from((-1, 2**40))
)
_idle = st.builds(
    Partition, int32, int16, int64, st.sampled_from((None, b"")), st.sampled_from((-1, 0)), st.just(()), st.just(-1)
)
topics = st.lists(
    st.tuples(names, st.one_of(st.lists(_partitions, max_size=6), st.lists(_idle, max_size=40))), max_size=5
)

request_topics = st.lists(
    st.builds(
        lambda name, entries: RequestTopic(name, b"".join(REQUEST_ENTRY.pack(*entry) for entry in entries), 16),
        names,
        st.lists(st.tuples(int32, int64, int32), max_size=6),
    ),
    max_size=5,
)
