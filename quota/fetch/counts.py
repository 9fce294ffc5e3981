"""What is counted of a link's answers, for the metrics and for the samples."""

from __future__ import annotations

from collections.abc import Sequence

from weir.protocol.metadata import NO_ID
from weir.protocol.response_scanner import RecordsSeen
from weir.quota.fetch.partitions import LinkPartitions


def count_bytes(link: LinkPartitions, throttled: int, unthrottled: int, cut: int) -> None:
    """Count record bytes of a link, by whether their partitions are throttled.

    `cut` counts the bytes of both that belonged to batches cut at their end: the follower throws them away.
    """
    stats = link.side.stats
    if throttled:
        stats.count_replication(link.counted_peer, True, throttled)
    if unthrottled:
        stats.count_replication(link.counted_peer, False, unthrottled)
    stats.cut_bytes += cut
    if stats.interval is not None and throttled + unthrottled:
        counts = stats.interval.link(link.counted_peer)
        counts.throttled += throttled
        counts.unthrottled += unthrottled
        counts.cut += cut


def count_strays(link: LinkPartitions, key: bytes, is_id: bool, records: Sequence[RecordsSeen]) -> None:
    """Count what came for a topic that the follower stopped asking for while the answer was on its way."""
    side, stats = link.side, link.side.stats
    name = side.topic_names.name_of(key) if is_id else key
    throttled = side.rules.throttled_partitions(name, NO_ID, link.ends)
    sizes = {True: 0, False: 0}
    for seen in records:
        is_throttled = seen.partition in throttled
        sizes[is_throttled] += seen.size
        if name is not None:
            stats.sizes(name)[seen.partition] += seen.size
            if stats.interval is not None:
                stats.interval.link(link.counted_peer).topics[name].count(seen, is_throttled)
    count_bytes(link, sizes[True], sizes[False], sum([seen.cut_bytes for seen in records]))
