"""The parts of a whole request: what passes, what is granted, and what is asked for with 0 bytes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from protocol.fetch import FetchRequest, FetchVersion, RequestTopic, fetch_version
from quota.fetch_sessions import Grant
from quota.replica_state import ReplicaPartition, ReplicaTopic

if TYPE_CHECKING:
    from quota.replica_link import ReplicaLink

_MAX_BYTES = 2  # of (partition, fetch offset, partition_max_bytes)


def split(
    link: ReplicaLink, request: FetchRequest, granted: Collection[ReplicaPartition]
) -> tuple[list[RequestTopic], dict[ReplicaPartition, bytes], list[RequestTopic]]:
    """The request without its partitions behind, the entries of those granted, and the others, with 0 bytes each."""
    row = fetch_version(request.header.api_version)
    front: list[RequestTopic] = []
    asked: list[RequestTopic] = []
    found: dict[ReplicaPartition, bytes] = {}
    granted_topics = {replica.topic for replica in granted}
    for block in request.topics:
        name, entries, stride, tags = block
        topic = link.topics.get(name)
        if topic is None or not (topic.behind or topic.unknown):
            # What an earlier hop asks for with 0 bytes would return a batch in front of the grants that come with it.
            asks_none = entries and not row.requested(stride).unpack_from(entries)[_MAX_BYTES]
            (asked if asks_none else front).append(block)
        elif topic not in granted_topics and _holds_back_all(topic):
            asked.append(RequestTopic(name, row.with_no_bytes(entries, stride), stride, tags))
        else:
            kept: list[bytes] = []
            zero: list[bytes] = []
            for start, (partition, _, _) in zip(
                range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
            ):
                entry = entries[start : start + stride]
                if partition not in topic.behind and partition not in topic.unknown:
                    kept.append(entry)
                elif topic in granted_topics and topic.partitions[partition] in granted:
                    found[topic.partitions[partition]] = entry
                else:
                    zero.append(entry)
            if kept:
                front.append(RequestTopic(name, b"".join(kept), stride))
            if zero:
                asked.append(RequestTopic(name, row.with_no_bytes(b"".join(zero), stride), stride))
    return front, found, asked


def without_behind(link: ReplicaLink, row: FetchVersion, block: RequestTopic) -> RequestTopic:
    """The entries of one block that are not behind."""
    name, entries, stride, _ = block
    topic = link.topics.get(name)
    if topic is None or not topic.behind:
        return block
    if _holds_back_all(topic):
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
    request: FetchRequest, grants: list[Grant], entries: dict[ReplicaPartition, bytes]
) -> list[RequestTopic]:
    """The partitions granted in the order of their grants; but for its cap each stays as it came."""
    row = fetch_version(request.header.api_version)
    return [
        RequestTopic(replica.topic.key, row.with_max_bytes(entries[replica], cap), len(entries[replica]))
        for replica, cap in grants
    ]
