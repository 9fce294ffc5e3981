# SPDX-License-Identifier: Apache-2.0
"""Counts the records of one Fetch answer or one Produce request while its bytes pass, in chunks of any size.

No record is read, and nothing is kept but a few bytes of the head that a chunk cuts off and two figures for each topic.
The layouts are those of Kafka's FetchResponse.json, v0 to v18, ProduceRequest.json, v0 to v13, and
ShareFetchResponse.json, v1 and v2 (KIP-932). A share group's member is given whole batches, and told which of their
records are its own: only these count.
"""

import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final, NamedTuple

from weir.protocol.batch_counter import count_batches, count_others
from weir.protocol.fetch_versions import ABORTED_TRANSACTION_SIZE, FETCH_VERSIONS, TOPIC_ID_SIZE
from weir.protocol.frame_reader import CannotRead, FrameReader, Structure
from weir.protocol.header import FETCH, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.primitives import LONGEST_STRING, STRING_LENGTH
from weir.protocol.produce_versions import PRODUCE_VERSIONS

MOST_PARTITIONS: Final = 20_000
"""With more partitions in one frame the rest is not counted, as each takes some microseconds."""

MOST_TOPICS: Final = 1_000
"""The most topics that are counted one by one; the records of the others are counted under no name."""

SHARE_FETCH_VERSIONS: Final = range(1, 3)
"""The versions of ShareFetch whose answers are read."""

_LEAST_TOPIC: Final = 24  # bytes: a topic's name or id, and one partition
_LEAST_TRANSACTION: Final = ABORTED_TRANSACTION_SIZE + 1  # with its tag buffer
_LEAST_SHARED: Final = 22  # bytes of a partition of a ShareFetch answer: fixed fields, and one for each of the others
_ERROR_SIZE: Final = 2
_THROTTLE_AND_ERROR_SIZE: Final = SIZE.size + _ERROR_SIZE
_LEADER_SIZE: Final = 8
_ACQUIRED: Final = struct.Struct(">qqh")
"""Of records that a share group's member got: first offset, last offset, and how often they were delivered."""

_ACKS_AND_TIMEOUT_SIZE: Final = 6
_FIXED_HEADER_SIZE: Final = 8
_MOST_IN_A_BYTE: Final = 0x7F  # of a varint


class _Layout(NamedTuple):
    """How topics and their partitions are laid out in a Produce, or in the answer to a Fetch or ShareFetch."""

    api_key: int
    is_flexible: bool
    by_id: bool
    """Whether topics go by their ids."""
    head: int = 0
    """Bytes of fixed size in front of the topics."""
    fixed: int = SIZE.size
    """Bytes of a partition in front of aborted transactions, or of its records' size."""
    after: int | None = None
    """Bytes between aborted transactions and that size; None where there are none."""
    partition: struct.Struct = struct.Struct(">ii")
    """Reads the count of transactions of a classic version, if there is one, and the records' size where there are
    none."""
    is_transactional: bool = False
    """Whether a Produce has a transactional id."""


def _layouts() -> Iterator[tuple[tuple[int, int], _Layout]]:
    for version, row in FETCH_VERSIONS.items():
        after = SIZE.size * row.has_preferred_read_replica if row.has_aborted_transactions else None
        head, fixed = row.response_head.layout.size, row.response_partition.layout.size
        partition = struct.Struct(f">{fixed - SIZE.size}xii" if after is None else f">{fixed}xi{after}xi")
        yield (FETCH, version), _Layout(FETCH, row.is_flexible, row.names_topics_by_id, head, fixed, after, partition)
    for version, asked in PRODUCE_VERSIONS.items():
        layout = _Layout(PRODUCE, asked.is_flexible, asked.names_topics_by_id, _ACKS_AND_TIMEOUT_SIZE)
        yield (PRODUCE, version), layout._replace(is_transactional=asked.is_transactional)
    for version in SHARE_FETCH_VERSIONS:
        yield (SHARE_FETCH, version), _Layout(SHARE_FETCH, is_flexible=True, by_id=True)


def _nothing(_: object) -> None:
    pass


class RecordCounts(FrameReader):
    """Counts one frame: an answer as its ResponseWatcher, a request by `watch`. See FrameReader for how it is fed.

    It never raises: what cannot be read is not counted, and `fault` then has the reason, one of `frame` (lengths do not
    add up), `partitions` (too many) and `batch` (a length that no batch has; only its partition is not counted).
    """

    __slots__ = ("_partitions", "_starts_at_zero", "_topic", "by_id", "on_passed", "topics")

    def __init__(self, layout: _Layout) -> None:
        self.topics: dict[bytes, list[int]] = {}
        """[records, bytes of whole batches] by topic name or id."""
        self.on_passed: Callable[[RecordCounts], object] = _nothing
        """Called with it by `passed`."""
        self._topic = b""
        self._partitions = 0
        self._starts_at_zero = layout.api_key == PRODUCE
        self.by_id = layout.by_id
        """Whether topics go by their ids."""
        super().__init__(self._share() if layout.api_key == SHARE_FETCH else self._topics(layout))

    def watch(self, view: memoryview) -> bool:
        """Take the next bytes. Returns whether the last one has come, after `passed`."""
        self.receive(view)
        if not self.left:
            self.passed()
        return not self.left

    def passed(self) -> None:
        """Note that the frame has passed whole."""
        self.on_passed(self)

    # The structures. What is certain to follow is wanted in one piece; what is hot is read by local names, plainly.

    def _produce(self, layout: _Layout) -> Structure:
        """Read a Produce up to its acks."""
        self.skip(SIZE.size + _FIXED_HEADER_SIZE)
        yield from self.string()  # the client id is not compact in any version
        if layout.is_flexible:
            yield from self.tags()
            yield from self.compact_bytes()  # the transactional id
        elif layout.is_transactional:
            yield from self.string()

    def _topics(self, layout: _Layout) -> Structure:
        api_key, is_flexible, _, head, fixed, after, partition, _ = layout
        size_at = fixed if after is None else fixed + 1 + after  # in a flexible partition without transactions
        wanted = size_at + 1 if is_flexible else partition.size
        least = wanted + is_flexible
        if api_key == PRODUCE:
            yield from self._produce(layout)
        else:
            self.at += 2 * SIZE.size
            if is_flexible:
                yield from self.tags()
        self.at += head
        if is_flexible:
            topics = yield from self.count(_LEAST_TOPIC)
        else:
            if self.at + SIZE.size > self.end:
                yield SIZE.size
            (topics,) = SIZE.unpack_from(self.view, self.at)
            self.at += SIZE.size
            topics = self.checked(topics, _LEAST_TOPIC)
        for _ in range(topics):
            if is_flexible:
                partitions = yield from self._begin_topic(least)
            else:
                if self.at + STRING_LENGTH.size > self.end:
                    yield STRING_LENGTH.size
                (length,) = STRING_LENGTH.unpack_from(self.view, self.at)
                if length < 0:
                    raise CannotRead("frame")
                if self.at + STRING_LENGTH.size + length + SIZE.size > self.end:
                    yield STRING_LENGTH.size + length + SIZE.size
                name = self.at + STRING_LENGTH.size
                (partitions,) = SIZE.unpack_from(self.view, name + length)
                self.at = name + length + SIZE.size
                partitions = self.checked(partitions, least)
                self._enter(bytes(self.view[name : name + length]), partitions)
            view, at, end = self.view, self.at, self.end
            for _ in range(partitions):
                if at + wanted > end:
                    self.at = at
                    yield wanted
                    view, at, end = self.view, self.at, self.end
                if not is_flexible:
                    transactions, size = partition.unpack_from(view, at)
                    if transactions > 0 and after is not None:
                        self.at = at
                        self.skip(transactions * ABORTED_TRANSACTION_SIZE)
                        yield from self.need(wanted)
                        view, at, end = self.view, self.at, self.end
                        (size,) = SIZE.unpack_from(view, at + wanted - SIZE.size)
                    at += wanted
                else:
                    if after is not None and view[at + fixed] > 1:
                        self.at = at + fixed
                        yield from self._transactions(after)
                        view, at, end = self.view, self.at, self.end
                    else:
                        at += size_at
                    size = view[at] - 1
                    if size < _MOST_IN_A_BYTE:
                        at += 1
                    else:
                        self.at = at
                        size = (yield from self.varint()) - 1
                        view, at, end = self.view, self.at, self.end
                if size > 0:
                    records_end = at + size
                    if records_end > self.frame_end:
                        raise CannotRead("frame")
                    records, self.at = count_batches(view, at, end, records_end)
                    if self.at > at:
                        counted = self.topics.setdefault(self._topic, [0, 0])
                        counted[0] += records
                        counted[1] += self.at - at
                    if self.at < records_end:
                        yield from self._count_others(records_end - self.at)
                        view, end = self.view, self.end
                    at = self.at
                if is_flexible:
                    if at < end and not view[at]:
                        at += 1
                    else:
                        self.at = at
                        yield from self.tags()
                        view, at, end = self.view, self.at, self.end
            self.at = at
            if is_flexible:
                yield from self.tags()

    def _transactions(self, after: int) -> Structure:
        """Step over aborted transactions, and over `after` bytes between these and the records' size."""
        for _ in range((yield from self.count(_LEAST_TRANSACTION))):
            self.skip(ABORTED_TRANSACTION_SIZE)
            yield from self.tags()
        yield from self.need(after + 1)
        self.at += after

    def _share(self) -> Structure:
        self.skip(2 * SIZE.size)
        yield from self.tags()
        self.skip(_THROTTLE_AND_ERROR_SIZE)
        yield from self.compact_bytes()  # what the error is
        self.skip(SIZE.size)  # how long acquired records are locked
        for _ in range((yield from self.count(_LEAST_TOPIC))):
            for _ in range((yield from self._begin_topic(_LEAST_SHARED))):
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
            yield from self.tags()

    def _begin_topic(self, least: int) -> Generator[int, None, int]:
        """Read a topic of a flexible version up to its partitions of `least` bytes; returns how many there are."""
        length = TOPIC_ID_SIZE if self.by_id else (yield from self.varint()) - 1
        if not 0 <= length <= LONGEST_STRING:
            raise CannotRead("frame")
        yield from self.need(length + 1)
        topic = bytes(self.view[self.at : self.at + length])
        self.at += length
        partitions = yield from self.count(least)
        self._enter(topic, partitions)
        return partitions

    def _enter(self, topic: bytes, partitions: int) -> None:
        """Count what follows for a topic, which has so many partitions."""
        self._topic = b"" if len(self.topics) >= MOST_TOPICS and topic not in self.topics else topic
        self._partitions += partitions
        if self._partitions > MOST_PARTITIONS:
            raise CannotRead("partitions")

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


_LAYOUTS: Final[Mapping[tuple[int, int], _Layout]] = dict(_layouts())


def counts_of(api_key: int, version: int) -> RecordCounts | None:
    """Return a counter for a Produce, or the answer to a Fetch or ShareFetch; None where the layout is not known."""
    layout = _LAYOUTS.get((api_key, version))
    return None if layout is None else RecordCounts(layout)
