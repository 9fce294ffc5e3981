# SPDX-License-Identifier: Apache-2.0
"""Fetch responses whose lengths and counts do not add up: one error for all chunkings, and never a byte too many."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import VERSIONS, Partition, Topics, batch, pieces, response, single_bytes, with_ids
from weir.protocol.errors import FrameTooLarge, InvalidFrameSize, MalformedFrame, ProtocolError
from weir.protocol.response_scanner import Expected, FetchResponseScanner, ScannedTopic

TOPICS: Topics = [
    (b"abc", [Partition(0, 0, 7, batch(40)), Partition(1, 0, 7, b""), Partition(2, 0, 7, batch(30))]),
    (b"d", [Partition(0, 0, 7, b""), Partition(1, 0, 7, None)]),
    (b"ef", [Partition(0, 0, 7, batch(30))]),
]

# Offsets in the v3 frame of TOPICS, counted behind the size field.
TOPICS_COUNT_AT = 8
NAME_LENGTH_AT = 12
PARTITIONS_COUNT_AT = NAME_LENGTH_AT + 2 + 3
FIRST_SIZE_AT = PARTITIONS_COUNT_AT + 4 + 14
IDLE_SIZE_AT = FIRST_SIZE_AT + 4 + 40 + 14
IDLE_TOPIC_AT = IDLE_SIZE_AT + 4 + 18 + 30


def outcome(
    version: int, chunks: list[bytes], appended: bytes = b""
) -> tuple[bool, list[ScannedTopic], int] | tuple[type[ProtocolError], str]:
    """What scanning the chunks came to: the result, or the error."""
    scanner = FetchResponseScanner(version, 7, Expected(appended, 1 if appended else 0, {b"abc"}))
    taken = 0
    try:
        for chunk in chunks:
            taken += scanner.receive(memoryview(chunk))[1]
    except ProtocolError as error:
        return type(error), str(error)
    if scanner.done:
        assert taken == scanner.frame_size + 4
    return scanner.done, scanner.topics if scanner.done else [], scanner.head.throttle_time_ms


def with_size(frame: bytes, size: int) -> bytes:
    return struct.pack(">i", size) + frame[4:]


def error_of(frame: bytes, version: int = 3) -> MalformedFrame:
    with pytest.raises(MalformedFrame) as whole:
        FetchResponseScanner(version, 7, Expected(walk={b"abc"})).receive(memoryview(frame))
    assert outcome(version, single_bytes(frame)) == (MalformedFrame, str(whole.value))
    return whole.value


def changed(offset: int, layout: str, value: int) -> MalformedFrame:
    frame = bytearray(response(3, 7, TOPICS))
    struct.pack_into(layout, frame, 4 + offset, value)
    return error_of(bytes(frame))


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_response_frame_cut_anywhere_is_malformed(version: int) -> None:
    """The size field says less than the counts within: what follows is the next response, not this one's."""
    whole = response(version, 7, with_ids(version, TOPICS))
    for size in range(4, len(whole) - 4):
        error = error_of(with_size(whole, size)[: size + 4], version)
        assert 0 <= error.offset <= size
        error_of(with_size(whole, size), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_response_stream_cut_anywhere_is_not_done(version: int) -> None:
    whole = response(version, 7, with_ids(version, TOPICS))
    for size in range(len(whole)):
        assert outcome(version, [whole[:size]])[0] is False


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3])
def test_response_without_room_for_a_correlation_id_is_invalid(size: int) -> None:
    frame = with_size(response(3, 7, TOPICS), size)
    for chunks in ([frame], single_bytes(frame)):
        assert outcome(3, chunks)[0] is InvalidFrameSize
    with pytest.raises(InvalidFrameSize) as error:
        FetchResponseScanner(3, 7).receive(memoryview(frame))
    assert error.value.size == size


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("extra", [1, 2, 1000])
@pytest.mark.parametrize("topics", [[], TOPICS])
def test_response_with_trailing_bytes_is_malformed(version: int, extra: int, topics: Topics) -> None:
    whole = response(version, 7, with_ids(version, topics))
    error = error_of(with_size(whole, len(whole) - 4 + extra) + bytes(extra), version)
    assert error.offset == len(whole) - 4
    assert "follow the last topic" in error.reason


@pytest.mark.parametrize("count", [-(2**31), -1, 4, 1000, 2**31 - 1])
def test_response_wrong_count_of_topics_is_malformed(count: int) -> None:
    changed(TOPICS_COUNT_AT, ">i", count)


def test_response_count_of_topics_beyond_the_frame_fails_there() -> None:
    assert changed(TOPICS_COUNT_AT, ">i", 2**31 - 1).offset == TOPICS_COUNT_AT
    assert changed(TOPICS_COUNT_AT, ">i", -1).offset == TOPICS_COUNT_AT


@pytest.mark.parametrize("length", [-(2**15), -1, 32_767])
def test_response_wrong_length_of_a_topic_name_is_malformed(length: int) -> None:
    assert changed(NAME_LENGTH_AT, ">h", length).offset == NAME_LENGTH_AT


def test_response_of_a_missing_topic_name_is_malformed_at_once() -> None:
    """Nothing waits, and nothing is collected, for bytes that the frame cannot have."""
    frame = bytearray(response(3, 7, TOPICS))
    struct.pack_into(">h", frame, 4 + NAME_LENGTH_AT, 32_767)
    with pytest.raises(MalformedFrame):
        FetchResponseScanner(3, 7).receive(memoryview(frame)[: 4 + NAME_LENGTH_AT + 6])


@pytest.mark.parametrize("count", [-(2**31), -1, 100, 2**30, 2**31 - 1])
def test_response_wrong_count_of_partitions_is_malformed(count: int) -> None:
    assert changed(PARTITIONS_COUNT_AT, ">i", count).offset == PARTITIONS_COUNT_AT


@pytest.mark.parametrize("size", [-(2**31), -2, 1000, 2**31 - 1])
@pytest.mark.parametrize("at", [FIRST_SIZE_AT, IDLE_SIZE_AT, IDLE_TOPIC_AT + 7 + 14])
def test_response_wrong_size_of_records_is_malformed(at: int, size: int) -> None:
    assert changed(at, ">i", size).offset == at


def test_response_records_without_room_behind_are_malformed() -> None:
    """It is seen at their size: the partitions behind them have to fit in, too."""
    frame = response(3, 7, [(b"t", [Partition(0, 0, 7, bytes(20)), Partition(1, 0, 7, b"")])])
    size_at = 12 + 3 + 4 + 14
    altered = bytearray(frame)
    struct.pack_into(">i", altered, 4 + size_at, 21)
    assert error_of(bytes(altered)).offset == size_at


def test_response_that_would_outgrow_a_frame_is_too_large() -> None:
    frame = with_size(response(3, 7, TOPICS), 2**31 - 2)
    with pytest.raises(FrameTooLarge) as error:
        FetchResponseScanner(3, 7, Expected(bytes(24), 1)).receive(memoryview(frame))
    assert (error.value.size, error.value.limit) == (2**31 + 22, 2**31 - 1)


@pytest.mark.long
@given(
    st.sampled_from(VERSIONS),
    fetch_data.topics,
    st.lists(st.integers(0, 2000), max_size=6),
    st.sampled_from((b"", bytes(24))),
    st.data(),
)
def test_response_of_changed_bytes_is_the_same_in_any_chunks(
    version: int, topics: Topics, cuts: list[int], appended: bytes, data: st.DataObject
) -> None:
    """And to nothing but a result, an unfinished frame or a ProtocolError."""
    altered = bytearray(response(version, 7, with_ids(version, topics)))
    for offset in data.draw(st.lists(st.integers(0, len(altered) - 1), max_size=3)):
        altered[offset] = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)))
    frame = bytes(altered)
    whole = outcome(version, [frame], appended)
    assert outcome(version, single_bytes(frame), appended) == whole
    assert outcome(version, pieces(frame, cuts), appended) == whole
