# SPDX-License-Identifier: Apache-2.0
"""Against the codec that kafka-python makes from Kafka's own schemas: v4 to v18, for any values."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as TheirRequest
from kafka.protocol.consumer import FetchResponse as TheirResponse

from tests.protocol.fetch_data import NO_TAGS, feed, int16, int32, int64, pieces, records
from tests.protocol.wire import frame
from tests.protocol.wire import response as response_frame
from weir.protocol.fetch_request import ForgottenTopic, decode_fetch_request, encode_fetch_request, replica_id_steps
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics, made_up_entries
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, FetchResponseScanner, ResponseHead
from weir.protocol.steps import at_once

pytestmark = pytest.mark.long

TheirTopic = TheirResponse.FetchableTopicResponse
TheirPartition = TheirTopic.PartitionData

versions = st.integers(4, 18)
texts = st.text(max_size=12)
ids = st.integers(1, 2**128 - 1).map(lambda value: UUID(int=value))
keys = st.tuples(texts, ids)

asked = st.fixed_dictionaries(
    {
        "partition": int32,
        "current_leader_epoch": int32,
        "fetch_offset": int64,
        "last_fetched_epoch": int32,
        "log_start_offset": int64,
        "partition_max_bytes": int32,
        "replica_directory_id": st.none() | ids,
        "high_watermark": st.sampled_from((2**63 - 1, 7)),
    }
)
transactions = st.builds(TheirPartition.AbortedTransaction, producer_id=int64, first_offset=int64)
fetched = st.fixed_dictionaries(
    {
        "partition_index": int32,
        "error_code": int16,
        "high_watermark": int64,
        "last_stable_offset": int64,
        "log_start_offset": int64,
        "aborted_transactions": st.none() | st.lists(transactions, max_size=3),
        "preferred_read_replica": int32,
        "records": records,
    }
)
tagged = st.fixed_dictionaries(
    {
        "diverging_epoch": st.none() | st.builds(TheirPartition.EpochEndOffset, epoch=int32, end_offset=int64),
        "current_leader": st.none() | st.builds(TheirPartition.LeaderIdAndEpoch, leader_id=int32, leader_epoch=int32),
    }
)
endpoints = st.lists(
    st.builds(TheirResponse.NodeEndpoint, node_id=int32, host=texts, port=int32, rack=st.none() | texts), max_size=2
)
made_up_topics = st.lists(st.tuples(keys, st.lists(st.tuples(int32, int64), max_size=5)), max_size=3)


def name_of(version: int, key: tuple[str, UUID]) -> bytes:
    return key[1].bytes if version >= 13 else key[0].encode()


def made_up(version: int, topics: list[tuple[tuple[str, UUID], list[tuple[int, int]]]]) -> list[ResponseTopic]:
    return [ResponseTopic(name_of(version, key), made_up_entries(version, marks)) for key, marks in topics]


def assert_made_up(version: int, theirs: Any, key: tuple[str, UUID], marks: list[tuple[int, int]]) -> None:
    assert (theirs.topic_id == key[1]) if version >= 13 else (theirs.topic == key[0])
    fields = ["partition_index", "error_code", "high_watermark", "last_stable_offset", "records"]
    expected: list[list[Any]] = [[partition, 0, mark, mark, b""] for partition, mark in marks]
    for since, name, value in ((4, "aborted_transactions", None), (5, "log_start_offset", -1)):
        if version >= since:
            fields.append(name)
            expected = [[*values, value] for values in expected]
    if version >= 11:
        fields.append("preferred_read_replica")
        expected = [[*values, -1] for values in expected]
    assert [[getattr(one, name) for name in fields] for one in theirs.partitions] == expected


@given(
    versions,
    st.tuples(int32, texts, int32, int32, int32, int32, st.integers(0, 1), int32, int32),
    st.lists(st.tuples(keys, st.lists(asked, max_size=5)), max_size=4),
    st.lists(st.tuples(keys, st.lists(int32, max_size=3)), max_size=2),
    texts,
    st.none() | texts,
)
def test_kafka_python_request_decodes_and_encodes_to_its_bytes(
    version: int,
    fields: tuple[int, str, int, int, int, int, int, int, int],
    topics: list[tuple[tuple[str, UUID], list[dict[str, Any]]]],
    forgotten: list[tuple[tuple[str, UUID], list[int]]],
    rack_id: str,
    cluster_id: str | None,
) -> None:
    correlation_id, client_id, replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session, epoch = fields
    theirs = TheirRequest(
        cluster_id=cluster_id,
        replica_id=replica_id,
        replica_state=TheirRequest.ReplicaState(replica_id=replica_id, replica_epoch=3),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session,
        session_epoch=epoch,
        topics=[
            TheirRequest.FetchTopic(
                topic=key[0],
                topic_id=key[1],
                partitions=[TheirRequest.FetchTopic.FetchPartition(**one) for one in all_],
            )
            for key, all_ in topics
        ],
        forgotten_topics_data=[
            TheirRequest.ForgottenTopic(topic=key[0], topic_id=key[1], partitions=all_) for key, all_ in forgotten
        ],
        rack_id=rack_id,
    )
    theirs.with_header(correlation_id, client_id)
    payload = theirs.encode(version=version, header=True)
    ours = decode_fetch_request(payload)
    assert encode_fetch_request(ours) == frame(payload)
    assert (ours.header.api_version, ours.header.correlation_id, ours.header.client_id) == (
        version,
        correlation_id,
        client_id.encode(),
    )
    assert (ours.replica_id, ours.max_wait_ms, ours.min_bytes, ours.max_bytes, ours.isolation_level) == fields[2:7]
    if version >= 15:
        assert at_once(replica_id_steps(payload)) == replica_id
    if version >= 7:
        assert (ours.session_id, ours.session_epoch) == (session, epoch)
        assert [one[:2] for one in ours.forgotten] == [(name_of(version, key), tuple(all_)) for key, all_ in forgotten]
        assert all(isinstance(one, ForgottenTopic) for one in ours.forgotten)
    assert ours.rack_id == (rack_id.encode() if version >= 11 else b"")
    row = fetch_version(version)
    assert [
        (topic.name, *one)
        for topic in ours.topics
        if topic.entries
        for one in row.requested(topic.stride).iter_unpack(topic.entries)
    ] == [
        (name_of(version, key), one["partition"], one["fetch_offset"], one["partition_max_bytes"])
        for key, all_ in topics
        for one in all_
    ]


@given(
    versions,
    st.tuples(int32, int32, st.sampled_from((0, 0, 70)), int32),
    st.lists(st.tuples(keys, st.lists(st.tuples(fetched, tagged), max_size=5)), max_size=4),
    endpoints,
    made_up_topics,
    st.lists(st.integers(0, 999)),
)
def test_kafka_python_reads_its_response_with_appended_topics(
    version: int,
    head: tuple[int, int, int, int],
    topics: list[tuple[tuple[str, UUID], list[tuple[dict[str, Any], dict[str, Any]]]]],
    node_endpoints: list[Any],
    appended: list[tuple[tuple[str, UUID], list[tuple[int, int]]]],
    cuts: list[int],
) -> None:
    correlation_id, throttle_time_ms, error_code, session_id = head
    theirs = TheirResponse(
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        responses=[
            TheirTopic(
                topic=key[0],
                topic_id=key[1],
                partitions=[TheirPartition(**fields, **(tags if version >= 12 else {})) for fields, tags in all_],
            )
            for key, all_ in topics
        ],
        node_endpoints=node_endpoints,
    )
    received = response_frame(correlation_id, (NO_TAGS if version >= 12 else b"") + theirs.encode(version=version))
    scanner = FetchResponseScanner(
        version, correlation_id, Expected(encode_response_topics(version, made_up(version, appended)), len(appended))
    )
    sent = feed(scanner, pieces(received, cuts))
    assert scanner.done
    has_error = version >= 7 and error_code != 0
    assert scanner.head == ResponseHead(throttle_time_ms, *((error_code, session_id) if version >= 7 else ()))
    stays_as_it_is = has_error or (not topics and throttle_time_ms > 0)
    if stays_as_it_is:
        assert sent == received

    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    read = TheirResponse.decode(sent[4:], version=version, header=True)
    before = TheirResponse.decode(received[4:], version=version, header=True)
    assert read.responses[: len(topics)] == before.responses
    assert len(read.responses) == len(topics) + (0 if stays_as_it_is else len(appended))
    for one, (key, marks) in zip(read.responses[len(topics) :], appended, strict=not stays_as_it_is):
        assert_made_up(version, one, key, marks)
    if version >= 16:
        assert read.node_endpoints == before.node_endpoints

    assert [topic.name for topic in scanner.topics] == [name_of(version, key) for key, _ in topics]
    for seen, (_, partitions) in zip(scanner.topics, topics, strict=True):
        assert list(RESPONSE_ENTRY.iter_unpack(seen.headers)) == [
            (
                one["partition_index"],
                one["error_code"],
                one["high_watermark"],
                -1 if one["records"] is None else len(one["records"]),
            )
            for one, _ in partitions
        ]
        assert [(one.partition, one.size) for one in seen.records] == [
            (one["partition_index"], len(one["records"])) for one, _ in partitions if one["records"]
        ]
        diverging = [one["partition_index"] for one, tags in partitions if tags["diverging_epoch"] is not None]
        assert list(seen.diverging) == (diverging if version >= 12 else [])


@given(versions, st.tuples(int32, int32, int16, int32), made_up_topics)
def test_made_up_response_is_read_by_kafka_python(
    version: int, head: tuple[int, int, int, int], topics: list[tuple[tuple[str, UUID], list[tuple[int, int]]]]
) -> None:
    correlation_id, throttle_time_ms, error_code, session_id = head
    sent = encode_fetch_response(
        version,
        correlation_id,
        throttle_time_ms,
        made_up(version, topics),
        error_code=error_code,
        session_id=session_id,
    )
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    theirs = TheirResponse.decode(sent[4:], version=version, header=True)
    assert (theirs.header.correlation_id, theirs.throttle_time_ms) == (correlation_id, throttle_time_ms)
    if version >= 7:
        assert (theirs.error_code, theirs.session_id) == (error_code, session_id)
    for one, (key, marks) in zip(theirs.responses, topics, strict=True):
        assert_made_up(version, one, key, marks)
