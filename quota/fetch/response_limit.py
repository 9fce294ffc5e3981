"""KIP-74: a cap on the bytes that one replica fetch returns. Below v3, without a field, partitions take turns."""

from __future__ import annotations

from itertools import chain

from weir.protocol.fetch import FetchRequest, RequestTopic, fetch_version

FIRST_VERSION_WITH_LIMIT = 3
_WAIT_WITH_SOME_LEFT_OUT_MS = 50  # new data of a partition asked for with 0 bytes wakes no fetch, so come back soon


def limit_response(request: FetchRequest, limit: int, start: int) -> tuple[FetchRequest, int]:
    """Return `request` with its response capped at max(limit, one partition's first batch) bytes of records.

    Below v3 a partition is taken whole or not at all, so the cap is max(limit, partition_max_bytes of one partition).
    Turns begin with the partition at `start`; returns where those of the next fetch do, too.
    """
    if request.header.api_version >= FIRST_VERSION_WITH_LIMIT:
        # Never 0: the broker would answer at once each time, with nothing.
        return (request.with_(max_bytes=max(1, limit)) if request.max_bytes > limit else request), start
    row = fetch_version(request.header.api_version)
    partitions = [
        RequestTopic(name, entries[at : at + stride], stride)
        for name, entries, stride, _ in request.topics
        for at in range(0, len(entries), stride)
    ]
    sizes = [row.requested(one.stride).unpack(one.entries)[2] for one in partitions]
    if sum(sizes) <= limit or not sizes:
        return request, start
    included, start = _take_turns(sizes, limit, start % len(sizes))
    topics = [
        one if index in included else RequestTopic(one.name, row.with_no_bytes(one.entries, one.stride), one.stride)
        for index, one in enumerate(partitions)
    ]
    return request.with_(topics=topics, max_wait_ms=min(request.max_wait_ms, _WAIT_WITH_SOME_LEFT_OUT_MS)), start


def _take_turns(sizes: list[int], limit: int, start: int) -> tuple[set[int], int]:
    """Return the indexes to include: from `start` on while they fit, and at least one with bytes; and the next one."""
    included: set[int] = set()
    total = 0
    for index in chain(range(start, len(sizes)), range(start)):
        if total and total + sizes[index] > limit:
            return included, index
        included.add(index)
        total += sizes[index]
    return included, start
