# SPDX-License-Identifier: Apache-2.0
"""Makes the lines of a sample from what a side counted in an interval.

Everything is lazy. With 20,000 partitions a sample takes tens of milliseconds, and the event loop has to run in
between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import ceil, inf
from operator import add, sub
from typing import Any, Final, NamedTuple

from weir.quota.counters import IntervalCounts, LinkCounts, QuotaCounts, TopicCounts
from weir.quota.settings import REASSIGNMENT, RECOVERY
from weir.quota.side_quotas import CONFIGURED
from weir.quota.throttle import Throttle
from weir.samples.schema import BLOCK, LinkLine, PartitionColumns, PartitionsLine, QuotaLine

_SETTINGS = {CONFIGURED: "replication.throttled.rate"} | {
    name: f"{name}.throttled.rate" for name in (REASSIGNMENT, RECOVERY)
}
"""The settings of the quotas that have no name of their own, without the side that they begin with."""


_NUMBERS_PER_PART: Final = 2_000


class SampleKey(NamedTuple):
    """The fields that are alike in all lines of a sample, as `weir.samples.schema.Line` describes them."""

    broker_id: int
    start_id: str
    sequence: int
    begin_seconds: float
    end_seconds: float
    end_utc: str


def touch_behind(throttle: Throttle, counts: IntervalCounts) -> Iterator[None]:
    """See to it that each partition behind gets a line, though nothing of it moved. Yields after each of them.

    Call it before the lines are made.
    """
    for link in list(throttle.links):
        for topic in list(link.partitions.topics.values()):
            if topic.name is None or not topic.behind:
                continue
            touched = counts.link(link.partitions.counted_peer).topics[topic.name]
            for partition in list(topic.behind):
                touched.touch(partition)
                yield


def lines(
    throttle: Throttle, counts: IntervalCounts, key: SampleKey
) -> Iterator[PartitionsLine | LinkLine | QuotaLine | None]:
    """Yield the lines of one side, and free `counts` on the way. None is yielded between two parts of a long work."""
    common = {**key._asdict(), "side": throttle.side}
    for quota in counts.quotas:
        name = quota.settings.name
        quota_id = f"{throttle.side}.{_SETTINGS[name]}" if name in _SETTINGS else name
        yield _quota_line(quota, quota_id, key.end_seconds, common)
    connections = Counter(link.partitions.counted_peer for link in throttle.links)
    behind: Counter[int] = Counter()
    for link in throttle.links:
        behind[link.partitions.counted_peer] += link.partitions.behind_count
    away = throttle.away()
    for peer in {**counts.links, **connections, **away}:
        link_counts = counts.link(peer)
        of_peer = {**common, "peer": peer}
        yield LinkLine(
            **of_peer,
            bytes_throttled=link_counts.throttled,
            bytes_unthrottled=link_counts.unthrottled,
            bytes_complete=link_counts.throttled + link_counts.unthrottled - link_counts.cut,
            bytes_cut=link_counts.cut,
            left_out=link_counts.left_out,
            connections=connections[peer],
            partitions_behind=behind[peer],
            fetches=link_counts.fetches,
            fetches_held=link_counts.fetches_held,
            away_seconds=round(key.end_seconds - away[peer], 3) if peer in away else None,
        )
        replica = peer if throttle.side == "leader" else throttle.broker_id
        yield from _partitions_lines(throttle, link_counts, replica, of_peer)


def _partitions_lines(
    throttle: Throttle, counts: LinkCounts, replica: int, common: dict[str, Any]
) -> Iterator[PartitionsLine | None]:
    for name in list(counts.topics):
        topic = name.decode("utf-8", "replace")
        of_topic = counts.topics.pop(name)
        blocks: defaultdict[int, set[int]] = defaultdict(set)
        for number, partition in enumerate(of_topic.partitions(), start=1):
            blocks[partition // BLOCK].add(partition)
            if not number % _NUMBERS_PER_PART:
                yield None
        for block, found in blocks.items():
            partitions = sorted(found)
            columns = _columns(of_topic, partitions)
            yield None
            columns |= _lag_columns(throttle, replica, name, partitions)
            yield PartitionsLine(**common, topic=topic, block=block, columns=PartitionColumns(**columns))


def _columns(counts: TopicCounts, partitions: Sequence[int]) -> dict[str, Any]:
    unthrottled, throttled, cut, batches = counts.columns(partitions)
    moved = map(add, throttled, unthrottled)
    columns = {
        "bytes_throttled": throttled,
        "bytes_unthrottled": unthrottled,
        "bytes_complete": list(map(sub, moved, cut)),
        "bytes_cut": cut,
        "batches": batches,
    }
    return {"partition": tuple(partitions)} | {
        name: tuple(column) if any(column) else () for name, column in columns.items()
    }


def _lag_columns(throttle: Throttle, replica: int, topic: bytes, partitions: Sequence[int]) -> dict[str, Any]:
    lag = throttle.lag.known(replica, topic)
    now = throttle.clock()
    known = [None if lag is None else lag.of(partition, now) for partition in partitions]
    messages = tuple([None if of_partition is None else of_partition[0] for of_partition in known])
    # the lag of what a connection has not fetched yet has no length
    millis = tuple([None if of is None or of[1] == inf else round(of[1] * 1000) for of in known])
    columns = {"lag_messages": messages, "lag_ms": millis}
    return {name: () if all(value == 0 for value in column) else column for name, column in columns.items()}


def _quota_line(quota: QuotaCounts, quota_id: str, end_seconds: float, common: dict[str, Any]) -> QuotaLine:
    until = end_seconds if quota.end is None else quota.end
    first = int(quota.begin)
    behind_last = max(ceil(until), max(quota.seconds, default=first) + 1)
    return QuotaLine(
        **common,
        quota=quota_id,
        rate=quota.settings.rate,
        policy=quota.settings.policy,
        mode=quota.settings.mode,
        in_force_from_seconds=quota.begin,
        in_force_until_seconds=until,
        bytes=sum(quota.seconds.values()),
        first_second=first,
        bytes_by_second=tuple(quota.seconds.get(second, 0) for second in range(first, behind_last)),
    )
