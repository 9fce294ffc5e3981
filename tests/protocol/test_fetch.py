# SPDX-License-Identifier: Apache-2.0
"""Fetch v0 to v3 as literal bytes, and round trips."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import OLD_VERSIONS, REQUEST_ENTRY, int32, request
from weir.protocol.errors import UnsupportedVersion
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, encode_fetch_request
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_body import RESPONSE_ENTRY

ENTRY = bytes.fromhex("00000005 0000000000000102 00100000")  # partition 5, fetch_offset 258, 1 MiB
TOPICS = bytes.fromhex("00000002") + b"\x00\x01a" + bytes.fromhex("00000001") + ENTRY + b"\x00\x02bc" + bytes(4)
BEFORE_MAX_BYTES = b"\x00\x01c" + bytes.fromhex("00000002 000001f4 00000001")  # client id, replica 2, 500 ms, 1 byte

REQUESTS = {
    0: bytes.fromhex("0000003a 0001 0000 00000007") + BEFORE_MAX_BYTES + TOPICS,
    1: bytes.fromhex("0000003a 0001 0001 00000007") + BEFORE_MAX_BYTES + TOPICS,
    2: bytes.fromhex("0000003a 0001 0002 00000007") + BEFORE_MAX_BYTES + TOPICS,
    3: bytes.fromhex("0000003e 0001 0003 00000007") + BEFORE_MAX_BYTES + bytes.fromhex("00a00000") + TOPICS,
}

MADE_UP = RESPONSE_ENTRY.pack(5, 0, 258, 0)
MADE_UP_TOPICS = b"\x00\x01a\x00\x00\x00\x02" + bytes.fromhex("00000005 0000 0000000000000102 00000000") * 2

RESPONSES = {
    0: bytes.fromhex("00000033 00000007 00000001") + MADE_UP_TOPICS,
    1: bytes.fromhex("00000037 00000007 000003e8 00000001") + MADE_UP_TOPICS,
    2: bytes.fromhex("00000037 00000007 000003e8 00000001") + MADE_UP_TOPICS,
    3: bytes.fromhex("00000037 00000007 000003e8 00000001") + MADE_UP_TOPICS,
}


def expected_request(version: int) -> FetchRequest:
    return FetchRequest(
        header=RequestHeader(1, version, 7, b"c"),
        replica_id=2,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 * 2**20 if version >= 3 else 2**31 - 1,
        topics=[RequestTopic(b"a", REQUEST_ENTRY.pack(5, 258, 2**20), 16), RequestTopic(b"bc", b"", 16)],
    )


def test_versions_known_are_0_to_18() -> None:
    assert sorted(FETCH_VERSIONS) == list(range(19))
    assert all(version == row.api_version for version, row in FETCH_VERSIONS.items())


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_request_literal_bytes_decode(version: int) -> None:
    assert decode_fetch_request(REQUESTS[version][4:]) == expected_request(version)


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_request_literal_bytes_encode(version: int) -> None:
    assert encode_fetch_request(expected_request(version)) == REQUESTS[version]


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_request_without_topics_round_trips(version: int) -> None:
    frame = encode_fetch_request(request(version, []))
    assert frame.endswith(bytes(4))
    assert decode_fetch_request(frame[4:]) == request(version, [])


def test_request_max_bytes_is_not_written_before_v3() -> None:
    assert encode_fetch_request(request(2, [], max_bytes=1)) == encode_fetch_request(request(2, []))
    assert encode_fetch_request(request(3, [], max_bytes=1)) != encode_fetch_request(request(3, []))


@pytest.mark.parametrize("length", [0, 1, 32_767])
def test_request_topic_name_of_any_legal_length_round_trips(length: int) -> None:
    one = request(3, [RequestTopic(b"n" * length, ENTRY, 16), RequestTopic(b"after", ENTRY, 16)])
    assert decode_fetch_request(encode_fetch_request(one)[4:]) == one


def test_request_topic_name_is_passed_on_as_it_came() -> None:
    """Bytes that are not UTF-8 are for the broker to refuse, not for the sidecar to break on."""
    one = request(3, [RequestTopic(b"\xff\xfe", ENTRY, 16)])
    assert decode_fetch_request(encode_fetch_request(one)[4:]) == one


@given(
    st.sampled_from(OLD_VERSIONS),
    int32,
    int32,
    int32,
    int32,
    int32,
    st.none() | fetch_data.names,
    fetch_data.request_topics,
)
def test_request_round_trip(
    version: int,
    correlation_id: int,
    replica_id: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    client_id: bytes | None,
    topics: list[RequestTopic],
) -> None:
    header = RequestHeader(1, version, correlation_id, client_id)
    one = FetchRequest(header, replica_id, max_wait_ms, min_bytes, max_bytes if version >= 3 else 2**31 - 1, topics)
    frame = encode_fetch_request(one)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    assert decode_fetch_request(frame[4:]) == one


def test_request_with_changes_only_what_is_given() -> None:
    one = request(3, [RequestTopic(b"a", ENTRY, 16)], max_bytes=100)
    assert one.with_() == one
    assert one.with_(max_wait_ms=0, max_bytes=0, topics=[]) == FetchRequest(one.header, 2, 0, 1, 0, [])
    assert one.topics == [RequestTopic(b"a", ENTRY, 16)]


@pytest.mark.parametrize("version", [-1, 19])
def test_request_of_another_version_is_unsupported(version: int) -> None:
    frame = struct.pack(">hh", 1, version) + REQUESTS[3][8:]
    with pytest.raises(UnsupportedVersion) as error:
        decode_fetch_request(frame)
    assert (error.value.api_key, error.value.api_version) == (1, version)
    with pytest.raises(UnsupportedVersion):
        encode_fetch_request(request(version, []))
    with pytest.raises(UnsupportedVersion):
        encode_fetch_response(version, 7, 0, [])


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_response_literal_bytes_encode(version: int) -> None:
    assert encode_fetch_response(version, 7, 1000, [ResponseTopic(b"a", MADE_UP * 2)]) == RESPONSES[version]


def test_response_without_topics_is_kip_219_s_empty_answer() -> None:
    assert encode_fetch_response(3, 7, 1000, []) == bytes.fromhex("0000000c 00000007 000003e8 00000000")


def test_response_topics_literal_bytes_encode() -> None:
    assert encode_response_topics(3, [ResponseTopic(b"a", MADE_UP * 2)]) == MADE_UP_TOPICS
    assert encode_response_topics(3, []) == b""


@pytest.mark.parametrize("size", [-1, 1, 256, 65_536, 16_777_216])
def test_response_topics_that_announce_records_are_refused(size: int) -> None:
    """A size left in a cached header would make a follower read the next topic as records; and null is not empty."""
    topics = [ResponseTopic(b"before", MADE_UP), ResponseTopic(b"a", MADE_UP + RESPONSE_ENTRY.pack(6, 0, 258, size))]
    with pytest.raises(ValueError, match="the entries of topic b'a' announce some"):
        encode_response_topics(3, topics)
    with pytest.raises(ValueError, match="the entries of topic b'a' announce some"):
        encode_fetch_response(3, 7, 0, topics)
