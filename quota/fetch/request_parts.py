"""Puts a whole request together anew: what passes, what is granted, and what is asked for with 0 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.request_topics import RequestTopic
from weir.protocol.steps import PER_STEP, Steps, StepWork
from weir.quota.fetch.state import Grant, ReplicaPartition, ReplicaTopic
from weir.quota.figures import SHORTEST_WAIT_SECONDS


def treated_topics(
    topics: Mapping[bytes, ReplicaTopic],
    request: FetchRequest,
    grants: Sequence[Grant],
    *,
    grants_are_first: bool,
    drops_behind: bool,
) -> Steps[list[RequestTopic]]:
    """Return the topics to ask the leader for: in front what does not wait, then `grants`, and last all with 0 bytes.

    That is what waits, but with `drops_behind` only where no high watermark is known, and what an earlier hop asks for
    with 0 bytes: in front it would return a batch before the grants of the same fetch. `grants_are_first` has the
    grants in front of everything: where the others fill every answer, they would take turns if there were no quota.
    """
    row = fetch_version(request.header.api_version)
    front: list[RequestTopic] = []
    asked: list[RequestTopic] = []
    caps, found = dict(grants), dict[ReplicaPartition, bytes]()
    granted_topics = {replica.topic for replica in caps}
    work = StepWork(PER_STEP)
    for block in request.topics:
        name, entries, stride, tags = block
        topic = topics.get(name)
        is_looked_into = topic is not None and (topic.behind or topic.unknown)
        if work.is_enough(1 + len(entries) // stride if is_looked_into else 1):
            yield
        if topic is None or not (topic.behind or topic.unknown):
            asks_none = False
            if entries:
                _, _, max_bytes = row.requested(stride).unpack_from(entries)
                asks_none = not max_bytes
            (asked if asks_none else front).append(block)
            continue
        waiting = len(topic.behind) + len(topic.unknown)
        if topic not in granted_topics and waiting == len(topic.partitions) and not (drops_behind and topic.behind):
            asked.append(RequestTopic(name, row.with_no_bytes(entries, stride), stride, tags))
            continue
        if drops_behind and len(topic.behind) == len(topic.partitions):
            continue
        kept: list[bytes] = []
        zero: list[bytes] = []
        requested: Iterable[tuple[int, tuple[int, ...]]] = zip(
            range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
        )
        if drops_behind and not topic.unknown:  # the loop below, quicker
            behind = topic.behind
            kept = [
                entries[start : start + stride] for start, (partition, _, _) in requested if partition not in behind
            ]
            requested = ()
        for start, (partition, _, max_bytes) in requested:
            entry = entries[start : start + stride]
            if partition in topic.behind:
                if topic.behind[partition] in caps:
                    found[topic.behind[partition]] = entry
                elif not drops_behind:
                    zero.append(entry)
            elif partition in topic.unknown:
                if (replica := topic.partitions[partition]) in caps:
                    found[replica] = entry
                else:
                    zero.append(entry)
            else:
                (kept if max_bytes else zero).append(entry)
        if kept:
            front.append(RequestTopic(name, b"".join(kept), stride))
        if zero:
            asked.append(RequestTopic(name, row.with_no_bytes(b"".join(zero), stride), stride))
    funded = [
        RequestTopic(one.topic.key, row.with_max_bytes(found[one], cap), len(found[one])) for one, cap in caps.items()
    ]
    return (funded + front if grants_are_first else front + funded) + asked


def limit_response(request: FetchRequest, limit: int, number: int) -> FetchRequest:
    """Return `request` with its response capped at max(limit, one partition's first batch) bytes of records.

    Below v3 a partition is taken whole or not at all, so the cap is max(limit, partition_max_bytes of one partition).
    They take turns: `number` is one more for each fetch.
    """
    row = fetch_version(request.header.api_version)
    if not row.takes_whole:
        # Never 0: the broker would answer at once each time, with nothing.
        return request.with_(max_bytes=max(1, limit)) if request.max_bytes > limit else request
    partitions = [
        RequestTopic(name, entries[at : at + stride], stride)
        for name, entries, stride, _ in request.topics
        for at in range(0, len(entries), stride)
    ]
    sizes = [row.requested(one.stride).unpack(one.entries)[2] for one in partitions]
    if sum(sizes) <= limit or not sizes:
        return request
    # new data of a partition asked for with 0 bytes wakes no fetch, so come back soon
    wait_ms = round(1000 * SHORTEST_WAIT_SECONDS)
    included = _take_turns(sizes, limit, number * max(1, limit // max(sizes)) % len(sizes))
    topics = [
        one if index in included else RequestTopic(one.name, row.with_no_bytes(one.entries, one.stride), one.stride)
        for index, one in enumerate(partitions)
    ]
    return request.with_(topics=topics, max_wait_ms=min(request.max_wait_ms, wait_ms))


def _take_turns(sizes: list[int], limit: int, start: int) -> set[int]:
    """Return the indexes to include: from `start` on while they fit, and at least one with bytes."""
    included: set[int] = set()
    total = 0
    for index in chain(range(start, len(sizes)), range(start)):
        if total and total + sizes[index] > limit:
            break
        included.add(index)
        total += sizes[index]
    return included
