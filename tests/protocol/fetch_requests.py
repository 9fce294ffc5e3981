# SPDX-License-Identifier: Apache-2.0
"""Fetch requests of every version for tests, written field by field, with what decoding has to find in them."""

import struct
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from tests.protocol.fetch_data import NO_TAGS, UNKNOWN_TAG, VERSIONS, int32, int64, names
from tests.protocol.wire import compact_string, frame, string, tag_buffer, varint
from weir.protocol.fetch_request import FetchRequest, ForgottenTopic
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic

DIRECTORY_ID = (0, b"d" * 16)
HIGH_WATERMARK = (1, struct.pack(">q", 77))
Tags = tuple[tuple[int, bytes], ...]


class Asked(NamedTuple):
    """One requested partition; a version writes the fields that it has."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    tags: Tags = ()

    def encoded(self, version: int) -> bytes:
        """The partition as on the wire."""
        data = struct.pack(">i", self.partition)
        data += struct.pack(">i", self.current_leader_epoch) if version >= 9 else b""
        data += struct.pack(">q", self.fetch_offset)
        data += struct.pack(">i", self.last_fetched_epoch) if version >= 12 else b""
        data += struct.pack(">q", self.log_start_offset) if version >= 5 else b""
        data += struct.pack(">i", self.partition_max_bytes)
        return data + (tag_buffer(*self.tags) if version >= 12 else b"")


AskedTopic = tuple[bytes, list[Asked], Tags]


def encode(request: FetchRequest, topics: list[AskedTopic]) -> bytes:
    """The frame of `request`, with `topics` in place of its own."""
    version = request.header.api_version
    is_flexible = version >= 12
    text: Callable[[bytes | None], bytes] = compact_string if is_flexible else string

    def name_of(topic: bytes) -> bytes:
        return topic if version >= 13 else text(topic)

    def array(count: int) -> bytes:
        return varint(count + 1) if is_flexible else struct.pack(">i", count)

    body = struct.pack(">hhi", FETCH, version, request.header.correlation_id) + string(request.header.client_id)
    body += (request.header.tags or NO_TAGS) if is_flexible else b""
    body += struct.pack(">i", request.replica_id) if version < 15 else b""
    body += struct.pack(">ii", request.max_wait_ms, request.min_bytes)
    body += struct.pack(">i", request.max_bytes) if version >= 3 else b""
    body += struct.pack(">b", request.isolation_level) if version >= 4 else b""
    body += struct.pack(">ii", request.session_id, request.session_epoch) if version >= 7 else b""
    body += array(len(topics))
    for name, partitions, tags in topics:
        body += name_of(name) + array(len(partitions)) + b"".join(one.encoded(version) for one in partitions)
        body += tag_buffer(*tags) if is_flexible else b""
    if version >= 7:
        body += array(len(request.forgotten))
        for forgotten in request.forgotten:
            body += name_of(forgotten.name) + array(len(forgotten.partitions))
            body += struct.pack(f">{len(forgotten.partitions)}i", *forgotten.partitions)
            body += (forgotten.tags or NO_TAGS) if is_flexible else b""
    body += text(request.rack_id) if version >= 11 else b""
    return frame(body + ((request.tags or NO_TAGS) if is_flexible else b""))


def packed(version: int, topics: list[AskedTopic]) -> list[RequestTopic]:
    """What decoding makes of `topics`: where tags differ in length, neighbours of one stride each."""
    found: list[RequestTopic] = []
    for name, partitions, tags in topics:
        pieces: list[list[bytes]] = []
        for one in partitions:
            entry = one.encoded(version)
            if not pieces or len(pieces[-1][-1]) != len(entry):
                pieces.append([])
            pieces[-1].append(entry)
        found += [RequestTopic(name, b"".join(piece), len(piece[0])) for piece in pieces or [[b""]]]
        found[-1] = found[-1]._replace(tags=tag_buffer(*tags) if version >= 12 else b"")
    return found


def without_strides_of_nothing(topics: list[RequestTopic]) -> list[RequestTopic]:
    """`topics`, with a stride of 0 where there are no entries to have one."""
    return [topic if topic.entries else topic._replace(stride=0) for topic in topics]


_any_tags: st.SearchStrategy[Tags] = st.sampled_from(
    ((), (DIRECTORY_ID,), (HIGH_WATERMARK,), (DIRECTORY_ID, HIGH_WATERMARK), (DIRECTORY_ID, UNKNOWN_TAG))
)
_ids = st.binary(min_size=16, max_size=16)


@st.composite
def requests(draw: st.DrawFn, versions: tuple[int, ...] = VERSIONS) -> tuple[FetchRequest, list[AskedTopic]]:
    """A request of any of `versions` as decoding has to give it, and its topics as they stand on the wire."""
    version = draw(st.sampled_from(versions))
    is_flexible = version >= 12
    name = _ids if version >= 13 else names
    tags = draw(st.sampled_from((_any_tags, st.just((DIRECTORY_ID,)), st.just(()))))
    entries = st.builds(Asked, int32, int32, int64, int32, int64, int32, tags if is_flexible else st.just(()))
    topic_tags: st.SearchStrategy[Tags] = st.sampled_from(((), (), (UNKNOWN_TAG,))) if is_flexible else st.just(())
    topics = draw(st.lists(st.tuples(name, st.lists(entries, max_size=6), topic_tags), max_size=5))
    unknown = tag_buffer(UNKNOWN_TAG) if is_flexible else b""
    forgotten = st.builds(ForgottenTopic, name, st.lists(int32, max_size=4).map(tuple), st.sampled_from((b"", unknown)))
    replica_id = draw(int32)
    request_tags: Tags = draw(st.sampled_from(((), ((0, compact_string(b"cluster")), UNKNOWN_TAG))))
    if version >= 15:
        state = (1, struct.pack(">iq", replica_id, 5) + NO_TAGS)
        if draw(st.booleans()):
            request_tags = (*request_tags[:1], state, *request_tags[1:])
        else:
            replica_id = -1
    return (
        FetchRequest(
            RequestHeader(FETCH, version, draw(int32), draw(st.none() | names), draw(st.sampled_from((b"", unknown)))),
            replica_id,
            draw(int32),
            draw(int32),
            draw(int32) if version >= 3 else 2**31 - 1,
            packed(version, topics),
            draw(st.integers(0, 1)) if version >= 4 else 0,
            draw(int32) if version >= 7 else 0,
            draw(int32) if version >= 7 else -1,
            tuple(draw(st.lists(forgotten, max_size=3))) if version >= 7 else (),
            draw(names) if version >= 11 else b"",
            tag_buffer(*request_tags) if is_flexible and request_tags else b"",
        ),
        topics,
    )
