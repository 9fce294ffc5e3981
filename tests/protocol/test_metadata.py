# SPDX-License-Identifier: Apache-2.0
"""Metadata as far as topic ids need it, against the codec that kafka-python makes from Kafka's own schemas."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse

from tests.protocol.fetch_data import int16, int32
from weir.protocol.errors import CorrelationMismatch, MalformedFrame
from weir.protocol.metadata import (
    NO_ID,
    MetadataBroker,
    MetadataHead,
    MetadataPartition,
    MetadataTopic,
    decode_api_versions,
    decode_cluster,
    encode_api_versions_request,
    encode_metadata_request,
)

Broker = MetadataResponse.MetadataResponseBroker
Topic = MetadataResponse.MetadataResponseTopic
Partition = Topic.MetadataResponsePartition

versions = st.integers(10, 12)
names = st.text("abc-.", min_size=1, max_size=12)
ids = st.integers(1, 2**128 - 1).map(lambda value: value.to_bytes(16))
nodes = st.lists(int32 | st.just(1), max_size=3) | st.just([1] * 200)  # a count that takes two bytes
partitions = st.builds(
    Partition,
    error_code=int16,
    partition_index=int32,
    leader_id=int32 | st.just(1),
    leader_epoch=int32,
    replica_nodes=nodes,
    isr_nodes=nodes,
    offline_replicas=nodes,
)
brokers = st.builds(Broker, node_id=int32, host=names, port=int32, rack=st.none() | names)
topics = st.tuples(int16, st.none() | names, ids, st.lists(partitions, max_size=3))


def response(
    version: int, found: list[tuple[int, str | None, bytes, list[object]]], brokers: list[object] | None = None
) -> bytes:
    """What a broker answers, without its size; `found` has error, name, id and partitions."""
    whole = MetadataResponse(
        version=version,
        brokers=brokers or [],
        cluster_id="cluster",
        controller_id=3,
        topics=[
            Topic(error_code=error, name=name, topic_id=UUID(bytes=topic_id), is_internal=True, partitions=partitions)
            for error, name, topic_id, partitions in found
        ],
    )
    header = b"\x00\x00\x00\x07" + (b"\x00" if version >= 9 else b"")
    return header + bytes(whole.encode(version=version))


@given(version=versions, asked=st.none() | st.lists(names, max_size=200), topic_ids=st.lists(ids, max_size=3))
def test_request_is_what_kafka_python_reads(version: int, asked: list[str] | None, topic_ids: list[bytes]) -> None:
    by_id = topic_ids if version >= 12 and asked is not None else []
    by_name = None if asked is None else [name.encode() for name in asked]
    frame = encode_metadata_request(version, 7, b"weir", by_name, by_id)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    read = MetadataRequest.decode(frame[4:], version=version, header=True)
    header = read.header
    assert (header.request_api_key, header.request_api_version, header.client_id) == (3, version, "weir")
    shown = None if read.topics is None else [(topic.name, topic.topic_id) for topic in read.topics]
    wanted = [*((name, None) for name in asked or []), *((None, UUID(bytes=topic_id)) for topic_id in by_id)]
    assert shown == (None if asked is None else wanted)
    assert read.allow_auto_topic_creation is False


@given(version=versions, brokers=st.lists(brokers, max_size=3), found=st.lists(topics, max_size=3))
def test_response_of_kafka_python_is_read(
    version: int, brokers: list[object], found: list[tuple[int, str | None, bytes, list[object]]]
) -> None:
    if version < 12:
        found = [(error, name or "", topic_id, partitions) for error, name, topic_id, partitions in found]
    frame = response(version, found, brokers)
    assert list(decode_topics(frame, version, 7)) == [
        MetadataTopic(error, None if name is None else name.encode(), topic_id) for error, name, topic_id, _ in found
    ]


@pytest.mark.long
@given(
    version=st.sampled_from((1, 2, 3, 4, 5, 10, 11, 12)),
    brokers=st.lists(brokers, max_size=3),
    found=st.lists(topics, max_size=3),
    wanted=st.sets(names.map(str.encode)),
)
def test_cluster_in_a_response_of_kafka_python_is_read(
    version: int,
    brokers: list[Any],
    found: list[tuple[int, str | None, bytes, list[Any]]],
    wanted: set[bytes],
) -> None:
    if version < 12:
        found = [(error, name or "", topic_id, partitions) for error, name, topic_id, partitions in found]
    expected: list[MetadataTopic | MetadataPartition] = []
    for error, name, topic_id, _ in found:
        topic = None if name is None else name.encode()
        wanted = wanted if topic is None or len(topic) % 2 else wanted | {topic}
        expected.append(MetadataTopic(error, topic, topic_id if version >= 10 else NO_ID))
    expected = [
        row for topic, of in zip(expected, found, strict=True) for row in (topic, *partition_rows(topic, of[3], wanted))
    ]
    head, rows = decode_cluster(response(version, found, brokers), version, 7, wanted)
    assert head == MetadataHead(
        tuple(MetadataBroker(b.node_id, b.host.encode(), b.port, b.rack and b.rack.encode()) for b in brokers),
        3,
        b"cluster" if version >= 2 else None,
    )
    assert list(rows) == expected


def partition_rows(
    topic: MetadataTopic | MetadataPartition, partitions: list[Any], wanted: set[bytes]
) -> list[MetadataPartition]:
    if not isinstance(topic, MetadataTopic) or topic.name not in wanted:
        return []
    return [
        MetadataPartition(
            one.error_code,
            one.partition_index,
            one.leader_id,
            frozenset(one.replica_nodes),
            frozenset(one.isr_nodes),
        )
        for one in partitions
    ]


@given(version=st.integers(1, 5), asked=st.none() | st.lists(names, max_size=200))
def test_classic_request_is_what_kafka_python_reads(version: int, asked: list[str] | None) -> None:
    by_name = None if asked is None else [name.encode() for name in asked]
    frame = encode_metadata_request(version, 7, b"weir", by_name)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    read = MetadataRequest.decode(frame[4:], version=version, header=True)
    assert (read.header.request_api_version, read.header.client_id) == (version, "weir")
    assert (None if read.topics is None else [topic.name for topic in read.topics]) == asked
    assert version < 4 or read.allow_auto_topic_creation is False


def decode_topics(frame: bytes, version: int, correlation_id: int) -> Iterator[object]:
    return decode_cluster(frame, version, correlation_id, ())[1]


def decode_partitions(frame: bytes, version: int, correlation_id: int) -> Iterator[object]:
    return decode_cluster(frame, version, correlation_id, (b"orders",))[1]


def some_response(version: int = 12) -> bytes:
    partition = Partition(replica_nodes=[1, 2, 3, 4], isr_nodes=[1], offline_replicas=[])
    nameless = None if version == 12 else "gone"
    found = [(0, "orders", b"o" * 16, [partition] * 2), (100, nameless, b"x" * 16, [])]
    return response(version, found, [Broker(host="h")])


def test_response_cut_anywhere_or_too_long_is_malformed() -> None:
    whole = some_response()
    for decode in (decode_topics, decode_partitions):
        for size in range(len(whole)):
            with pytest.raises(MalformedFrame):
                list(decode(whole[:size], 12, 7))
        with pytest.raises(MalformedFrame):
            list(decode(whole + b"\x00", 12, 7))


@given(st.data())
def test_response_with_any_bytes_changed_is_read_or_malformed(data: st.DataObject) -> None:
    altered = bytearray(some_response())
    for at in data.draw(st.lists(st.integers(4, len(altered) - 1), min_size=1, max_size=4)):
        altered[at] = data.draw(st.integers(0, 255))
    for decode in (decode_topics, decode_partitions):
        with contextlib.suppress(MalformedFrame):
            list(decode(bytes(altered), 12, 7))


@pytest.mark.parametrize("version", range(1, 6))
def test_classic_response_cut_anywhere_or_too_long_is_malformed(version: int) -> None:
    whole = some_response(version)
    assert len(list(decode_partitions(whole, version, 7))) == 4
    for size in range(len(whole)):
        with pytest.raises(MalformedFrame):
            list(decode_partitions(whole[:size], version, 7))
    with pytest.raises(MalformedFrame):
        list(decode_partitions(whole + b"\x00", version, 7))


def test_response_with_null_arrays_in_a_partition_is_read() -> None:
    """No version allows them; what matters is that they are not taken for arrays of -1 elements."""
    partition = Partition(replica_nodes=[], isr_nodes=[], offline_replicas=[])
    whole = response(12, [(0, "orders", b"o" * 16, [partition])])
    empty_arrays = b"\x01\x01\x01\x00"
    assert whole.count(empty_arrays) == 1
    altered = whole.replace(empty_arrays, bytes(4))
    assert list(decode_topics(altered, 12, 7)) == [MetadataTopic(0, b"orders", b"o" * 16)]


def test_response_to_another_question_is_refused() -> None:
    with pytest.raises(CorrelationMismatch):
        next(decode_topics(some_response(), 12, 8))
    with pytest.raises(CorrelationMismatch):
        decode_api_versions(some_response(), 8)


def test_api_versions_request_is_what_kafka_python_reads() -> None:
    frame = encode_api_versions_request(7, b"weir")
    read = ApiVersionsRequest.decode(frame[4:], version=0, header=True)
    assert (read.header.correlation_id, read.header.client_id) == (7, "weir")
    assert frame == bytes.fromhex("0000000e 0012 0000 00000007 0004") + b"weir"


def test_api_versions_of_kafka_python_are_read() -> None:
    apis = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=key, max_version=key + 9) for key in (0, 3)]
    whole = b"\x00\x00\x00\x07" + bytes(ApiVersionsResponse(version=0, api_keys=apis).encode(version=0))
    assert decode_api_versions(whole, 7) == {0: (0, 9), 3: (3, 12)}
    for size in range(len(whole)):
        with pytest.raises(MalformedFrame):
            decode_api_versions(whole[:size], 7)
