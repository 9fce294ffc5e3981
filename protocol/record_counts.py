# SPDX-License-Identifier: Apache-2.0
"""Counts the records of one Fetch answer or one Produce request while its bytes pass, in chunks of any size.

No record is read, and nothing is kept but a few bytes of the head that a chunk cuts off and two figures for each topic.
The layouts are those of Kafka's FetchResponse.json, v0 to v18, ProduceRequest.json, v0 to v13, and
ShareFetchResponse.json, v1 and v2 (KIP-932). A share group's member is given whole batches, and told which of their
records are its own: only these count.
"""

import struct
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Final

from weir.protocol.batch_counter import count_batches, count_others
from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import FETCH_VERSIONS, TOPIC_ID_SIZE, FetchVersion
from weir.protocol.frame_reader import Structure
from weir.protocol.header import FETCH, FIXED_HEADER, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.primitives import LONGEST_STRING
from weir.protocol.produce_versions import PRODUCE_VERSIONS, ProduceVersion
from weir.protocol.records import RecordsSeen
from weir.protocol.response_body import TopicsLayout, TopicsReader, answer_layout

MOST_PARTITIONS: Final = 20_000
"""With more partitions in one frame the rest is not counted, as each takes some microseconds."""

MOST_TOPICS: Final = 1_000
"""The most topics that are counted one by one; the records of the others are counted under no name."""

SHARE_FETCH_VERSIONS: Final = range(1, 3)
"""The versions of ShareFetch whose answers are read."""

_LEAST_SHARED_TOPIC: Final = TOPIC_ID_SIZE + 2  # bytes: its id, a count, and a tag buffer
_LEAST_SHARED: Final = 22  # bytes of a partition of a ShareFetch answer: fixed fields, and one for each of the others
_ERROR_SIZE: Final = 2
_THROTTLE_AND_ERROR_SIZE: Final = SIZE.size + _ERROR_SIZE
_LEADER_SIZE: Final = 8
_ACQUIRED: Final = struct.Struct(">qqh")
"""Of records that a share group's member got: first offset, last offset, and how often they were delivered."""

_ACKS_AND_TIMEOUT_SIZE: Final = 6


@lru_cache
def _produce_layout(is_flexible: bool, by_id: bool) -> TopicsLayout:
    return TopicsLayout(SIZE.size, is_flexible=is_flexible, by_id=by_id)


def _nothing(_: object) -> None:
    pass


class RecordCounts(TopicsReader):
    """Counts one frame: an answer as its ResponseObserver, a request by `watch`. See FrameReader for how it is fed.

    It never raises: what cannot be read is not counted, and `fault` then has the reason, one of `frame` (lengths do not
    add up), `partitions` (too many) and `batch` (a length that no batch has; only its partition is not counted).
    """

    __slots__ = ("_starts_at_zero", "_topic", "by_id", "on_passed", "topics")

    def __init__(self, structure: Callable[["RecordCounts"], Structure], *, by_id: bool, starts_at_zero: bool) -> None:
        self.topics: dict[bytes, list[int]] = {}
        """[records, bytes of whole batches] by topic name or id."""
        self.on_passed: Callable[[RecordCounts], object] = _nothing
        """Called with it by `passed`."""
        self.by_id = by_id
        """Whether topics go by their ids."""
        self._topic = b""
        self._starts_at_zero = starts_at_zero
        super().__init__(structure(self), None)

    def watch(self, view: memoryview) -> bool:
        """Take the next bytes. Returns whether the last one has come, after `passed`."""
        self.see(view)
        if not self.left:
            self.passed()
        return not self.left

    def passed(self) -> None:
        """Note that the frame has passed whole."""
        self.on_passed(self)

    # The structures

    def fetched(self, row: FetchVersion) -> Structure:
        """Read the answer to a Fetch."""
        self.at += 2 * SIZE.size
        if row.is_flexible:
            yield from self.tags()
        self.at += row.response_head.layout.size
        layout = answer_layout(row.api_version)
        yield from self.read_topics(layout, (yield from self._count_of(layout)), MOST_PARTITIONS, LONGEST_STRING)

    def produced(self, row: ProduceVersion) -> Structure:
        """Read a Produce."""
        self.at += SIZE.size + FIXED_HEADER.size
        yield from self.string()  # the client id is not compact in any version
        if row.is_flexible:
            yield from self.tags()
            yield from self.compact_bytes()  # the transactional id
        elif row.is_transactional:
            yield from self.string()
        self.at += _ACKS_AND_TIMEOUT_SIZE
        layout = _produce_layout(row.is_flexible, row.names_topics_by_id)
        yield from self.read_topics(layout, (yield from self._count_of(layout)), MOST_PARTITIONS, LONGEST_STRING)

    def _count_of(self, layout: TopicsLayout) -> Generator[int, None, int]:
        """Read the count of topics."""
        if layout.is_flexible:
            return (yield from self.count(layout.smallest_topic))
        yield from self.need(SIZE.size)
        (topics,) = SIZE.unpack_from(self.view, self.at)
        self.at += SIZE.size
        return self.checked(topics, layout.smallest_topic)

    def shared(self) -> Structure:
        """Read the answer to a ShareFetch."""
        self.skip(2 * SIZE.size)
        yield from self.tags()
        self.skip(_THROTTLE_AND_ERROR_SIZE)
        yield from self.compact_bytes()  # what the error is
        self.skip(SIZE.size)  # how long acquired records are locked
        allowed = MOST_PARTITIONS
        for _ in range((yield from self.count(_LEAST_SHARED_TOPIC))):
            yield from self.need(TOPIC_ID_SIZE)
            self.enter(bytes(self.view[self.at : self.at + TOPIC_ID_SIZE]))
            self.at += TOPIC_ID_SIZE
            partitions = yield from self.count(_LEAST_SHARED)
            if partitions > allowed:
                raise self.wrong_count(partitions, allowed, self.at)
            allowed -= partitions
            for _ in range(partitions):
                yield from self._shared_partition()
            yield from self.tags()

    def _shared_partition(self) -> Structure:
        # the error of the fetch is behind the partition, and then that of its acknowledgements
        self.skip(SIZE.size + _ERROR_SIZE)
        yield from self.compact_bytes()
        self.skip(_ERROR_SIZE)
        yield from self.compact_bytes()
        self.skip(_LEADER_SIZE)
        yield from self.tags()
        size = yield from self.compact_bytes()
        acquired = 0
        for _ in range((yield from self.count(_ACQUIRED.size + 1))):
            yield from self.need(_ACQUIRED.size)
            first, last, _ = _ACQUIRED.unpack_from(self.view, self.at)
            self.at += _ACQUIRED.size
            acquired += max(0, last - first + 1)
            yield from self.tags()
        if acquired:
            self._add(acquired, size)
        yield from self.tags()

    # What is read of topics

    def enter(self, name: bytes) -> None:
        self._topic = b"" if len(self.topics) >= MOST_TOPICS and name not in self.topics else name

    def wrong_count(self, partitions: int, allowed: int, at: int) -> MalformedFrame:
        if partitions > allowed:
            self.fault = self.fault or "partitions"
        return super().wrong_count(partitions, allowed, at)

    def records(self, partition: int, size: int, size_bytes: int, seen: list[RecordsSeen]) -> Structure | None:
        start = self.at
        records_end = start + size
        records, after = count_batches(self.view, start, self.end, records_end)
        if after > start:
            counted = self.topics.get(self._topic) or self.topics.setdefault(self._topic, [0, 0])
            counted[0] += records
            counted[1] += after - start
            self.at = after
        return self._count_others(records_end - after) if after < records_end else None

    def _count_others(self, left: int) -> Structure:
        records, size, is_corrupt = yield from count_others(self, left, starts_at_zero=self._starts_at_zero)
        if is_corrupt:
            self.fault = "batch"
        if size:
            self._add(records, size)

    def _add(self, records: int, size: int) -> None:
        counted = self.topics.setdefault(self._topic, [0, 0])
        counted[0] += records
        counted[1] += size


def counts_of(api_key: int, version: int) -> RecordCounts | None:
    """Return a counter for a Produce, or the answer to a Fetch or ShareFetch; None where the layout is not known."""
    if api_key == FETCH and (row := FETCH_VERSIONS.get(version)) is not None:
        return RecordCounts(lambda counts: counts.fetched(row), by_id=row.names_topics_by_id, starts_at_zero=False)
    if api_key == PRODUCE and (asked := PRODUCE_VERSIONS.get(version)) is not None:
        return RecordCounts(lambda counts: counts.produced(asked), by_id=asked.names_topics_by_id, starts_at_zero=True)
    if api_key == SHARE_FETCH and version in SHARE_FETCH_VERSIONS:
        return RecordCounts(RecordCounts.shared, by_id=True, starts_at_zero=False)
    return None
