# SPDX-License-Identifier: Apache-2.0
"""Records of whole Fetch answers and Produce requests, made by kafka-python, counted as they pass."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceRequest

from tests.protocol.test_batch_counter import GZIP, NONE, built
from tests.protocol.wire import compact_string, fetch_response, frame, produce, string, varint
from weir.protocol import record_counts
from weir.protocol.header import FETCH, PRODUCE, SASL_HANDSHAKE, SHARE_FETCH
from weir.protocol.record_counts import RecordCounts, counts_of

Topic = FetchResponse.FetchableTopicResponse
Partition = Topic.PartitionData
Produced = ProduceRequest.TopicProduceData

texts = st.text(max_size=12)
ids = st.integers(1, 2**128 - 1).map(lambda value: UUID(int=value))
record_sizes = st.none() | st.lists(st.integers(0, 50), max_size=4)  # None: null records
topics = st.lists(st.tuples(texts, ids, st.lists(record_sizes, max_size=4)), max_size=4)
cuts = st.lists(st.integers(0, 3000), max_size=6).map(tuple)


def batch(sizes: list[int] | None) -> bytes | None:
    return (
        None if sizes is None else b"".join((built(2, NONE, [1] * len(sizes)), built(2, GZIP, sizes))) if sizes else b""
    )


def made(api_key: int, version: int) -> RecordCounts:
    counts = counts_of(api_key, version)
    assert counts is not None
    return counts


def feed(counts: RecordCounts, data: bytes, cuts: tuple[int, ...] = ()) -> RecordCounts:
    """Feed `data`, a frame and more, in pieces; no byte beyond the frame may be taken."""
    frame_size = counts.left = 4 + int.from_bytes(data[:4], "big")
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    taken = 0
    for begin, end in pairwise(edges):
        if taken == begin:
            taken += counts.see(memoryview(data)[begin:end])
    assert (taken, counts.left) == (frame_size, 0)
    return counts


def expected(
    version: int, first_with_ids: int, topics: list[tuple[str, UUID, list[list[int] | None]]]
) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for name, topic_id, partitions in topics:
        for sizes in partitions:
            if sizes:
                counted = found.setdefault(topic_id.bytes if version >= first_with_ids else name.encode(), [0, 0])
                counted[0] += 2 * len(sizes)
                counted[1] += len(batch(sizes) or b"")
    return found


transactions = st.builds(Partition.AbortedTransaction, producer_id=st.integers(0, 9), first_offset=st.integers(0, 9))
leaders = st.none() | st.builds(Partition.LeaderIdAndEpoch, leader_id=st.integers(0, 9), leader_epoch=st.integers(0, 9))


@pytest.mark.long
@given(
    version=st.integers(4, 18),
    topics=topics,
    aborted=st.none() | st.lists(transactions, max_size=2),
    leader=leaders,
    cuts=cuts,
)
def test_a_fetch_answer_in_any_pieces(
    version: int,
    topics: list[tuple[str, UUID, list[list[int] | None]]],
    aborted: Any,
    leader: Any,
    cuts: tuple[int, ...],
) -> None:
    answer = FetchResponse(
        responses=[
            Topic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    Partition(
                        partition_index=index, records=batch(sizes), aborted_transactions=aborted, current_leader=leader
                    )
                    for index, sizes in enumerate(partitions)
                ],
            )
            for name, topic_id, partitions in topics
        ],
        version=version,
    )
    tags = b"\x00" if version >= 12 else b""
    data = frame(struct.pack(">i", 5) + tags + answer.encode(version=version))
    counts = made(FETCH, version)
    feed(counts, data + b"next", cuts)
    assert (counts.topics, counts.fault) == (expected(version, 13, topics), None)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_fetch_answer_of_an_old_version(version: int) -> None:
    messages = built(1, NONE, [3, 4, 5])
    data = fetch_response(1, version=version, topics=((b"a", ((0, 7, messages), (1, 7, messages))), (b"b", ())))
    counts = made(FETCH, version)
    assert feed(counts, data, tuple(range(len(data)))).topics == {b"a": [6, 2 * len(messages)]}
    assert counts.fault is None


@given(version=st.integers(3, 13), topics=topics, transactional=st.none() | texts, cuts=cuts)
def test_a_produce_request_in_any_pieces(
    version: int,
    topics: list[tuple[str, UUID, list[list[int] | None]]],
    transactional: str | None,
    cuts: tuple[int, ...],
) -> None:
    asked = ProduceRequest(
        transactional_id=transactional,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            Produced(
                name=name,
                topic_id=topic_id,
                partition_data=[
                    Produced.PartitionProduceData(index=index, records=batch(sizes))
                    for index, sizes in enumerate(partitions)
                ],
            )
            for name, topic_id, partitions in topics
        ],
        version=version,
    )
    asked.with_header(correlation_id=5, client_id="connector-producer-files-0")
    data = asked.encode(version=version, header=True, framed=True)
    counts = made(PRODUCE, version)
    feed(counts, data + b"next", cuts)
    assert (counts.topics, counts.fault) == (expected(version, 13, topics), None)


def test_a_produce_request_of_an_old_version() -> None:
    messages = built(0, NONE, [3, 4, 5])
    rest = struct.pack(">ii", 1000, 1) + string(b"a") + struct.pack(">iii", 1, 0, len(messages)) + messages
    counts = made(PRODUCE, 2)
    assert feed(counts, produce(1, 1, records=rest)).topics == {b"a": [3, len(messages)]}


def test_what_has_no_known_layout_is_not_counted() -> None:
    unknown = (FETCH, 19), (FETCH, -1), (PRODUCE, 14), (PRODUCE, -1), (SASL_HANDSHAKE, 1)
    assert [counts_of(*one) for one in unknown] == [None] * len(unknown)


@given(version=st.integers(0, 18), data=st.binary(max_size=200), is_produce=st.booleans(), cuts=cuts)
def test_any_bytes_pass_to_the_end_of_their_frame(
    version: int, data: bytes, is_produce: bool, cuts: tuple[int, ...]
) -> None:
    counts = made(PRODUCE, min(version, 13)) if is_produce else made(FETCH, version)
    feed(counts, frame(data) + b"next", cuts)
    assert counts.fault in (None, "frame", "partitions", "batch")


def test_a_corrupt_batch_costs_the_count_of_its_partition_alone() -> None:
    good = built(2, NONE, [3, 4])
    corrupt = good + b"\x00" * 100
    data = fetch_response(1, version=4, topics=((b"a", ((0, 7, corrupt), (1, 7, good))),))
    counts = feed(made(FETCH, 4), data)
    assert (counts.topics, counts.fault) == ({b"a": [4, 2 * len(good)]}, "batch")


def test_an_array_that_cannot_fit_is_not_walked() -> None:
    body = struct.pack(">iii", 5, 0, 2**31 - 1) + bytes(100)
    assert feed(made(FETCH, 1), frame(body) + b"x").fault == "frame"
    counts = made(FETCH, 1)
    counts.see(memoryview(frame(body))[:16])
    assert counts.fault == "frame"


def test_the_partitions_and_topics_of_one_frame_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_counts, "MOST_TOPICS", 2)
    good = built(2, NONE, [3])
    data = fetch_response(
        1, version=4, topics=tuple((name, ((0, 7, good), (1, 7, good))) for name in (b"a", b"b", b"c", b"d"))
    )
    assert {name: counted[0] for name, counted in feed(made(FETCH, 4), data).topics.items()} == {
        b"a": 2,
        b"b": 2,
        b"": 4,
    }
    monkeypatch.setattr(record_counts, "MOST_PARTITIONS", 4)
    counts = feed(made(FETCH, 4), data)
    assert (counts.topics, counts.fault) == ({b"a": [2, 2 * len(good)], b"b": [2, 2 * len(good)]}, "partitions")


def test_records_that_pass_the_end_of_the_frame_are_not_counted() -> None:
    good = built(2, NONE, [3])
    data = bytearray(fetch_response(1, version=4, topics=((b"a", ((0, 7, good),)),)))
    size_at = len(data) - len(good) - 4
    data[size_at : size_at + 4] = struct.pack(">i", len(good) + 1)
    counts = feed(made(FETCH, 4), bytes(data))
    assert (counts.topics, counts.fault) == ({}, "frame")


def test_topic_without_a_whole_batch_is_not_counted() -> None:
    data = fetch_response(1, version=4, topics=((b"a", ((0, 7, built(2, NONE, [3])[:-1]),)),))
    counts = feed(made(FETCH, 4), data)
    assert (counts.topics, counts.fault) == ({}, None)


def test_records_whose_size_is_a_varint_of_two_bytes_are_counted() -> None:
    """The first byte of 127 + 1 is 0x80, which alone would be as much."""
    good = next(one for size in range(100) if len(one := built(2, NONE, [size])) == 127)
    answer = FetchResponse(
        responses=[Topic(topic="a", partitions=[Partition(partition_index=0, records=good)])], version=12
    )
    data = frame(struct.pack(">i", 5) + b"\x00" + answer.encode(version=12))
    assert feed(made(FETCH, 12), data).topics == {b"a": [1, 127]}


def test_a_varint_that_does_not_end_is_a_fault() -> None:
    data = frame(struct.pack(">i", 5) + varint(0) + struct.pack(">ihi", 0, 0, 0) + b"\xff" * 20)
    assert feed(made(FETCH, 12), data + b"x").fault == "frame"


def share_fetched(number: int, acquired: list[tuple[int, int]], records: bytes | None, topic_id: UUID) -> bytes:
    """A ShareFetch answer (v1, v2) with one partition: the records, and which of them were acquired."""
    ranges = b"".join(struct.pack(">qqh", first, last, 1) + b"\x00" for first, last in acquired)
    partition = struct.pack(">ih", 0, 0) + compact_string(None) + struct.pack(">h", 0) + compact_string(b"why")
    partition += struct.pack(">ii", 1, 0) + b"\x00" + compact_string(records) + varint(len(acquired) + 1) + ranges
    topic = topic_id.bytes + varint(2) + partition + b"\x00" + b"\x00"
    head = struct.pack(">i", number) + b"\x00" + struct.pack(">ih", 0, 0) + compact_string(None)
    return frame(head + struct.pack(">i", 30_000) + varint(2) + topic + varint(1) + b"\x00")


@pytest.mark.long
@given(cuts)
def test_records_acquired_by_a_share_groups_member_are_counted(cuts: tuple[int, ...]) -> None:
    """It is given whole batches, of which other members may have some records."""
    topic_id, records = UUID(int=5), built(2, NONE, [50] * 40)
    for version in (1, 2):
        counts = counts_of(SHARE_FETCH, version)
        assert counts is not None
        feed(counts, share_fetched(1, [(0, 9), (30, 34)], records, topic_id), cuts)
        assert (counts.topics, counts.fault) == ({topic_id.bytes: [15, len(records)]}, None)
        counts = counts_of(SHARE_FETCH, version)
        assert counts is not None
        feed(counts, share_fetched(1, [], None, topic_id), cuts)
        assert (counts.topics, counts.fault) == ({}, None)
    assert counts_of(SHARE_FETCH, 3) is None
