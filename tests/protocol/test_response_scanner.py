# SPDX-License-Identifier: Apache-2.0
"""Fetch responses scanned as they pass: what goes out and what is seen, for every chunking."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import fetch_data
from tests.protocol.fetch_data import (
    NO_TAGS,
    OLD_VERSIONS,
    UNKNOWN_TAG,
    VERSIONS,
    Partition,
    Topics,
    batch,
    feed,
    pieces,
    response,
    scanned,
    single_bytes,
    with_ids,
)
from tests.protocol.wire import tag_buffer
from weir.protocol.errors import CorrelationMismatch, UnsupportedVersion
from weir.protocol.fetch_response import ResponseTopic, encode_response_topics, made_up_entries
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, FetchResponseScanner, RecordsSeen, ScannedTopic

MADE_UP: Topics = [
    (b"held", [Partition(0, 0, 258, b""), Partition(1, 0, 7, b"")]),
    (b"held-2", [Partition(0, 0, 9, b"")]),
]


def encoded(version: int, made_up: Topics) -> bytes:
    return encode_response_topics(
        version,
        [
            ResponseTopic(name, made_up_entries(version, [(one.partition, one.high_watermark) for one in partitions]))
            for name, partitions in with_ids(version, made_up)
        ],
    )


APPENDED = encoded(3, MADE_UP)

TOPICS: Topics = [
    (b"orders", [Partition(0, 0, 7, batch(100) + batch(60)[:20]), Partition(1, 3, -1, None), Partition(2, 0, 9, b"")]),
    (b"idle", [Partition(partition, 0, 5, b"") for partition in range(9)]),
    (b"nothing", []),
    (b"more", [Partition(4, 0, 9, b""), Partition(5, 0, 9, batch(26, magic=1)), Partition(6, 0, 9, b"x")]),
]

RESPONSE_V0 = bytes.fromhex(
    "00000036 00000007 00000001"  # 54 bytes, correlation id, one topic
    "0002 6162 00000002"  # "ab", two partitions
    "00000005 0000 0000000000000102 00000002 beef"
    "00000006 0003 ffffffffffffffff 00000000"
)
RESPONSE_V1 = bytes.fromhex("0000003a 00000007 00000064 00000001") + RESPONSE_V0[12:]
HEADERS = bytes.fromhex("00000005 0000 0000000000000102 00000002 00000006 0003 ffffffffffffffff 00000000")


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_response_literal_bytes_are_seen_and_pass_unchanged(version: int) -> None:
    frame = RESPONSE_V1 if version >= 1 else RESPONSE_V0
    scanner = FetchResponseScanner(version, 7)
    assert feed(scanner, [frame]) == frame
    assert scanner.done
    assert scanner.topics == [ScannedTopic(b"ab", HEADERS, [RecordsSeen(5, 2, complete_bytes=2)])]
    assert scanner.frame_size == len(frame) - 4
    assert scanner.head.throttle_time_ms == (100 if version >= 1 else 0)


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_response_literal_bytes_grow_by_the_appended_topics(version: int) -> None:
    """The frame's size and the topics count are patched, 4 bytes further on in v1 and above."""
    frame = RESPONSE_V1 if version >= 1 else RESPONSE_V0
    head = bytes.fromhex("00000086 00000007 00000064 00000003" if version >= 1 else "00000082 00000007 00000003")
    scanner = FetchResponseScanner(version, 7, Expected(APPENDED, len(MADE_UP)))
    assert len(APPENDED) == 0x86 - 0x3A == 0x82 - 0x36
    assert feed(scanner, [frame]) == head + frame[len(head) :] + APPENDED
    assert scanner.frame_size == len(frame) - 4
    assert scanner.topics == [ScannedTopic(b"ab", HEADERS, [RecordsSeen(5, 2, complete_bytes=2)])]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("appended", [[], MADE_UP], ids=["as it came", "appended"])
def test_response_without_topics_is_done_with_its_head(version: int, appended: Topics) -> None:
    scanner = FetchResponseScanner(version, 7, Expected(encoded(version, appended), len(appended)))
    sent = feed(scanner, [response(version, 7, [])])
    assert scanner.done
    assert scanner.topics == []
    assert sent == grown(version, [], appended)


@pytest.mark.parametrize("version", VERSIONS)
def test_response_empty_for_a_throttled_client_stays_empty(version: int) -> None:
    """KIP-219: a full fetch may be answered so; with some of its partitions alone a follower refuses the answer."""
    empty = response(version, 7, [], throttle_time_ms=1)
    for chunks in ([empty], single_bytes(empty)):
        scanner = FetchResponseScanner(version, 7, Expected(encoded(version, MADE_UP), len(MADE_UP)))
        sent = feed(scanner, chunks)
        assert scanner.done
        assert sent == (empty if version >= 1 else grown(version, [], MADE_UP))  # v0 has no throttle_time_ms


def grown(version: int, topics: Topics, appended: Topics, *, throttle_time_ms: int = 0, tags: bytes = NO_TAGS) -> bytes:
    """The response as a broker would have written it had it had the appended topics too."""
    stays_empty = not topics and throttle_time_ms and version >= 1
    both = [*topics, *([] if stays_empty else with_ids(version, appended))]
    return response(version, 7, both, throttle_time_ms=throttle_time_ms, tags=tags)


def test_response_whole_in_one_view_passes_as_that_view() -> None:
    """No copy is made of what does not change."""
    frame = response(3, 7, TOPICS)
    view = memoryview(frame)
    buffers, used = FetchResponseScanner(3, 7).receive(view)
    assert used == len(frame)
    assert [type(buffer) for buffer in buffers] == [memoryview]
    assert buffers[0] == view


def test_response_appended_to_is_a_slice_but_for_head_and_tail() -> None:
    frame = response(3, 7, TOPICS)
    buffers, _ = FetchResponseScanner(3, 7, Expected(APPENDED, len(MADE_UP))).receive(memoryview(frame))
    assert [type(buffer) for buffer in buffers] == [bytes, memoryview, bytes]
    assert buffers[1] == frame[16:]
    assert buffers[2] is APPENDED


def test_response_followed_by_another_takes_only_its_own_bytes() -> None:
    frame = response(3, 7, TOPICS)
    scanner = FetchResponseScanner(3, 7, Expected(APPENDED, len(MADE_UP)))
    buffers, used = scanner.receive(memoryview(frame + b"the next response"))
    assert used == len(frame)
    assert b"".join(buffers) == grown(3, TOPICS, MADE_UP)
    assert scanner.done
    assert scanner.receive(memoryview(b"the next response")) == ([], 0)


@pytest.mark.parametrize("at", range(4, 16))
def test_response_head_is_held_back_until_it_can_be_patched(at: int) -> None:
    frame = response(3, 7, TOPICS)
    scanner = FetchResponseScanner(3, 7, Expected(APPENDED, len(MADE_UP)))
    assert scanner.receive(memoryview(frame[:at])) == ([], at)
    buffers, used = scanner.receive(memoryview(frame[at:]))
    assert used == len(frame) - at
    assert b"".join(buffers) == grown(3, TOPICS, MADE_UP)


def test_response_empty_view_changes_nothing() -> None:
    scanner = FetchResponseScanner(3, 7)
    frame = response(3, 7, TOPICS)
    sent = b""
    for chunk in single_bytes(frame):
        sent += feed(scanner, [b"", chunk])
    assert sent == frame
    assert scanner.topics == scanned(TOPICS, ())


def test_response_to_another_request_is_a_mismatch_at_once() -> None:
    """Its correlation id tells so before anything of it is sent."""
    frame = response(3, 8, TOPICS)
    scanner = FetchResponseScanner(3, 7)
    for chunk in single_bytes(frame[:15]):
        assert scanner.receive(memoryview(chunk)) == ([], 1)
    with pytest.raises(CorrelationMismatch) as error:
        scanner.receive(memoryview(frame[15:16]))
    assert (error.value.expected, error.value.received) == (7, 8)


def test_scanner_of_another_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersion):
        FetchResponseScanner(19, 7)


def test_records_are_walked_only_in_topics_asked_for() -> None:
    scanner = FetchResponseScanner(3, 7, Expected(walk={b"orders"}))
    feed(scanner, [response(3, 7, TOPICS)])
    assert scanner.topics == scanned(TOPICS, {b"orders"})
    assert scanner.topics[0].records == [
        RecordsSeen(0, 120, complete_bytes=100, batches=1, cut_bytes=20, smallest=100, largest=100, next_batch_size=60)
    ]
    assert scanner.topics[3].records == [RecordsSeen(5, 26, complete_bytes=26), RecordsSeen(6, 1, complete_bytes=1)]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_records_cut_tail_is_told_from_whole_batches(magic: int) -> None:
    """What a follower throws away, and the size that the next cap has to reach."""
    records = batch(100, magic=magic) + batch(300, magic=magic) + batch(500, magic=magic)[:40]
    scanner = FetchResponseScanner(3, 7, Expected(walk={b"t"}))
    feed(scanner, [response(3, 7, [(b"t", [Partition(1, 0, 9, records)])])])
    assert scanner.topics[0].records == [
        RecordsSeen(1, 440, complete_bytes=400, batches=2, cut_bytes=40, smallest=100, largest=300, next_batch_size=500)
    ]


@pytest.mark.long
@pytest.mark.parametrize("version", [3, 7, 12, 17])
@pytest.mark.parametrize("active", [(), (0,), (1999,), (1000,), (3, 4, 5, 900), tuple(range(0, 2000, 2))])
@pytest.mark.parametrize("chunk", [1_000_000, 4096, 37])
def test_topic_of_2000_partitions_is_whole_wherever_records_are(
    version: int, active: tuple[int, ...], chunk: int
) -> None:
    """Runs without records are taken in one step, as far as they hold and the chunk goes."""
    partitions = [Partition(p, 0, p, batch(50) if p in active else b"") for p in range(2000)]
    unnamed: Topics = [(b"before", partitions[:1]), (b"large", partitions), (b"after", [Partition(0, 0, 1, b"")])]
    topics = with_ids(version, unnamed)
    walk = {topics[1][0]}
    frame = response(version, 7, topics)
    scanner = FetchResponseScanner(version, 7, Expected(walk=walk))
    sent = feed(scanner, [frame[at : at + chunk] for at in range(0, len(frame), chunk)])
    assert sent == frame
    assert scanner.topics == scanned(topics, walk, version)


@pytest.mark.parametrize("size", [0x0001, 0x0100, 0x0101, 0x10000, 0x010101, 0x00FF, 0xFF00, 0xFFFF, 0xFFFFFF])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_records_size_with_bytes_like_none_is_still_a_size(size: int, count: int) -> None:
    """A run is taken for idle by its sizes' bytes: none of 0x00 and 0xff alone may deceive it but 0 and -1."""
    idle = [Partition(p, 0, 5, b"") for p in range(count - 1)]
    topics: Topics = [(b"t", [*idle, Partition(9, 0, 5, bytes(size))])]
    scanner = FetchResponseScanner(3, 7)
    feed(scanner, [response(3, 7, topics)])
    assert scanner.topics == scanned(topics, ())


@pytest.mark.parametrize("count", [1, 2, 8])
def test_records_size_of_four_like_bytes_is_still_a_size(count: int) -> None:
    """0x01010101, 16 MB: all that tells it from 0 and -1 is what the bytes are."""
    size = 0x01010101
    headers = b"".join(RESPONSE_ENTRY.pack(p, 0, 5, size) for p in range(count))
    body = struct.pack(">iiihsi", 7, 0, 1, 1, b"t", count) + headers[:18]
    scanner = FetchResponseScanner(3, 7)
    sent = feed(scanner, [struct.pack(">i", len(body) + len(headers) - 18 + count * size) + body + headers])
    assert sent[4:] == body + headers
    assert not scanner.done


def test_topic_name_of_32767_bytes_is_seen_in_any_chunks() -> None:
    topics: Topics = [(b"n" * 32_767, [Partition(0, 0, 1, batch(30))]), (b"", [Partition(0, 0, 1, b"")])]
    frame = response(3, 7, topics)
    for chunk in (1, 1000, len(frame)):
        scanner = FetchResponseScanner(3, 7)
        assert feed(scanner, [frame[at : at + chunk] for at in range(0, len(frame), chunk)]) == frame
        assert scanner.topics == scanned(topics, ())


@pytest.mark.long
@given(
    st.sampled_from(VERSIONS),
    fetch_data.topics,
    st.sampled_from(([], MADE_UP)),
    st.booleans(),
    st.lists(st.integers(0, 2000), max_size=8),
    st.integers(0, 2**31 - 1),
    st.sampled_from((NO_TAGS, tag_buffer((0, b"e" * 200)), tag_buffer((0, b""), UNKNOWN_TAG))),
)
def test_response_in_any_chunks_gives_equal_output_and_topics(
    version: int,
    topics: Topics,
    appended: Topics,
    walked: bool,
    cuts: list[int],
    throttle_time_ms: int,
    tags: bytes,
) -> None:
    topics = with_ids(version, topics)
    frame = response(version, 7, topics, throttle_time_ms=throttle_time_ms, tags=tags)
    walk = {name for name, _ in topics} if walked else set[bytes]()
    expected = grown(version, topics, appended, throttle_time_ms=throttle_time_ms, tags=tags)
    for chunks in ([frame], single_bytes(frame), pieces(frame, cuts)):
        scanner = FetchResponseScanner(version, 7, Expected(encoded(version, appended), len(appended), walk))
        assert feed(scanner, chunks) == expected
        assert scanner.done
        assert scanner.topics == scanned(topics, walk, version)
        assert scanner.frame_size == struct.unpack_from(">i", frame)[0]
        assert scanner.head.throttle_time_ms == (throttle_time_ms if version >= 1 else 0)


@pytest.mark.parametrize("version", [3, 12])
def test_an_answer_is_dense_where_many_topics_have_few_bytes(version: int) -> None:
    empty: Topics = [(b"%08d" % number, [Partition(0, 0, 7, b"")]) for number in range(100)]
    large: Topics = [(b"large", [Partition(1, 0, 7, batch(200_000))])]
    scanner = FetchResponseScanner(version, 7)
    frame = memoryview(response(version, 7, [*empty, *large]))
    seen = []
    for start in range(0, len(frame), 2048):
        scanner.receive(frame[start : start + 2048])
        seen.append(scanner.is_dense)
    assert seen[0]
    assert not any(seen[5:-1])  # the last one ends a topic
    whole = FetchResponseScanner(version, 7)
    whole.receive(frame[:10_000])
    assert not whole.is_dense, "many records follow"


@pytest.mark.parametrize("version", [0, 3, 7, 12, 17])
def test_what_has_come_of_a_response_that_is_broken_off_is_told(version: int) -> None:
    topics = with_ids(version, [(b"a", [Partition(0, 0, 9, batch(100) + batch(60)), Partition(1, 0, 9, batch(80))])])
    frame, walk = response(version, 7, topics), {name for name, _ in topics}
    told = set[int]()
    for size in range(len(frame)):
        scanner = FetchResponseScanner(version, 7, Expected(walk=walk))
        feed(scanner, [frame[:size]])
        came = sum([seen.size for _, _, records, _ in scanner.so_far() for seen in records])
        assert size - (len(frame) - 240) <= came <= min(size, 240)
        told.add(came)
    assert told == set(range(max(told) + 1))
    assert max(told) >= 239
