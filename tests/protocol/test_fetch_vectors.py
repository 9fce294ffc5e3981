# SPDX-License-Identifier: Apache-2.0
"""What Kafka 4.4's own classes write of Fetch v4 to v18, as 4.1's did (v0 to v3 are in test_fetch_differential)."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.fetch_data import feed, pieces
from tests.protocol.wire import frame
from weir.protocol.fetch_request import decode_fetch_request, encode_fetch_request
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import RequestHeader
from weir.protocol.response_body import RESPONSE_ENTRY
from weir.protocol.response_scanner import Expected, FetchResponseScanner, ResponseHead

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "kafka" / "newer_fetch_vectors.jsonl").read_text().splitlines()
]


def of_kind(kind: str) -> pytest.MarkDecorator:
    lines = [line for line in LINES if line["kind"] == kind]
    return pytest.mark.parametrize("line", lines, ids=[f"v{line['version']}" for line in lines])


def name_of(topic: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64decode(topic["topicId"] + "==") if "topicId" in topic else topic["topic"].encode()


@of_kind("request")
def test_request_of_kafka_decodes_and_encodes_to_its_bytes(line: dict[str, Any]) -> None:
    payload, fields, version = bytes.fromhex(line["hex"]), line["fields"], line["version"]
    decoded = decode_fetch_request(payload)
    client_id = line["client_id"]
    assert decoded.header == RequestHeader(
        1, version, line["correlation_id"], None if client_id is None else client_id.encode()
    )
    replica_id = fields.get("replicaState", {"replicaId": -1})["replicaId"] if version >= 15 else fields["replicaId"]
    assert (decoded.replica_id, decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes) == (
        replica_id,
        fields["maxWaitMs"],
        fields["minBytes"],
        fields["maxBytes"],
    )
    assert (decoded.isolation_level, decoded.session_id, decoded.session_epoch, decoded.rack_id) == (
        fields["isolationLevel"],
        fields.get("sessionId", 0),
        fields.get("sessionEpoch", -1),
        fields.get("rackId", "").encode(),
    )
    assert [(topic.name, list(topic.partitions)) for topic in decoded.forgotten] == [
        (name_of(topic), topic["partitions"]) for topic in fields.get("forgottenTopicsData", [])
    ]
    row = FETCH_VERSIONS[version]
    blocks = [topic for topic in decoded.topics if topic.entries]
    assert [
        (topic.name, *one) for topic in blocks for one in row.requested(topic.stride).iter_unpack(topic.entries)
    ] == [
        (name_of(topic), one["partition"], one["fetchOffset"], one["partitionMaxBytes"])
        for topic in fields["topics"]
        for one in topic["partitions"]
    ]
    assert encode_fetch_request(decoded) == frame(payload)


@of_kind("response")
def test_response_of_kafka_is_scanned_as_kafka_reads_it(line: dict[str, Any]) -> None:
    received, fields = frame(bytes.fromhex(line["hex"])), line["fields"]
    names = {name_of(topic) for topic in fields["responses"]}
    scanner = FetchResponseScanner(line["version"], line["correlation_id"], Expected(walk=names))
    assert feed(scanner, pieces(received, range(0, len(received), 61))) == received
    assert scanner.done
    assert scanner.head == ResponseHead(
        fields["throttleTimeMs"], fields.get("errorCode", 0), fields.get("sessionId", 0)
    )
    assert [topic.name for topic in scanner.topics] == [name_of(topic) for topic in fields["responses"]]
    for seen, topic in zip(scanner.topics, fields["responses"], strict=True):
        partitions = topic["partitions"]
        assert [
            (p, error, mark, max(size, 0)) for p, error, mark, size in RESPONSE_ENTRY.iter_unpack(seen.headers)
        ] == [
            (p["partitionIndex"], p["errorCode"], p["highWatermark"], p.get("recordsSizeInBytes") or 0)
            for p in partitions
        ]
        assert [(one.partition, one.batches, one.complete_bytes) for one in seen.records] == [
            (p["partitionIndex"], 1, p["recordsSizeInBytes"]) for p in partitions if p.get("recordsSizeInBytes")
        ]
        assert list(seen.diverging) == [p["partitionIndex"] for p in partitions if "divergingEpoch" in p]


def test_vectors_hold_every_version_of_both_kinds() -> None:
    assert {(line["kind"], line["version"]) for line in LINES} == {
        (kind, version) for kind in ("request", "response") for version in range(4, 19)
    }
