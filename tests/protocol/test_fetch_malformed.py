# SPDX-License-Identifier: Apache-2.0
"""Fetch requests whose lengths and counts do not add up: always MalformedFrame, at the field that is wrong."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import OLD_VERSIONS, REQUEST_ENTRY, request
from weir.protocol.errors import MalformedFrame, ProtocolError
from weir.protocol.fetch_request import decode_fetch_request, encode_fetch_request
from weir.protocol.request_topics import RequestTopic

ENTRY = REQUEST_ENTRY.pack(5, 258, 2**20)
TWO_TOPICS = [RequestTopic(b"abc", ENTRY * 2, 16), RequestTopic(b"d", ENTRY, 16)]

# Offsets in a v3 frame with a client id of one byte, counted behind the size field.
TOPICS_COUNT_AT = 8 + 3 + 16
NAME_LENGTH_AT = TOPICS_COUNT_AT + 4
PARTITIONS_COUNT_AT = NAME_LENGTH_AT + 2 + 3


def frame(version: int = 3) -> bytes:
    return encode_fetch_request(request(version, TWO_TOPICS))[4:]


def changed(offset: int, layout: str, value: int) -> bytes:
    altered = bytearray(frame())
    struct.pack_into(layout, altered, offset, value)
    return bytes(altered)


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_request_cut_anywhere_is_malformed(version: int) -> None:
    whole = frame(version)
    for size in range(len(whole)):
        with pytest.raises(MalformedFrame) as error:
            decode_fetch_request(whole[:size])
        assert 0 <= error.value.offset <= size


@pytest.mark.parametrize("version", OLD_VERSIONS)
@pytest.mark.parametrize("extra", [1, 2, 1000])
def test_request_with_trailing_bytes_is_malformed(version: int, extra: int) -> None:
    whole = frame(version)
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(whole + bytes(extra))
    assert error.value.offset == len(whole)


@pytest.mark.parametrize("count", [-(2**31), -1, 3, 100, 2**31 - 1])
def test_request_wrong_count_of_topics_is_malformed(count: int) -> None:
    with pytest.raises(MalformedFrame):
        decode_fetch_request(changed(TOPICS_COUNT_AT, ">i", count))


def test_request_count_of_topics_beyond_the_frame_fails_there() -> None:
    """Not after a walk over what is there, and without room being made for two billion topics."""
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(changed(TOPICS_COUNT_AT, ">i", 2**31 - 1))
    assert error.value.offset == TOPICS_COUNT_AT


@pytest.mark.parametrize("length", [-(2**15), -1, 200, 32_767])
def test_request_wrong_length_of_a_topic_name_is_malformed(length: int) -> None:
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(changed(NAME_LENGTH_AT, ">h", length))
    assert error.value.offset == NAME_LENGTH_AT


@pytest.mark.parametrize("count", [-(2**31), -1, 100, 2**27, 2**28, 2**31 - 1])
def test_request_wrong_count_of_partitions_is_malformed(count: int) -> None:
    """2**28 entries of 16 bytes are 0 in 32 bits."""
    with pytest.raises(MalformedFrame) as error:
        decode_fetch_request(changed(PARTITIONS_COUNT_AT, ">i", count))
    assert error.value.offset == PARTITIONS_COUNT_AT


@pytest.mark.long
@given(st.sampled_from(OLD_VERSIONS), fetch_data.request_topics, st.data())
def test_changed_request_decodes_or_raises_a_protocol_error(
    version: int, topics: list[RequestTopic], data: st.DataObject
) -> None:
    altered = bytearray(encode_fetch_request(request(version, topics))[4:])
    for offset in data.draw(st.lists(st.integers(0, len(altered) - 1), max_size=4)):
        altered[offset] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_fetch_request(bytes(altered))
    except ProtocolError:
        return
    assert encode_fetch_request(decoded)[4:] == altered
