# SPDX-License-Identifier: Apache-2.0
"""Fetch requests of every version: the identity, what is altered, and what does not add up."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.fetch_data import NO_TAGS, VERSIONS
from tests.protocol.fetch_requests import (
    DIRECTORY_ID,
    HIGH_WATERMARK,
    Asked,
    AskedTopic,
    encode,
    packed,
    requests,
    without_strides_of_nothing,
)
from tests.protocol.wire import tag_buffer, varint
from weir.protocol.errors import MalformedFrame, ProtocolError
from weir.protocol.fetch_request import (
    FetchRequest,
    ForgottenTopic,
    decode_fetch_request,
    encode_fetch_request,
    replica_state_tags,
)
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, RequestHeader
from weir.protocol.request_topics import RequestTopic

FLEXIBLE = tuple(version for version in VERSIONS if version >= 12)
ID = b"0123456789abcdef"


def asked(partition: int, *tags: tuple[int, bytes]) -> Asked:
    return Asked(partition, 3, 100 + partition, 2, 50, 2**20, tags)


def request(version: int, topics: list[AskedTopic], **changes: object) -> FetchRequest:
    base = FetchRequest(
        RequestHeader(FETCH, version, 7, b"c"),
        2,
        500,
        1,
        10 * 2**20 if version >= 3 else 2**31 - 1,
        packed(version, topics),
        tags=replica_state_tags(2, 9) if version >= 15 else b"",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def whole(version: int) -> bytes:
    """A frame without its size that has everything that the version can have, with tags of unlike lengths."""
    tags = (DIRECTORY_ID,) if version >= 12 else ()
    topics: list[AskedTopic] = [
        (ID, [asked(0, *tags), asked(1, *tags)], ()),
        (ID[::-1], [asked(0, *tags), asked(1)], ()),
    ]
    forgotten = (ForgottenTopic(ID, (4, 5)),) if version >= 7 else ()
    rack_id = b"rack" if version >= 11 else b""
    return encode(request(version, topics, forgotten=forgotten, rack_id=rack_id), topics)[4:]


@pytest.mark.long
@given(requests())
def test_request_of_any_version_decodes_and_encodes_to_bytes(made: tuple[FetchRequest, list[AskedTopic]]) -> None:
    expected, topics = made
    frame = encode(expected, topics)
    decoded = decode_fetch_request(frame[4:])
    assert replace(decoded, topics=without_strides_of_nothing(decoded.topics)) == replace(
        expected, topics=without_strides_of_nothing(expected.topics)
    )
    assert encode_fetch_request(decoded) == frame


def separate(topics: Iterable[RequestTopic]) -> Iterator[bytes]:
    """The entries of these topics, each alone."""
    for _, entries, stride, _ in topics:
        yield from (entries[at : at + stride] for at in range(0, len(entries), stride))


@pytest.mark.long
@given(requests())
def test_partitions_of_any_version_are_read_by_their_names(made: tuple[FetchRequest, list[AskedTopic]]) -> None:
    expected, topics = made
    row = FETCH_VERSIONS[expected.header.api_version]
    partitions = [one for _, entries, _ in topics for one in entries]
    blocks = [topic for topic in expected.topics if topic.entries]
    read = [entry for topic in blocks for entry in row.requested(topic.stride).iter_unpack(topic.entries)]
    assert read == [(one.partition, one.fetch_offset, one.partition_max_bytes) for one in partitions]
    for entry, one in zip(separate(blocks), partitions, strict=True):
        assert row.leader_epoch(entry) == (
            one.current_leader_epoch.to_bytes(4, "big", signed=True) if row.api_version >= 9 else b""
        )


@pytest.mark.long
@given(requests(), st.integers(0, 2**31 - 1))
def test_nothing_but_partition_max_bytes_is_altered(
    made: tuple[FetchRequest, list[AskedTopic]], max_bytes: int
) -> None:
    expected, topics = made
    version = expected.header.api_version
    row = FETCH_VERSIONS[version]
    for _, entries, _ in topics:
        for one in entries:
            changed = one._replace(partition_max_bytes=max_bytes).encoded(version)
            assert row.with_max_bytes(one.encoded(version), max_bytes) == changed
    zeroed = [(name, [one._replace(partition_max_bytes=0) for one in entries], tags) for name, entries, tags in topics]
    assert [
        topic._replace(entries=row.with_no_bytes(topic.entries, topic.stride) if topic.entries else b"")
        for topic in expected.topics
    ] == packed(version, zeroed)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_unlike_tags_come_as_neighbours_and_go_out_as_one_topic(version: int) -> None:
    entries = [asked(0, DIRECTORY_ID), asked(1), asked(2), asked(3, DIRECTORY_ID, HIGH_WATERMARK)]
    topics: list[AskedTopic] = [(ID, entries, ()), (ID, [asked(4)], ())]
    frame = encode(request(version, topics), topics)
    decoded = decode_fetch_request(frame[4:])
    fixed = FETCH_VERSIONS[version].partition_size
    assert [(topic.stride, len(topic.entries) // topic.stride) for topic in decoded.topics] == [
        (fixed + 19, 1),
        (fixed + 1, 2),
        (fixed + 29, 1),
        (fixed + 1, 1),
    ]
    assert [topic.tags for topic in decoded.topics] == [b"", b"", NO_TAGS, NO_TAGS]
    assert encode_fetch_request(decoded) == frame


@pytest.mark.parametrize("version", FLEXIBLE)
def test_neighbours_made_here_go_out_as_one_topic(version: int) -> None:
    """A plan puts partitions into an order of its own."""
    one, two, other = (
        topic._replace(tags=b"") for name in (ID, ID, ID[::-1]) for topic in packed(version, [(name, [asked(0)], ())])
    )
    made = request(version, []).with_(topics=[one, two, other, one])
    topics: list[AskedTopic] = [(ID, [asked(0), asked(0)], ()), (ID[::-1], [asked(0)], ()), (ID, [asked(0)], ())]
    assert encode_fetch_request(made) == encode(made, topics)


def test_like_tags_of_a_large_topic_are_told_from_unlike_ones() -> None:
    for odd in (0, 1, 499, 998, 999):
        entries = [asked(p, (0, bytes([p % 256]) * 16)) for p in range(1000)]
        topics: list[AskedTopic] = [(ID, entries, ())]
        assert len(decode_fetch_request(encode(request(17, topics), topics)[4:]).topics) == 1
        entries[odd] = entries[odd]._replace(tags=((5, b"x" * 16), HIGH_WATERMARK))
        assert decode_fetch_request(encode(request(17, topics), topics)[4:]).topics == packed(17, topics)


@pytest.mark.parametrize("version", [15, 16, 17, 18])
@pytest.mark.parametrize(
    ("tags", "replica_id"),
    [
        (b"", -1),
        (replica_state_tags(5, -1), 5),
        (tag_buffer((0, b"\x03id"), (1, struct.pack(">iq", 6, 1) + NO_TAGS)), 6),
        (tag_buffer((0, b"\x03id"), (2, struct.pack(">iq", 6, 1) + NO_TAGS)), -1),
    ],
)
def test_replica_id_is_read_from_the_replica_state(version: int, tags: bytes, replica_id: int) -> None:
    frame = encode(request(version, [], tags=tags), [])
    decoded = decode_fetch_request(frame[4:])
    assert (decoded.replica_id, decoded.tags) == (replica_id, tags)
    assert encode_fetch_request(decoded) == frame


def test_with_changes_what_is_given_and_keeps_the_rest() -> None:
    one = request(18, [(ID, [asked(0)], ())], forgotten=(ForgottenTopic(ID, (1,)),), rack_id=b"r", isolation_level=1)
    changes = {"session_id": 8, "session_epoch": 9, "forgotten": (), "max_wait_ms": 1, "max_bytes": 2, "topics": []}
    assert one.with_() == one
    assert one.with_(**changes) == replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
def test_request_of_any_version_cut_anywhere_is_malformed(version: int) -> None:
    frame = whole(version)
    for size in range(len(frame)):
        with pytest.raises(MalformedFrame) as error:
            decode_fetch_request(frame[:size])
        assert 0 <= error.value.offset <= size
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(frame + b"\x00")
    assert error.value.offset == len(frame)


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("value", [0, 100, 2**31, 2**34 - 1])
def test_request_wrong_compact_count_of_topics_is_malformed(version: int, value: int) -> None:
    """0 stands for null; nothing is made room for, and nothing loops."""
    frame = encode(request(version, []), [])[4:]
    at = 8 + 3 + 1 + FETCH_VERSIONS[version].request_head.layout.size
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(frame[:at] + varint(value) + frame[at + 1 :])
    assert error.value.offset == at


@pytest.mark.parametrize(
    "broken", [b"\xff\xff\xff\xff\xff\x01", varint(2**34 - 1), b"\x80", b"\x01\x00\xff\xff\xff\xff\x0f"]
)
@pytest.mark.parametrize("version", FLEXIBLE)
def test_request_tags_beyond_the_frame_are_malformed(version: int, broken: bytes) -> None:
    """In a partition, a topic, and the request: a varint of 6 bytes, a count, a varint cut off, a size."""
    topics: list[AskedTopic] = [(ID, [asked(0)], ())]
    made = request(version, topics, tags=b"")
    frame = encode(made, topics)[4:]
    behind_request = len(frame)
    behind_topic = behind_request - 1 - 1 - 1  # forgotten topics, rack id, tags
    for end in (behind_request, behind_topic, behind_topic - 1):
        with pytest.raises(MalformedFrame):
            decode_fetch_request(frame[: end - 1] + broken)


def test_replica_state_too_short_for_an_id_is_malformed() -> None:
    frame = encode(request(15, [], tags=tag_buffer((1, b"abc"))), [])
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(frame[4:])
    assert error.value.offset == len(frame) - 4 - 3


@pytest.mark.long
@given(requests(), st.data())
def test_changed_request_decodes_or_raises_a_protocol_error(
    made: tuple[FetchRequest, list[AskedTopic]], data: st.DataObject
) -> None:
    """What decodes is the same message once encoded again; its bytes too, but for varints longer than they need be."""
    altered = bytearray(encode(*made)[4:])
    for offset in data.draw(st.lists(st.integers(0, len(altered) - 1), max_size=4)):
        altered[offset] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)))
    try:
        decoded = decode_fetch_request(bytes(altered))
    except ProtocolError:
        return
    again = encode_fetch_request(decoded)[4:]
    assert decode_fetch_request(again) == decoded
    assert again == altered or decoded.header.api_version >= 12
