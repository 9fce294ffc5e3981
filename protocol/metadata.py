"""ApiVersions v0 and Metadata v10 to v12, as far as ids of topics (KIP-516) and assigned followers need them.

Frames that are encoded here carry their size prefix; those that are decoded do not.
"""

import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from protocol.errors import CorrelationMismatch, MalformedFrame
from protocol.header import API_VERSIONS, SIZE, RequestHeader, encode_request_header
from protocol.primitives import CLASSIC, COMPACT, NO_TAGS
from protocol.varint import after_tags, read_unsigned_varint

METADATA: Final = 3

FIRST_METADATA_WITH_IDS: Final = 10
FIRST_METADATA_BY_ID: Final = 12
LAST_METADATA: Final = 12

ID_SIZE: Final = 16
NO_ERROR: Final = 0
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
REPLICA_NOT_AVAILABLE: Final = 9
"""A broker with a replica is down: the partition is described all the same."""
UNKNOWN_TOPIC_ID: Final = 100

NO_ID: Final = bytes(ID_SIZE)
"""What stands where a topic has no id (Uuid.ZERO_UUID)."""

_API: Final = struct.Struct(">hhh")  # api_key, min_version, max_version
_NO_AUTHORIZED_OPERATIONS_OF_CLUSTER_AND_TOPICS: Final = b"\x00\x00"
_PARTITION_HEAD: Final = 14  # error_code, partition_index, leader_id, leader_epoch
_PARTITION: Final = struct.Struct(">hii")  # the first three of these
_SMALLEST_PARTITION: Final = _PARTITION_HEAD + 4  # replica_nodes, isr_nodes, offline_replicas, tags
_SMALLEST_TOPIC: Final = 2 + 1 + ID_SIZE + 1 + 1 + 4 + 1
_SMALLEST_BROKER: Final = 4 + 1 + 4 + 1 + 1


class MetadataTopic(NamedTuple):
    """A topic of a Metadata response; `name` is UTF-8, None where there is none, and NO_ID stands for no id."""

    error_code: int
    name: bytes | None
    topic_id: bytes


class AssignedFollowers(NamedTuple):
    """What a Metadata response says of one partition; a topic that it describes none of has one with number -1.

    `followers` are the broker ids of all replicas but the leader: in a reassignment (KIP-455) those that are added and
    those that are removed too. `leader` is -1 where there is none.
    """

    topic_error: int
    topic: bytes | None
    error_code: int
    partition: int
    leader: int = -1
    followers: frozenset[int] = frozenset()
    in_sync: frozenset[int] = frozenset()


def encode_api_versions_request(correlation_id: int, client_id: bytes) -> bytes:
    """An ApiVersions v0 request, which every broker answers."""
    return _framed(encode_request_header(RequestHeader(API_VERSIONS, 0, correlation_id, client_id)))


def decode_api_versions(frame: bytes, correlation_id: int) -> dict[int, tuple[int, int]]:
    """Read an ApiVersions v0 response: the oldest and the newest version by api_key.

    Raises MalformedFrame and CorrelationMismatch.
    """
    at = _after_correlation_id(frame, correlation_id) + 2  # error_code: v0 is refused by no broker
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
    """A Metadata request (v10 to v12) that creates no topic, for topics by name (UTF-8) and, from v12 on, by id.

    None as `names` asks for all topics.
    """
    # MetadataRequest.json. v8 to v10 ask with one flag more, for the cluster's authorized operations.
    flags = _NO_AUTHORIZED_OPERATIONS_OF_CLUSTER_AND_TOPICS if version <= 10 else b"\x00"
    header = encode_request_header(RequestHeader(METADATA, version, correlation_id, client_id)) + NO_TAGS
    if names is None:
        topics = b"\x00"
    else:
        by_name = (NO_ID + COMPACT.string(name) + NO_TAGS for name in names)
        by_id = (topic_id + b"\x00" + NO_TAGS for topic_id in topic_ids)
        topics = COMPACT.count(len(names) + len(topic_ids)) + b"".join((*by_name, *by_id))
    return _framed(header + topics + b"\x00" + flags + NO_TAGS)  # allow_auto_topic_creation: false


def decode_metadata(frame: bytes, version: int, correlation_id: int) -> Iterator[MetadataTopic]:
    """Read a Metadata response (v10 to v12) topic by topic, as an answer may be large.

    Raises MalformedFrame and CorrelationMismatch, the first where it comes to it: perhaps after some topics.
    """
    _, count, at = _read_head(frame, correlation_id)
    for _ in range(count):
        topic, at = _read_topic(frame, at)
        at = _after_topic(frame, _after_partitions(frame, at))
        yield topic
    _check_end(frame, version, at)


def decode_assigned_followers(frame: bytes, version: int, correlation_id: int) -> Iterator[AssignedFollowers]:
    """Read a Metadata response (v10 to v12) partition by partition, as an answer may be large.

    There are none where the answer names no broker: in ZooKeeper mode a broker that starts knows neither brokers nor
    topics before the controller tells it. Raises as `decode_metadata` does.
    """
    brokers, count, at = _read_head(frame, correlation_id)
    if not brokers:
        return
    for _ in range(count):
        topic, at = _read_topic(frame, at)
        partitions, at = COMPACT.read_count(frame, at, _SMALLEST_PARTITION)
        if not partitions:
            yield AssignedFollowers(topic.error_code, topic.name, NO_ERROR, -1)
        for _ in range(partitions):
            if at + _PARTITION_HEAD > len(frame):
                raise MalformedFrame("the frame ends within a partition", len(frame))
            error_code, partition, leader = _PARTITION.unpack_from(frame, at)
            replicas, at = _read_node_ids(frame, at + _PARTITION_HEAD)
            in_sync, at = _read_node_ids(frame, at)
            _, at = _read_node_ids(frame, at)  # offline_replicas
            at = _after_tags(frame, at)
            followers = frozenset(replicas) - {leader}
            yield AssignedFollowers(
                topic.error_code, topic.name, error_code, partition, leader, followers, frozenset(in_sync)
            )
        at = _after_topic(frame, at)
    _check_end(frame, version, at)


def _framed(request: bytes) -> bytes:
    return SIZE.pack(len(request)) + request


def _after_correlation_id(frame: bytes, expected: int) -> int:
    if len(frame) < SIZE.size:
        raise MalformedFrame("the frame ends within the response header", len(frame))
    (received,) = SIZE.unpack_from(frame)
    if received != expected:
        raise CorrelationMismatch(expected, received)
    return SIZE.size


def _read_nullable_string(frame: bytes, at: int) -> tuple[bytes | None, int]:
    return (None, at + 1) if frame[at : at + 1] == b"\x00" else COMPACT.read_string(frame, at)


def _read_head(frame: bytes, correlation_id: int) -> tuple[int, int, int]:
    """Return how many brokers there are, how many topics, and where the first of these begins."""
    at = _after_tags(frame, _after_correlation_id(frame, correlation_id)) + 4  # throttle_time_ms
    brokers, at = COMPACT.read_count(frame, at, _SMALLEST_BROKER)
    for _ in range(brokers):
        _, at = COMPACT.read_string(frame, at + 4)
        _, at = _read_nullable_string(frame, at + 4)
        at = _after_tags(frame, at)
    _, at = _read_nullable_string(frame, at)  # cluster_id
    topics, at = COMPACT.read_count(frame, at + 4, _SMALLEST_TOPIC)  # behind controller_id
    return brokers, topics, at


def _read_topic(frame: bytes, at: int) -> tuple[MetadataTopic, int]:
    """Read what stands before the topic's partitions."""
    error_code = int.from_bytes(frame[at : at + 2], signed=True)
    name, at = _read_nullable_string(frame, at + 2)
    return MetadataTopic(error_code, name, frame[at : at + ID_SIZE]), at + ID_SIZE + 1  # is_internal


def _after_topic(frame: bytes, at: int) -> int:
    return _after_tags(frame, at + 4)  # topic_authorized_operations


def _check_end(frame: bytes, version: int, at: int) -> None:
    if version <= 10:
        at += 4  # cluster_authorized_operations
    if _after_tags(frame, at) != len(frame):
        raise MalformedFrame("bytes are left behind the last field", at)


def _read_node_ids(frame: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = COMPACT.read_count(frame, at, 4)
    return struct.unpack_from(f">{count}i", frame, at), at + 4 * count


def _after_partitions(frame: bytes, at: int) -> int:
    count, at = COMPACT.read_count(frame, at, _SMALLEST_PARTITION)
    end = len(frame)
    for _ in range(count):
        at += _PARTITION_HEAD
        for _array in range(3):
            if at < end and frame[at] < 0x80:  # nearly always: 10,000 partitions are read at once
                count_and_one, at = frame[at], at + 1
            else:
                count_and_one, at = read_unsigned_varint(frame, at)
            at += 4 * max(count_and_one - 1, 0)
        at = at + 1 if at < end and not frame[at] else _after_tags(frame, at)
    return at


def _after_tags(frame: bytes, at: int) -> int:
    end = after_tags(frame, at)
    if end > len(frame):
        raise MalformedFrame(f"the frame ends within the field at byte {at}", len(frame))
    return end
