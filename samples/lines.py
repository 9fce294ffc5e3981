"""Makes the lines of a sample from what a side counted in an interval.

Everything is lazy. With 20,000 partitions a sample takes tens of milliseconds, and the event loop has to run in
between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from quota.counters import IntervalCounts, LinkCounts, QuotaCounts
from quota.lag.topic_lag import TopicLag
from quota.settings import REASSIGNMENT, RECOVERY
from quota.side_quotas import CONFIGURED
from quota.throttle import Throttle
from samples.schema import LinkLine, PartitionLine, QuotaLine

_SETTINGS = {CONFIGURED: "replication.throttled.rate"} | {
    name: f"{name}.throttled.rate" for name in (REASSIGNMENT, RECOVERY)
}
"""The settings of the quotas that have no name of their own, without the side that they begin with."""


class SampleKey(NamedTuple):
    """The fields that all lines of a sample share; see `samples.schema.Line`."""

    broker_id: int
    start_id: str
    sequence: int
    begin_seconds: float
    end_seconds: float
    end_utc: str


def count_left_out(throttle: Throttle, counts: IntervalCounts) -> Iterator[None]:
    """Add to `counts` how often each partition behind was left out. Yields after each of them.

    Call it before the lines are made: while a partition stays behind, this is not counted anywhere else.
    """
    for link in list(throttle.links):
        for topic in list(link.partitions.topics.values()):
            for replica in list(topic.behind.values()):
                link.partitions.count_left_out(replica, counts)
                yield


def lines(throttle: Throttle, counts: IntervalCounts, key: SampleKey) -> Iterator[PartitionLine | LinkLine | QuotaLine]:
    """Yield the lines of one side, and free `counts` on the way."""
    common = {**key._asdict(), "side": throttle.side}
    for quota in counts.quotas:
        name = quota.settings.name
        quota_id = f"{throttle.side}.{_SETTINGS[name]}" if name in _SETTINGS else name
        yield _quota_line(quota, quota_id, key.end_seconds, common)
    connections = Counter(link.counted_peer for link in throttle.links)
    behind: Counter[int] = Counter()
    for link in throttle.links:
        behind[link.counted_peer] += link.partitions.behind_count
    for peer in {**counts.links, **connections}:
        link_counts = counts.link(peer)
        of_peer = {**common, "peer": peer}
        yield LinkLine(
            **of_peer,
            **_byte_fields(link_counts.throttled, link_counts.unthrottled, link_counts.cut),
            left_out=link_counts.left_out,
            connections=connections[peer],
            partitions_behind=behind[peer],
            fetches=link_counts.fetches,
            fetches_held=link_counts.fetches_held,
        )
        replica = peer if throttle.side == "leader" else throttle.broker_id
        yield from _partition_lines(throttle, link_counts, replica, of_peer)


def _partition_lines(
    throttle: Throttle, counts: LinkCounts, replica: int, common: dict[str, Any]
) -> Iterator[PartitionLine]:
    for name in list(counts.topics):
        topic = name.decode("utf-8", "replace")
        lag = throttle.lag.known(replica, name)
        for partition, of_partition in counts.topics.pop(name).partitions():
            messages, seconds = _lag_of(lag, partition, throttle.clock())
            yield PartitionLine(
                **common,
                **_byte_fields(of_partition.throttled, of_partition.unthrottled, of_partition.cut),
                left_out=of_partition.left_out,
                topic=topic,
                partition=partition,
                batches=of_partition.batches,
                lag_messages=messages,
                lag_seconds=seconds,
            )


def _lag_of(lag: TopicLag | None, partition: int, now: float) -> tuple[int | None, float | None]:
    known = None if lag is None else lag.of(partition, now)
    return (None, None) if known is None else (known[0], round(known[1], 3))


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


def _byte_fields(throttled: int, unthrottled: int, cut: int) -> dict[str, Any]:
    return {
        "bytes_throttled": throttled,
        "bytes_unthrottled": unthrottled,
        "bytes_complete": throttled + unthrottled - cut,
        "bytes_cut": cut,
    }
