# SPDX-License-Identifier: Apache-2.0
"""ApiVersions v0 and Metadata, as far as the view of the cluster needs them: v1 to v5, and v10 to v12 with topic ids.

Encoded frames have their size prefix; frames to decode have not. Topic ids are KIP-516's.
"""

import struct
from collections.abc import Collection, Container, Iterator
from typing import Final, NamedTuple

from weir.protocol.errors import CorrelationMismatch, MalformedFrame
from weir.protocol.header import API_VERSIONS, SIZE, RequestHeader, encode_request_header
from weir.protocol.primitives import CLASSIC, COMPACT, NO_TAGS, Encoding
from weir.protocol.varint import read_unsigned_varint

METADATA: Final = 3

FIRST_METADATA: Final = 1
FIRST_METADATA_WITHOUT_CREATION: Final = 4
"""In earlier versions a request that names a missing topic may create it."""
LAST_CLASSIC_METADATA: Final = 5
FIRST_METADATA_WITH_IDS: Final = 10
FIRST_METADATA_BY_ID: Final = 12
LAST_METADATA: Final = 12

ID_SIZE: Final = 16
NO_ERROR: Final = 0
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
REPLICA_NOT_AVAILABLE: Final = 9
"""A broker with a replica is down. The partition is described all the same."""
UNKNOWN_TOPIC_ID: Final = 100

NO_ID: Final = bytes(ID_SIZE)
"""Stands for a topic without an id (Uuid.ZERO_UUID)."""

_API: Final = struct.Struct(">hhh")  # api_key, min_version, max_version
_NO_AUTHORIZED_OPERATIONS_OF_CLUSTER_AND_TOPICS: Final = b"\x00\x00"
_PARTITION_HEAD: Final = 14  # error_code, partition_index, leader_id, leader_epoch
_PARTITION: Final = struct.Struct(">hii")  # the first three of these
_SMALLEST_PARTITION: Final = _PARTITION_HEAD + 4  # replica_nodes, isr_nodes, offline_replicas, tags
_SMALLEST_BROKER: Final = 4 + 1 + 4 + 1 + 1
_SMALLEST_TOPIC: Final = 2 + 2 + 1 + 4
_CLASSIC_PARTITION_HEAD: Final = 10  # without leader_epoch
_NO_CLASSIC_ARRAY: Final = b"\xff\xff\xff\xff"


class MetadataTopic(NamedTuple):
    """A topic of a Metadata response. `name` is UTF-8, None where it is missing; the id is NO_ID where it is."""

    error_code: int
    name: bytes | None
    topic_id: bytes


class MetadataPartition(NamedTuple):
    """A partition, in a Metadata response, of the topic that came before it. Brokers are given by id.

    `replicas` are all of them: during a reassignment (KIP-455) also those being added and removed. `leader` is -1 where
    there is none.
    """

    error_code: int
    partition: int
    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


class MetadataBroker(NamedTuple):
    """A broker of a Metadata response, with its address on the listener that was asked; strings are UTF-8."""

    broker_id: int
    host: bytes
    port: int
    rack: bytes | None


class MetadataHead(NamedTuple):
    """The part of a Metadata response before its topics; `controller` is -1 where none is known."""

    brokers: tuple[MetadataBroker, ...]
    controller: int
    cluster_id: bytes | None = None


def encode_api_versions_request(correlation_id: int, client_id: bytes) -> bytes:
    """Encode an ApiVersions v0 request, which every broker answers."""
    return _framed(encode_request_header(RequestHeader(API_VERSIONS, 0, correlation_id, client_id)))


def decode_api_versions(frame: bytes, correlation_id: int) -> dict[int, tuple[int, int]]:
    """Read an ApiVersions v0 response: the oldest and newest version by api_key.

    Raises MalformedFrame and CorrelationMismatch.
    """
    at = _after_correlation_id(frame, correlation_id) + 2  # error_code: no broker refuses v0
    count, at = CLASSIC.read_count(frame, at, _API.size)
    apis = (_API.unpack_from(frame, at + index * _API.size) for index in range(count))
    return {api_key: (oldest, newest) for api_key, oldest, newest in apis}


def encode_metadata_request(
    version: int,
    correlation_id: int,
    client_id: bytes,
    names: Collection[bytes] | None,
    topic_ids: Collection[bytes] = (),
) -> bytes:
    """Encode a Metadata request for topics by name (UTF-8; None: all topics) and, from v12 on, by id.

    It does not create topics. But before FIRST_METADATA_WITHOUT_CREATION a broker may do so all the same.
    """
    header = encode_request_header(RequestHeader(METADATA, version, correlation_id, client_id))
    if version <= LAST_CLASSIC_METADATA:
        listed = map(CLASSIC.string, names or ())
        topics = _NO_CLASSIC_ARRAY if names is None else CLASSIC.count(len(names)) + b"".join(listed)
        return _framed(header + topics + (b"\x00" if version >= FIRST_METADATA_WITHOUT_CREATION else b""))
    # MetadataRequest.json. v8 to v10 have a further flag, for the cluster's authorized operations.
    flags = _NO_AUTHORIZED_OPERATIONS_OF_CLUSTER_AND_TOPICS if version <= 10 else b"\x00"
    if names is None:
        topics = b"\x00"
    else:
        by_name = (NO_ID + COMPACT.string(name) + NO_TAGS for name in names)
        by_id = (topic_id + b"\x00" + NO_TAGS for topic_id in topic_ids)
        topics = COMPACT.count(len(names) + len(topic_ids)) + b"".join((*by_name, *by_id))
    # After the topics: allow_auto_topic_creation, which is false.
    return _framed(header + NO_TAGS + topics + b"\x00" + flags + NO_TAGS)


def decode_cluster(
    frame: bytes, version: int, correlation_id: int, wanted: Container[bytes]
) -> tuple[MetadataHead, Iterator[MetadataTopic | MetadataPartition]]:
    """Read a Metadata response: its head, and then topic by topic. The partitions of those in `wanted` follow them.

    It may be large. Raises CorrelationMismatch, and MalformedFrame as late as the fault is reached, perhaps after some
    topics.
    """
    encoding: Encoding = CLASSIC if version <= LAST_CLASSIC_METADATA else COMPACT
    head, count, at = _read_head(frame, version, correlation_id, encoding)
    return head, _topics(frame, version, count, at, wanted, encoding)


def _topics(
    frame: bytes, version: int, count: int, at: int, wanted: Container[bytes], encoding: Encoding
) -> Iterator[MetadataTopic | MetadataPartition]:
    # MetadataResponse.json: offline_replicas from v5 on, leader_epoch from v7 on, topic_authorized_operations from v8
    # on, and those of the cluster up to v10.
    has_ids = version >= FIRST_METADATA_WITH_IDS
    arrays = 3 if version >= 5 else 2
    partition_head = _PARTITION_HEAD if has_ids else _CLASSIC_PARTITION_HEAD
    smallest = _SMALLEST_PARTITION if has_ids else partition_head + 4 * arrays
    for _ in range(count):
        error_code = int.from_bytes(frame[at : at + 2], signed=True)
        name, at = encoding.read_nullable(frame, at + 2)
        topic_id, at = (frame[at : at + ID_SIZE], at + ID_SIZE) if has_ids else (NO_ID, at)
        yield MetadataTopic(error_code, name, topic_id)
        partitions, at = encoding.read_count(frame, at + 1, smallest)  # is_internal is before it
        if has_ids and name not in wanted:
            at, partitions = _after_partitions(frame, at, partitions), 0
        for _ in range(partitions):
            if at + partition_head > len(frame):
                raise MalformedFrame("the frame ends within a partition", len(frame))
            error_code, number, leader = _PARTITION.unpack_from(frame, at)
            at += partition_head
            nodes = []
            for _ in range(arrays):
                some, at = encoding.read_count(frame, at, 4)
                nodes.append(frozenset(struct.unpack_from(f">{some}i", frame, at)))
                at += 4 * some
            _, at = encoding.read_tags(frame, at)
            if name in wanted:
                yield MetadataPartition(error_code, number, leader, nodes[0], nodes[1])
        _, at = encoding.read_tags(frame, at + 4 * has_ids)
    _, at = encoding.read_tags(frame, at + 4 * (has_ids and version <= 10))
    if at != len(frame):
        raise MalformedFrame("bytes are left behind the last field", at)


def _framed(request: bytes) -> bytes:
    return SIZE.pack(len(request)) + request


def _after_correlation_id(frame: bytes, expected: int) -> int:
    if len(frame) < SIZE.size:
        raise MalformedFrame("the frame ends within the response header", len(frame))
    (received,) = SIZE.unpack_from(frame)
    if received != expected:
        raise CorrelationMismatch(expected, received)
    return SIZE.size


def _read_head(frame: bytes, version: int, correlation_id: int, encoding: Encoding) -> tuple[MetadataHead, int, int]:
    """Return the head, the number of topics, and the offset of the first one.

    throttle_time_ms exists from v3 on, cluster_id from v2 on.
    """
    _, at = encoding.read_tags(frame, _after_correlation_id(frame, correlation_id))
    count, at = encoding.read_count(frame, at + (4 if version >= 3 else 0), _SMALLEST_BROKER)
    brokers = []
    for _ in range(count):
        broker_id = int.from_bytes(frame[at : at + 4], signed=True)
        host, at = encoding.read_string(frame, at + 4)
        port = int.from_bytes(frame[at : at + 4], signed=True)
        rack, at = encoding.read_nullable(frame, at + 4)
        _, at = encoding.read_tags(frame, at)
        brokers.append(MetadataBroker(broker_id, host, port, rack))
    cluster_id, at = encoding.read_nullable(frame, at) if version >= 2 else (None, at)
    controller = int.from_bytes(frame[at : at + 4], signed=True)
    topics, at = encoding.read_count(frame, at + 4, _SMALLEST_TOPIC)
    return MetadataHead(tuple(brokers), controller, cluster_id), topics, at


def _after_partitions(frame: bytes, at: int, count: int) -> int:
    end = len(frame)
    for _ in range(count):
        at += _PARTITION_HEAD
        for _array in range(3):
            if at < end and frame[at] < 0x80:  # nearly always: 10,000 partitions are read in one go
                count_and_one, at = frame[at], at + 1
            else:
                count_and_one, at = read_unsigned_varint(frame, at)
            at += 4 * max(count_and_one - 1, 0)
        if at < end and not frame[at]:
            at += 1
        else:
            _, at = COMPACT.read_tags(frame, at)
    return at
