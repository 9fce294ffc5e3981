# SPDX-License-Identifier: Apache-2.0
"""Fetch requests v0 to v18, from a frame to a message and back, byte for byte.

Partition entries stay packed as they came: a topic of a hundred partitions is one slice, not a hundred objects. The
differences between versions are rows of FETCH_VERSIONS.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import MAX_INT32, FetchVersion, fetch_version
from weir.protocol.header import SIZE, RequestHeader, decode_request_header, encode_request_header
from weir.protocol.primitives import CLASSIC, COMPACT, NO_TAGS
from weir.protocol.request_topics import (
    STEP_TOPICS,
    RequestTopic,
    Runs,
    after_identified_topics,
    check_counts,
    read_classic_topics,
    read_compact_topics,
    read_name,
    smallest_topic,
    write_classic_topics,
    write_compact_topics,
    write_name,
)
from weir.protocol.steps import Steps, at_once
from weir.protocol.varint import after_tags, encode_unsigned_varint, read_tag_count, read_unsigned_varint

CONSUMER: Final = -1
"""The replica_id of a client that is no replica."""

_REPLICA_STATE_TAG: Final = 1
_REPLICA_STATE: Final = struct.Struct(">iq")
_STATE_TAGS_HEAD: Final = bytes((1, _REPLICA_STATE_TAG, _REPLICA_STATE.size + 1))  # one tag, its number, its size
_STATE_TAGS_SIZE: Final = len(_STATE_TAGS_HEAD) + _REPLICA_STATE.size + 1


class ForgottenTopic(NamedTuple):
    """Partitions that an incremental fetch removes from its session; `name` and `tags` as in RequestTopic."""

    name: bytes
    partitions: tuple[int, ...]
    tags: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A Fetch request. `max_wait_ms` is in milliseconds, `min_bytes` and `max_bytes` in bytes.

    A field that the version does not have has Kafka's default, and is not written: `max_bytes` (v3+) is MAX_INT32,
    `isolation_level` (v4+) 0, `session_id` and `session_epoch` (v7+) 0 and -1, `rack_id` (v11+) empty.

    `tags` is the request's own tag buffer as on the wire (v12+), b"" where it is empty. From v15 on the replica id is a
    tag in it: `replica_id` was read from there (CONSUMER where it is missing), and encoding writes `tags` but not
    `replica_id`.
    """

    header: RequestHeader
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    topics: list[RequestTopic]
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    forgotten: tuple[ForgottenTopic, ...] = ()
    rack_id: bytes = b""
    tags: bytes = b""

    def with_(
        self,
        *,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        topics: list[RequestTopic] | None = None,
        session_id: int | None = None,
        session_epoch: int | None = None,
        forgotten: tuple[ForgottenTopic, ...] | None = None,
    ) -> "FetchRequest":
        """Return this request with the given fields replaced.

        `dataclasses.replace` would take several times as long.
        """
        return FetchRequest(
            self.header,
            self.replica_id,
            self.max_wait_ms if max_wait_ms is None else max_wait_ms,
            self.min_bytes if min_bytes is None else min_bytes,
            self.max_bytes if max_bytes is None else max_bytes,
            self.topics if topics is None else topics,
            self.isolation_level,
            self.session_id if session_id is None else session_id,
            self.session_epoch if session_epoch is None else session_epoch,
            self.forgotten if forgotten is None else forgotten,
            self.rack_id,
            self.tags,
        )


def decode_fetch_request(frame: bytes) -> FetchRequest:
    """Decode a small Fetch request in one go. `frame` and errors are those of `fetch_request_steps`."""
    return at_once(fetch_request_steps(frame))


def fetch_request_steps(frame: bytes, runs: Runs | None = None) -> Steps[FetchRequest]:
    """Decode a whole Fetch request in steps. `frame` is everything after its 4-byte size.

    `runs` are those of the request that came before on the connection, see `read_classic_topics`.

    Raises MalformedFrame when lengths and counts do not add up to the frame, TooMany when it lists more topics or
    partitions than are decoded, and UnsupportedVersion when the version is not in FETCH_VERSIONS.
    """
    header, at = decode_request_header(frame)
    row = fetch_version(header.api_version)
    if row.is_flexible:
        tags, at = COMPACT.read_tags(frame, at)
        if tags:
            header = replace(header, tags=tags)
    head_end = at + row.request_head.layout.size
    if head_end > len(frame):
        raise MalformedFrame("the frame ends within the request's fixed fields", len(frame))
    values = row.request_head.layout.unpack_from(frame, at)
    fields = {"replica_id": CONSUMER, "max_bytes": MAX_INT32, **dict(zip(row.request_head.names, values, strict=True))}
    if row.is_flexible:
        topics, at = yield from read_compact_topics(frame, head_end, row)
    else:
        topics, at = yield from read_classic_topics(frame, head_end, row, {} if runs is None else runs)
    forgotten: tuple[ForgottenTopic, ...] = ()
    rack_id = b""
    encoding = COMPACT if row.is_flexible else CLASSIC
    if row.has_forgotten_topics:
        forgotten, at = yield from _read_forgotten(frame, at, row)
    if row.has_rack_id:
        rack_id, at = encoding.read_string(frame, at)
    tags_start = at
    tags, at = encoding.read_tags(frame, at)
    if at != len(frame):
        raise MalformedFrame(f"{len(frame) - at} bytes follow the request's last field", at)
    if row.has_replica_state and tags:
        fields["replica_id"] = _replica_id(frame, tags_start)
    return FetchRequest(header=header, topics=topics, forgotten=forgotten, rack_id=rack_id, tags=tags, **fields)


def check_replica_fetch(request: FetchRequest) -> FetchRequest:
    """Return a replica's request as a broker understands it: a negative max_wait_ms or min_bytes counts as 0.

    `replica.fetch.wait.max.ms` and `replica.fetch.min.bytes` may be set to negative values. Sizes may not, and no
    broker returns anything for a negative one: raises MalformedFrame for a negative max_bytes.
    """
    if request.max_bytes < 0:
        behind_header = len(encode_request_header(request.header)) + len(request.header.tags)
        raise MalformedFrame(f"a replica's fetch has a max_bytes of {request.max_bytes}", behind_header)
    if request.max_wait_ms < 0 or request.min_bytes < 0:
        return request.with_(max_wait_ms=max(0, request.max_wait_ms), min_bytes=max(0, request.min_bytes))
    return request


def encode_fetch_request(request: FetchRequest) -> bytes:
    """Encode a small request in one go. Result and errors are those of `encoding_steps`."""
    return at_once(encoding_steps(request))


def encoding_steps(request: FetchRequest) -> Steps[bytes]:
    """Encode a request in steps: the whole frame with its 4-byte size, in the version that its header names.

    Raises ValueError when its topics are of another version, and struct.error when a field cannot hold its value.
    """
    header = request.header
    row = fetch_version(header.api_version)
    encoding = COMPACT if row.is_flexible else CLASSIC
    parts = [
        b"",  # the frame's size, filled in at the end
        encode_request_header(header),
        encoding.tags(header.tags),
        row.request_head.layout.pack(*[getattr(request, name) for name in row.request_head.names]),
    ]
    if row.is_flexible:
        yield from write_compact_topics(parts, request.topics, row)
    else:
        yield from write_classic_topics(parts, request.topics, row)
    if row.has_forgotten_topics:
        yield from _write_forgotten(parts, request.forgotten, row)
    if row.has_rack_id:
        parts.append(encoding.string(request.rack_id))
    parts.append(encoding.tags(request.tags))
    parts[0] = SIZE.pack(sum(map(len, parts)))
    return b"".join(parts)


def replica_state_tags(replica_id: int, replica_epoch: int) -> bytes:
    """Return the tag buffer of a replica's request of v15 or later."""
    # the tag's struct ends with a tag buffer of its own
    state = _REPLICA_STATE.pack(replica_id, replica_epoch) + b"\x00"
    return b"\x01" + encode_unsigned_varint(_REPLICA_STATE_TAG) + encode_unsigned_varint(len(state)) + state


def replica_id_steps(frame: bytes) -> Steps[int]:
    """Read the sender of a request of v15 to v18, in steps; CONSUMER where it names no replica.

    `frame` has no 4-byte size. Partitions are skipped. Raises MalformedFrame when lengths and counts up to the replica
    id do not add up (what follows it is not read), and TooMany as `decode_fetch_request` does.
    """
    header, at = decode_request_header(frame)
    row = fetch_version(header.api_version)
    at = after_tags(frame, at) + row.request_head.layout.size
    at = yield from after_identified_topics(frame, at, row)
    _, at = yield from _read_forgotten(frame, at, row)
    length_and_one, at = read_unsigned_varint(frame, at)
    return _replica_id(frame, at + max(0, length_and_one - 1))


def replica_id_at_end(frame: bytes | bytearray | memoryview, end: int) -> int | None:
    """Guess the sender of a request of v15 to v18 that ends at `end`; None unless it ends like a replica's.

    A replica's request ends with the tag buffer of `replica_state_tags`, and hardly any consumer's does. Only decoding
    tells for certain.
    """
    tags = bytes(frame[max(0, end - _STATE_TAGS_SIZE) : end])
    if len(tags) < _STATE_TAGS_SIZE or not tags.startswith(_STATE_TAGS_HEAD) or not tags.endswith(NO_TAGS):
        return None
    replica_id = int(SIZE.unpack_from(tags, len(_STATE_TAGS_HEAD))[0])
    return replica_id if replica_id > CONSUMER else None


def _replica_id(frame: bytes, at: int) -> int:
    """Read the sender from the request's tag buffer at `at`."""
    count, at = read_tag_count(frame, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(frame, at)
        size, at = read_unsigned_varint(frame, at)
        if tag == _REPLICA_STATE_TAG:
            if size < SIZE.size or at + SIZE.size > len(frame):
                raise MalformedFrame(f"a replica state of {size} bytes does not hold a replica id", at)
            return int(SIZE.unpack_from(frame, at)[0])
        at += size
        if at > len(frame):
            break
    if at > len(frame):
        raise MalformedFrame("the frame ends before the replica id", len(frame))
    return CONSUMER


def _read_forgotten(frame: bytes, at: int, row: FetchVersion) -> Steps[tuple[tuple[ForgottenTopic, ...], int]]:
    encoding = COMPACT if row.is_flexible else CLASSIC
    count, at = encoding.read_count(frame, at, smallest_topic(row))
    check_counts(count)
    total = 0
    forgotten: list[ForgottenTopic] = []
    for number in range(1, count + 1):
        if not number % STEP_TOPICS:
            yield
        name, at = read_name(frame, at, row)
        partitions, at = encoding.read_count(frame, at, SIZE.size)
        total += partitions
        check_counts(count, total)
        end = at + partitions * SIZE.size
        ids = struct.unpack_from(f">{partitions}i", frame, at)
        tags, at = encoding.read_tags(frame, end)
        forgotten.append(ForgottenTopic(name, ids, tags))
    return tuple(forgotten), at


def _write_forgotten(parts: list[bytes], forgotten: Sequence[ForgottenTopic], row: FetchVersion) -> Steps[None]:
    encoding = COMPACT if row.is_flexible else CLASSIC
    parts.append(encoding.count(len(forgotten)))
    for number, (name, partitions, tags) in enumerate(forgotten, start=1):
        if not number % STEP_TOPICS:
            yield
        ids = struct.pack(f">{len(partitions)}i", *partitions)
        parts += (write_name(name, row), encoding.count(len(partitions)), ids, encoding.tags(tags))
