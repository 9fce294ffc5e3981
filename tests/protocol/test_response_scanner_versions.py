# SPDX-License-Identifier: Apache-2.0
"""What newer Fetch versions add to responses: compact counts, tags, transactions, and a head that can be replaced."""

import struct
import tracemalloc

import pytest

from tests.protocol.fetch_data import (
    NO_TAGS,
    UNKNOWN_TAG,
    VERSIONS,
    Partition,
    Topics,
    batch,
    feed,
    response,
    scanned,
    single_bytes,
    with_ids,
)
from tests.protocol.wire import frame, tag_buffer, varint
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_response import ResponseTopic, encode_response_topics, made_up_entries
from weir.protocol.response_scanner import Expected, FetchResponseScanner, ResponseHead

FLEXIBLE = tuple(version for version in VERSIONS if version >= 12)
WITH_SESSIONS = tuple(version for version in VERSIONS if version >= 7)
LEFT_OUT: Topics = [(b"left", [Partition(4, 0, 99, b"")])]
TOPICS: Topics = [(b"orders", [Partition(0, 0, 7, batch(40)), Partition(1, 0, 9, b"")])]
BUFFER = 64 * 1024


def appended(version: int) -> bytes:
    ((name, (one,)),) = with_ids(version, LEFT_OUT)
    entries = made_up_entries(version, [(one.partition, one.high_watermark)])
    return encode_response_topics(version, [ResponseTopic(name, entries)])


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "version"),
    [*((count, version) for count in (125, 126, 127, 128) for version in FLEXIBLE), (16_382, 12)],
)
def test_compact_count_of_topics_may_grow_by_a_byte(count: int, version: int) -> None:
    """127 takes one byte, 128 two; 16,383 two and 16,384 three. The count that is written is one more."""
    topics = [(b"%05d" % topic, [Partition(0, 0, 7, b"")]) for topic in range(count)]
    received = response(version, 7, with_ids(version, topics))
    scanner = FetchResponseScanner(version, 7, Expected(appended(version), 1))
    assert feed(scanner, [received]) == response(version, 7, with_ids(version, [*topics, *LEFT_OUT]))
    assert scanner.done


@pytest.mark.parametrize("version", WITH_SESSIONS)
def test_head_is_given_out_and_replaced_once(version: int) -> None:
    topics = with_ids(version, TOPICS)
    received = response(version, 7, topics, throttle_time_ms=5, error_code=71, session_id=30)
    for chunks in ([received], single_bytes(received)):
        heads: list[ResponseHead] = []

        def patch(head: ResponseHead, heads: list[ResponseHead] = heads) -> ResponseHead:
            heads.append(head)
            return ResponseHead(6, 0, 40)

        scanner = FetchResponseScanner(version, 7, Expected(appended(version), 1, head_patch=patch))
        expected = [*topics, *with_ids(version, LEFT_OUT)]  # the error is gone, so there is room for them
        assert feed(scanner, chunks) == response(version, 7, expected, throttle_time_ms=6, session_id=40)
        assert heads == [scanner.head] == [ResponseHead(5, 71, 30)]
        assert scanner.topics == scanned(topics, (), version)


@pytest.mark.parametrize("version", WITH_SESSIONS)
def test_nothing_is_appended_to_an_error(version: int) -> None:
    topics = with_ids(version, TOPICS)
    received = response(version, 7, topics, error_code=70)
    assert feed(FetchResponseScanner(version, 7, Expected(appended(version), 1)), [received]) == received
    scanner = FetchResponseScanner(
        version, 7, Expected(appended(version), 1, head_patch=lambda head: head._replace(error_code=71))
    )
    assert feed(scanner, [response(version, 7, topics)]) == response(version, 7, topics, error_code=71)


@pytest.mark.parametrize("version", range(7))
def test_head_is_replaced_as_far_as_the_version_has_its_fields(version: int) -> None:
    scanner = FetchResponseScanner(version, 7, Expected(head_patch=lambda head: ResponseHead(6, 0, 40)))
    sent = feed(scanner, [response(version, 7, TOPICS, throttle_time_ms=5)])
    assert sent == response(version, 7, TOPICS, throttle_time_ms=6)
    assert scanner.head == ResponseHead(5 if version >= 1 else 0)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_header_tags_pass_and_too_many_are_malformed(version: int) -> None:
    whole = response(version, 7, with_ids(version, TOPICS))
    larger = response(version, 7, with_ids(version, [*TOPICS, *LEFT_OUT]))
    few, many = tag_buffer(UNKNOWN_TAG), tag_buffer((5, b"x" * 5000))
    received = frame(whole[4:8] + few + whole[9:])
    for chunks in ([received], single_bytes(received)):
        scanner = FetchResponseScanner(version, 7, Expected(appended(version), 1))
        assert feed(scanner, chunks) == frame(larger[4:8] + few + larger[9:])
    with pytest.raises(MalformedFrame):
        FetchResponseScanner(version, 7).receive(memoryview(frame(whole[4:8] + many + whole[9:])))


@pytest.mark.long
@pytest.mark.parametrize(
    "partition",
    [
        pytest.param(Partition(0, 0, 7, b"", tags=((9, b"t" * 8_000_000),)), id="tag"),
        pytest.param(Partition(0, 0, 7, b"", transactions=40_000), id="transactions"),
    ],
)
@pytest.mark.parametrize("version", [11, 12])
def test_nothing_is_kept_of_what_is_large(version: int, partition: Partition) -> None:
    received = response(version, 7, [(b"t", [partition])])
    buffer = bytearray(BUFFER)
    scanner = FetchResponseScanner(version, 7, Expected(appended(version), 1))
    tracemalloc.start()
    try:
        for at in range(0, len(received), BUFFER):
            size = len(received[at : at + BUFFER])
            buffer[:size] = received[at : at + BUFFER]
            with memoryview(buffer) as view:
                scanner.receive(view[:size])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert scanner.done
    assert scanner.topics == scanned([(b"t", [partition])], (), version)
    assert peak < 4 * BUFFER


TOO_LONG = b"\xff\xff\xff\xff\xff\x01"
HUGE = varint(2**34 - 1)


@pytest.mark.parametrize("broken", [TOO_LONG, HUGE])
@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize(
    "what", ["topics", "name", "partitions", "transactions", "records", "tags", "topic tags", "end"]
)
def test_varint_too_long_or_large_is_malformed_anywhere(version: int, what: str, broken: bytes) -> None:
    one = struct.pack(">ihqqq", 0, 0, 7, 7, -1)
    parts = {
        "head": struct.pack(">i", 7) + NO_TAGS + struct.pack(">ihi", 0, 0, 0),
        "topics": varint(2),
        "name": b"n" * 16 if version >= 13 else varint(2) + b"n",
        "partitions": varint(2),
        "fixed": one,
        "transactions": varint(0),
        "replica": struct.pack(">i", -1),
        "records": varint(1),
        "tags": NO_TAGS,
        "topic tags": NO_TAGS,
        "end": NO_TAGS,
    }
    whole = b"".join(parts.values())
    assert feed(FetchResponseScanner(version, 7), [frame(whole)]) == frame(whole)
    if what == "name" and version >= 13:
        return
    received = frame(b"".join({**parts, what: broken}.values()) + bytes(8))
    errors = set[tuple[str, int]]()
    for chunks in ([received], single_bytes(received)):
        with pytest.raises(MalformedFrame) as error:
            feed(FetchResponseScanner(version, 7), chunks)
        errors.add((error.value.reason, error.value.offset))
    assert len(errors) == 1


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("at", [0, 1])
def test_null_arrays_of_topics_and_partitions_are_malformed(version: int, at: int) -> None:
    """Kafka's own reader refuses them too."""
    head = struct.pack(">i", 7) + NO_TAGS + struct.pack(">ihi", 0, 0, 0)
    topic = varint(2) + (b"n" * 16 if version >= 13 else varint(2) + b"n") + varint(0)
    body = (varint(0) if at == 0 else topic) + NO_TAGS * 4
    with pytest.raises(MalformedFrame):
        feed(FetchResponseScanner(version, 7), [frame(head + body)])
