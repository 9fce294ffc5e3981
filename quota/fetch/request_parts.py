"""Splits a whole request into what passes, what is granted, and what is asked for with 0 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import FetchVersion, fetch_version
from weir.protocol.request_topics import RequestTopic
from weir.protocol.steps import Steps
from weir.quota.fetch.state import Grant, ReplicaPartition, ReplicaTopic

_WORK_PER_STEP = 500  # topics and entries looked at in one step of about 2 ms

_MAX_BYTES = 2  # index in (partition, fetch offset, partition_max_bytes)


class Parts(NamedTuple):
    """The parts of a whole request."""

    front: list[RequestTopic]
    """Topics without partitions that wait."""
    granted: dict[ReplicaPartition, bytes]
    """The entries of those granted."""
    asked: list[RequestTopic]
    """The others, with 0 bytes."""


def split(
    topics: Mapping[bytes, ReplicaTopic],
    request: FetchRequest,
    granted: Set[ReplicaPartition],
) -> Steps[Parts]:
    """Return the parts of `request`."""
    row = fetch_version(request.header.api_version)
    front: list[RequestTopic] = []
    asked: list[RequestTopic] = []
    found: dict[ReplicaPartition, bytes] = {}
    granted_topics = {replica.topic for replica in granted}
    work = 0
    for block in request.topics:
        work += 1
        if work >= _WORK_PER_STEP:
            yield
            work = 0
        name, entries, stride, tags = block
        topic = topics.get(name)
        if topic is None or not (topic.behind or topic.unknown):
            # An earlier hop asks for 0 bytes here. In front, that would return a batch before the grants of the same
            # fetch.
            asks_none = entries and not row.requested(stride).unpack_from(entries)[_MAX_BYTES]
            (asked if asks_none else front).append(block)
            continue
        if topic not in granted_topics and _holds_back_all(topic):
            asked.append(RequestTopic(name, row.with_no_bytes(entries, stride), stride, tags))
        else:
            kept: list[bytes] = []
            zero: list[bytes] = []
            work += len(entries) // stride
            for start, (partition, _, max_bytes) in zip(
                range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
            ):
                entry = entries[start : start + stride]
                if partition not in topic.behind and partition not in topic.unknown:
                    (kept if max_bytes else zero).append(entry)  # 0 bytes as above
                elif topic in granted_topics and topic.partitions[partition] in granted:
                    found[topic.partitions[partition]] = entry
                else:
                    zero.append(entry)
            if kept:
                front.append(RequestTopic(name, b"".join(kept), stride))
            if zero:
                asked.append(RequestTopic(name, row.with_no_bytes(b"".join(zero), stride), stride))
    return Parts(front, found, asked)


def without_behind(topics: Mapping[bytes, ReplicaTopic], request: FetchRequest) -> Steps[list[RequestTopic]]:
    """Return the request's topics without their partitions behind."""
    row = fetch_version(request.header.api_version)
    kept: list[RequestTopic] = []
    work = 0
    for block in request.topics:
        topic = topics.get(block.name)
        if topic is None or not topic.behind:
            work += 1
        else:
            work += len(block.entries) // block.stride
            block = _without_behind(topic, row, block)
        if block.entries:
            kept.append(block)
        if work >= _WORK_PER_STEP:
            yield
            work = 0
    return kept


def _without_behind(topic: ReplicaTopic, row: FetchVersion, block: RequestTopic) -> RequestTopic:
    name, entries, stride, _ = block
    if len(topic.behind) == len(topic.partitions):
        return RequestTopic(name, b"", stride)
    behind = topic.behind
    kept = [
        entries[start : start + stride]
        for start, (partition, _, _) in zip(
            range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
        )
        if partition not in behind
    ]
    return RequestTopic(name, b"".join(kept), stride)


def _holds_back_all(topic: ReplicaTopic) -> bool:
    return len(topic.behind) + len(topic.unknown) == len(topic.partitions)


def granted_topics(
    request: FetchRequest, grants: Sequence[Grant], entries: dict[ReplicaPartition, bytes]
) -> list[RequestTopic]:
    """Return the granted partitions in the order of their grants. Each entry is as it came, but for its cap."""
    row = fetch_version(request.header.api_version)
    return [
        RequestTopic(replica.topic.key, row.with_max_bytes(entries[replica], cap), len(entries[replica]))
        for replica, cap in grants
    ]
