"""Puts a whole request together anew: what passes, what is granted, and what is asked for with 0 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.protocol.fetch import FetchRequest, RequestTopic, fetch_version
from weir.protocol.steps import Steps, StepWork
from weir.quota.fetch.state import Grant, ReplicaPartition, ReplicaTopic

_WORK_PER_STEP = 500  # topics and entries looked at in one step of about 2 ms
_MAX_BYTES = 2  # index in (partition, fetch offset, partition_max_bytes)


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
    work = StepWork(_WORK_PER_STEP)
    for block in request.topics:
        name, entries, stride, tags = block
        topic = topics.get(name)
        is_looked_into = topic is not None and (topic.behind or topic.unknown)
        if work.is_enough(1 + len(entries) // stride if is_looked_into else 1):
            yield
        if topic is None or not (topic.behind or topic.unknown):
            asks_none = entries and not row.requested(stride).unpack_from(entries)[_MAX_BYTES]
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
        for start, (partition, _, max_bytes) in zip(
            range(0, len(entries), stride), row.requested(stride).iter_unpack(entries), strict=True
        ):
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
