"""Fetch requests and made-up Fetch responses, v0 to v3.

Layouts are those of Kafka's FetchRequest.json and FetchResponse.json. What differs from version to version is a row of
FETCH_VERSIONS; nothing else here asks for a version. Partition entries stay packed as they came: a topic of a hundred
partitions is one slice, never a hundred objects.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.errors import MalformedFrame, UnsupportedVersion
from protocol.header import FETCH, SIZE, RequestHeader, decode_request_header, encode_request_header

MAX_INT32: Final = 2**31 - 1

REQUEST_ENTRY: Final = struct.Struct(">iqi")
"""A requested partition, v0 to v4: partition, fetch_offset, partition_max_bytes."""

RESPONSE_ENTRY: Final = struct.Struct(">ihqi")
"""A fetched partition, v0 to v3: partition, error_code, high_watermark, size of the records behind it in bytes."""

STRING_LENGTH: Final = struct.Struct(">h")
COUNT: Final = SIZE
SMALLEST_TOPIC: Final = STRING_LENGTH.size + COUNT.size
"""Bytes of a topic with an empty name and no partitions: no count can be larger than what is left divided by this."""


class RequestTopic(NamedTuple):
    """One topic of a request.

    `name` is UTF-8 as on the wire; `entries` are its partitions back to back as on the wire, each of the version's
    `request_entry` (v0 to v3: REQUEST_ENTRY, 16 bytes).
    """

    name: bytes
    entries: bytes


class ResponseTopic(NamedTuple):
    """One made-up topic of a response: `headers` are RESPONSE_ENTRY back to back, each with a records size of 0."""

    name: bytes
    headers: bytes


@dataclass(frozen=True, slots=True)
class FetchVersion:
    """What one version of Fetch looks like on the wire.

    `request_head` and `response_head` are the fixed fields between the header and the topics array, with the names
    that FetchRequest has for them; a field that a version lacks keeps the default of REQUEST_DEFAULTS.
    """

    api_version: int
    request_head: struct.Struct
    request_fields: tuple[str, ...]
    request_entry: struct.Struct
    response_head: struct.Struct
    response_fields: tuple[str, ...]
    response_entry: struct.Struct


REQUEST_DEFAULTS: Final[Mapping[str, int]] = {"max_bytes": MAX_INT32}

_REQUEST_V0: Final = (struct.Struct(">iii"), ("replica_id", "max_wait_ms", "min_bytes"), REQUEST_ENTRY)
_REQUEST_V3: Final = (struct.Struct(">iiii"), ("replica_id", "max_wait_ms", "min_bytes", "max_bytes"), REQUEST_ENTRY)
_RESPONSE_V0: Final = (struct.Struct(">"), (), RESPONSE_ENTRY)
_RESPONSE_V1: Final = (struct.Struct(">i"), ("throttle_time_ms",), RESPONSE_ENTRY)

FETCH_VERSIONS: Final[Mapping[int, FetchVersion]] = {
    row.api_version: row
    for row in (
        FetchVersion(0, *_REQUEST_V0, *_RESPONSE_V0),
        FetchVersion(1, *_REQUEST_V0, *_RESPONSE_V1),  # KIP-13: the response's throttle_time_ms
        FetchVersion(2, *_REQUEST_V0, *_RESPONSE_V1),  # KIP-32: only what is inside the records changed
        FetchVersion(3, *_REQUEST_V3, *_RESPONSE_V1),  # KIP-74: the request's max_bytes, and its order counts
    )
}
"""Every version of Fetch that can be decoded, by number."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A Fetch request. `max_wait_ms` is in milliseconds, `min_bytes` and `max_bytes` in bytes.

    `max_bytes` is MAX_INT32 where the version has none (v0 to v2), and is then not written either.
    """

    header: RequestHeader
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    topics: list[RequestTopic]

    def with_(
        self,
        *,
        max_wait_ms: int | None = None,
        max_bytes: int | None = None,
        topics: list[RequestTopic] | None = None,
    ) -> "FetchRequest":
        """The same request but for what is given; `dataclasses.replace` costs several times as much."""
        return FetchRequest(
            self.header,
            self.replica_id,
            self.max_wait_ms if max_wait_ms is None else max_wait_ms,
            self.min_bytes,
            self.max_bytes if max_bytes is None else max_bytes,
            self.topics if topics is None else topics,
        )


def fetch_version(api_version: int) -> FetchVersion:
    """The row of FETCH_VERSIONS; raises UnsupportedVersion where there is none."""
    row = FETCH_VERSIONS.get(api_version)
    if row is None:
        raise UnsupportedVersion(FETCH, api_version)
    return row


def decode_fetch_request(frame: bytes) -> FetchRequest:
    """Decode a whole Fetch request, `frame` being everything behind its 4-byte size.

    Raises MalformedFrame when lengths and counts do not add up to the frame, UnsupportedVersion when the version is not
    in FETCH_VERSIONS.
    """
    header, position = decode_request_header(frame)
    row = fetch_version(header.api_version)
    topics_start = position + row.request_head.size
    if topics_start > len(frame):
        raise MalformedFrame("the frame ends within the request's fixed fields", len(frame))
    values = row.request_head.unpack_from(frame, position)
    fields = {**REQUEST_DEFAULTS, **dict(zip(row.request_fields, values, strict=True))}
    topics, end = _read_topics(frame, topics_start, row.request_entry.size)
    if end != len(frame):
        raise MalformedFrame(f"{len(frame) - end} bytes follow the request's last field", end)
    return FetchRequest(header=header, topics=topics, **fields)


def encode_fetch_request(request: FetchRequest) -> bytes:
    """The request's whole frame with its 4-byte size prefix, in the version that its header names."""
    header = request.header
    row = fetch_version(header.api_version)
    parts = [
        b"",  # the frame's size, when it is known
        encode_request_header(header),
        row.request_head.pack(*[getattr(request, name) for name in row.request_fields]),
        COUNT.pack(len(request.topics)),
    ]
    _write_topics(parts, request.topics, row.request_entry.size)
    return _frame(parts)


def encode_response_topics(topics: Sequence[ResponseTopic]) -> bytes:
    """Made-up topics as they stand in a response's topics array, v0 to v3, the array's count left out.

    Raises ValueError when a header announces records: a follower would take the next topic's bytes for them.
    """
    parts: list[bytes] = []
    _write_response_topics(parts, topics)
    return b"".join(parts)


def encode_fetch_response(
    version: int, correlation_id: int, throttle_time_ms: int, topics: Sequence[ResponseTopic]
) -> bytes:
    """A whole made-up Fetch response with its 4-byte size prefix; v0 has no room for `throttle_time_ms`.

    Raises ValueError when a header announces records, UnsupportedVersion for a version not in FETCH_VERSIONS.
    """
    row = fetch_version(version)
    head = {"throttle_time_ms": throttle_time_ms}
    parts = [
        b"",  # the frame's size, when it is known
        SIZE.pack(correlation_id),
        row.response_head.pack(*[head[name] for name in row.response_fields]),
        COUNT.pack(len(topics)),
    ]
    _write_response_topics(parts, topics)
    return _frame(parts)


def _frame(parts: list[bytes]) -> bytes:
    parts[0] = SIZE.pack(sum(map(len, parts)))
    return b"".join(parts)


def _read_topics(frame: bytes, position: int, stride: int) -> tuple[list[RequestTopic], int]:
    """The topics array at `position` with partition entries of `stride` bytes, and the offset behind it."""
    size = len(frame)
    if position + COUNT.size > size:
        raise MalformedFrame("the frame ends within the count of topics", size)
    (count,) = COUNT.unpack_from(frame, position)
    position += COUNT.size
    if not 0 <= count <= (size - position) // SMALLEST_TOPIC:
        raise MalformedFrame(f"{count} topics cannot stand in {size - position} bytes", position - COUNT.size)
    topics: list[RequestTopic] = []
    string_length, entry_count = STRING_LENGTH.unpack_from, COUNT.unpack_from  # two look-ups less for each topic
    make = tuple.__new__  # at half of what the class's own constructor costs
    for _ in range(count):
        name_start = position + 2
        if name_start > size:
            raise MalformedFrame("the frame ends within the length of a topic name", size)
        (length,) = string_length(frame, position)
        name_end = name_start + length
        entries_start = name_end + 4
        if length < 0 or entries_start > size:
            raise MalformedFrame(f"a topic name of {length} bytes does not fit into the frame", position)
        (partitions,) = entry_count(frame, name_end)
        position = entries_start + partitions * stride
        if partitions < 0 or position > size:
            raise MalformedFrame(f"{partitions} partitions do not fit into the frame", name_end)
        topics.append(make(RequestTopic, (frame[name_start:name_end], frame[entries_start:position])))
    return topics, position


def _write_topics(parts: list[bytes], topics: Sequence[tuple[bytes, bytes]], stride: int) -> None:
    string_length, entry_count = STRING_LENGTH.pack, COUNT.pack
    for name, entries in topics:
        parts += (string_length(len(name)), name, entry_count(len(entries) // stride), entries)


def _write_response_topics(parts: list[bytes], topics: Sequence[ResponseTopic]) -> None:
    stride = RESPONSE_ENTRY.size
    headers = b"".join([topic.headers for topic in topics])
    for at in range(stride - SIZE.size, stride):  # all topics at once: one by one costs four times as much
        if headers[at::stride].strip(b"\x00"):
            name = next(topic.name for topic in topics if topic.headers[at::stride].strip(b"\x00"))
            raise ValueError(f"A made-up response has no records, but the headers of topic {name!r} announce some.")
    _write_topics(parts, topics, stride)
