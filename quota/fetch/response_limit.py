"""KIP-74: a cap on the bytes that one replica fetch returns.

From v3 on the request has a field for it, max_bytes: the leader fills partitions in the request's order up to it, and
the first one with data returns at least one whole batch. Below v3 there is none, so whole partitions take turns: the
others are asked for with 0 bytes.
"""

from __future__ import annotations

from weir.protocol.fetch_request import FetchRequest
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.request_topics import RequestTopic

FIRST_VERSION_WITH_LIMIT = 3
_WAIT_WITH_SOME_LEFT_OUT_MS = 50  # new data of a partition asked for with 0 bytes wakes no fetch, so come back soon


class ResponseRotation:
    """The partition with which the next fetch begins, for versions in which partitions take turns."""

    __slots__ = ("start",)

    def __init__(self) -> None:
        self.start = 0


def limit_response(request: FetchRequest, limit: int, rotation: ResponseRotation) -> FetchRequest:
    """Return `request` with its response capped at max(limit, one partition's first batch) bytes of records.

    Below v3 a partition is taken whole or not at all, so the cap is max(limit, partition_max_bytes of one partition).
    """
    if request.header.api_version >= FIRST_VERSION_WITH_LIMIT:
        # Never 0: the broker would answer at once each time, with nothing.
        return request.with_(max_bytes=max(1, limit)) if request.max_bytes > limit else request
    row = fetch_version(request.header.api_version)
    partitions = [
        RequestTopic(name, entries[at : at + stride], stride)
        for name, entries, stride, _ in request.topics
        for at in range(0, len(entries), stride)
    ]
    sizes = [row.requested(one.stride).unpack(one.entries)[2] for one in partitions]
    if sum(sizes) <= limit or not sizes:
        return request
    included = _take_turns(sizes, limit, rotation)
    topics = [
        one if index in included else RequestTopic(one.name, row.with_no_bytes(one.entries, one.stride), one.stride)
        for index, one in enumerate(partitions)
    ]
    return request.with_(topics=topics, max_wait_ms=min(request.max_wait_ms, _WAIT_WITH_SOME_LEFT_OUT_MS))


def _take_turns(sizes: list[int], limit: int, rotation: ResponseRotation) -> set[int]:
    """Return the indexes to include: from the rotation's start on while they fit, and at least one with bytes."""
    included: set[int] = set()
    total = 0
    start = rotation.start % len(sizes)
    for step in range(len(sizes)):
        index = (start + step) % len(sizes)
        if total and total + sizes[index] > limit:
            rotation.start = index
            break
        included.add(index)
        total += sizes[index]
    return included
