# SPDX-License-Identifier: Apache-2.0
"""Against two codecs that are not ours: aiokafka's, for any values, and what Kafka 3.9's own classes wrote."""

import json
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.api import RequestHeader_v1
from aiokafka.protocol.fetch import (
    FetchRequest_v0,
    FetchRequest_v1,
    FetchRequest_v2,
    FetchRequest_v3,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.fetch_data import OLD_VERSIONS, REQUEST_ENTRY, feed, int16, int32, int64, pieces, records
from tests.protocol.wire import frame
from weir.protocol.fetch_request import FetchRequest, decode_fetch_request, encode_fetch_request
from weir.protocol.fetch_response import ResponseTopic, encode_fetch_response, encode_response_topics
from weir.protocol.header import RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, FetchResponseScanner

AIOKAFKA: tuple[Any, ...] = (FetchRequest_v0, FetchRequest_v1, FetchRequest_v2, FetchRequest_v3)
LINES = [
    json.loads(line) for line in (Path(__file__).parent / "kafka" / "fetch_vectors.jsonl").read_text().splitlines()
]

texts = st.text(max_size=12)
request_topics = st.lists(st.tuples(texts, st.lists(st.tuples(int32, int64, int32), max_size=5)), max_size=4)
response_partitions = st.tuples(int32, int16, int64, records)
response_topics = st.lists(st.tuples(texts, st.lists(response_partitions, max_size=5)), max_size=4)
made_up_topics = st.lists(st.tuples(texts, st.lists(st.tuples(int32, int16, int64), max_size=5)), max_size=3)


def packed(topics: list[tuple[str, list[tuple[int, int, int]]]]) -> list[RequestTopic]:
    return [
        RequestTopic(name.encode(), b"".join(REQUEST_ENTRY.pack(*entry) for entry in entries), 16)
        for name, entries in topics
    ]


def made_up(topics: list[tuple[str, list[tuple[int, int, int]]]]) -> list[ResponseTopic]:
    return [
        ResponseTopic(name.encode(), b"".join(RESPONSE_ENTRY.pack(*entry, 0) for entry in entries))
        for name, entries in topics
    ]


@given(st.sampled_from(OLD_VERSIONS), int32, texts, int32, int32, int32, int32, request_topics)
def test_request_of_aiokafka_decodes_and_encodes_to_its_bytes(
    version: int,
    correlation_id: int,
    client_id: str,
    replica_id: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    topics: list[tuple[str, list[tuple[int, int, int]]]],
) -> None:
    fixed = (replica_id, max_wait_ms, min_bytes) + ((max_bytes,) if version >= 3 else ())
    theirs = AIOKAFKA[version](*fixed, topics)
    payload = RequestHeader_v1(theirs, correlation_id, client_id).encode() + theirs.encode()
    ours = FetchRequest(
        RequestHeader(1, version, correlation_id, client_id.encode()),
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes if version >= 3 else 2**31 - 1,
        packed(topics),
    )
    assert decode_fetch_request(payload) == ours
    assert encode_fetch_request(ours) == frame(payload)


@given(st.sampled_from(OLD_VERSIONS), int32, int32, response_topics, made_up_topics, st.lists(st.integers(0, 999)))
def test_aiokafka_reads_its_response_with_the_appended_topics(
    version: int,
    correlation_id: int,
    throttle_time_ms: int,
    topics: list[tuple[str, list[tuple[int, int, int, bytes | None]]]],
    appended: list[tuple[str, list[tuple[int, int, int]]]],
    cuts: list[int],
) -> None:
    response_type = AIOKAFKA[version].RESPONSE_TYPE
    fixed = (throttle_time_ms,) if version >= 1 else ()
    received = frame(correlation_id.to_bytes(4, "big", signed=True) + response_type(*fixed, topics).encode())
    scanner = FetchResponseScanner(
        version, correlation_id, Expected(encode_response_topics(version, made_up(appended)), len(appended), ())
    )
    sent = feed(scanner, pieces(received, cuts))
    assert scanner.done
    theirs = response_type.decode(BytesIO(sent[8:]))
    stays_empty = not topics and version >= 1 and throttle_time_ms > 0
    grown_by = [] if stays_empty else [(name, [(*entry, b"") for entry in entries]) for name, entries in appended]
    assert theirs.topics == [*topics, *grown_by]
    assert theirs.throttle_time_ms == throttle_time_ms if version >= 1 else not hasattr(theirs, "throttle_time_ms")
    assert [topic.name.decode() for topic in scanner.topics] == [name for name, _ in topics]
    for seen, (_, partitions) in zip(scanner.topics, topics, strict=True):
        headers = list(RESPONSE_ENTRY.iter_unpack(seen.headers))
        assert headers == [(*entry[:3], -1 if entry[3] is None else len(entry[3])) for entry in partitions]


@given(st.sampled_from(OLD_VERSIONS), int32, int32, made_up_topics)
def test_made_up_response_is_read_by_aiokafka(
    version: int,
    correlation_id: int,
    throttle_time_ms: int,
    topics: list[tuple[str, list[tuple[int, int, int]]]],
) -> None:
    sent = encode_fetch_response(version, correlation_id, throttle_time_ms, made_up(topics))
    assert sent[4:8] == correlation_id.to_bytes(4, "big", signed=True)
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    theirs = AIOKAFKA[version].RESPONSE_TYPE.decode(BytesIO(sent[8:]))
    assert theirs.topics == [(name, [(*entry, b"") for entry in entries]) for name, entries in topics]
    if version >= 1:
        assert theirs.throttle_time_ms == throttle_time_ms


@pytest.mark.parametrize(
    "line", [line for line in LINES if line["kind"] == "request"], ids=lambda line: line["version"]
)
def test_request_of_kafka_decodes_and_encodes_to_its_bytes(line: dict[str, Any]) -> None:
    payload, fields = bytes.fromhex(line["hex"]), line["fields"]
    decoded = decode_fetch_request(payload)
    client_id = line["client_id"]
    assert decoded.header == RequestHeader(
        1, line["version"], line["correlation_id"], None if client_id is None else client_id.encode()
    )
    assert (decoded.replica_id, decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes) == (
        fields["replicaId"],
        fields["maxWaitMs"],
        fields["minBytes"],
        fields.get("maxBytes", 2**31 - 1),
    )
    assert [(topic.name.decode(), list(REQUEST_ENTRY.iter_unpack(topic.entries))) for topic in decoded.topics] == [
        (topic["topic"], [(p["partition"], p["fetchOffset"], p["partitionMaxBytes"]) for p in topic["partitions"]])
        for topic in fields["topics"]
    ]
    assert encode_fetch_request(decoded) == frame(payload)


@pytest.mark.parametrize(
    "line", [line for line in LINES if line["kind"] == "response"], ids=lambda line: line["version"]
)
def test_response_of_kafka_is_scanned_as_kafka_reads_it(line: dict[str, Any]) -> None:
    """Batches of magic 0, 1 and 2, plain and compressed, whole and cut."""
    received, fields = frame(bytes.fromhex(line["hex"])), line["fields"]
    names = {topic["topic"].encode() for topic in fields["responses"]}
    scanner = FetchResponseScanner(line["version"], line["correlation_id"], Expected(walk=names))
    assert feed(scanner, pieces(received, range(0, len(received), 61))) == received
    assert scanner.done
    assert scanner.head.throttle_time_ms == fields.get("throttleTimeMs", 0)
    assert [(topic.name.decode(), list(RESPONSE_ENTRY.iter_unpack(topic.headers))) for topic in scanner.topics] == [
        (
            topic["topic"],
            [
                (p["partitionIndex"], p["errorCode"], p["highWatermark"], p["recordsSizeInBytes"])
                for p in topic["partitions"]
            ],
        )
        for topic in fields["responses"]
    ]
    sizes = defaultdict[tuple[str, int], list[int]](list)
    for entry in line["records"]:
        sizes[entry["topic"], entry["partition"]] = entry["batch_sizes"]
        assert sum(entry["batch_sizes"]) == entry["valid_bytes"]
    for topic in scanner.topics:
        for seen in topic.records:
            expected = sizes.pop((topic.name.decode(), seen.partition))
            assert (seen.batches, seen.complete_bytes) == (len(expected), sum(expected))
            assert (seen.smallest, seen.largest) == (min(expected, default=0), max(expected, default=0))
            assert seen.cut_bytes == seen.size - sum(expected)
    assert not sizes


def test_vectors_hold_every_version_of_both_kinds() -> None:
    assert {(line["kind"], line["version"]) for line in LINES} == {
        (kind, version) for kind in ("request", "response") for version in OLD_VERSIONS
    }
