"""Counts the records of one Fetch answer or one Produce request while its bytes pass, in chunks of any size.

No record is read, and nothing is kept but a few bytes of the head that a chunk cuts off and two figures for each topic.
The layouts are those of Kafka's FetchResponse.json, v0 to v18, ProduceRequest.json, v0 to v13, and
ShareFetchResponse.json, v1 and v2 (KIP-932). A share group's member is given whole batches, and told which of their
records are its own: only these count.
"""

import struct
from collections.abc import Callable, Container, Generator, Mapping
from functools import lru_cache
from typing import Final

from weir.protocol.batch_counter import count_batches, count_others
from weir.protocol.fetch_versions import ABORTED_TRANSACTION_SIZE, FETCH_VERSIONS, TOPIC_ID_SIZE, FetchVersion
from weir.protocol.frame_reader import CannotRead, FrameReader, Structure
from weir.protocol.header import FETCH, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.primitives import LONGEST_STRING, STRING_LENGTH
from weir.protocol.produce_versions import PRODUCE_VERSIONS, ProduceVersion

MOST_PARTITIONS: Final = 20_000
"""With more partitions in one frame the rest is not counted, as each takes some microseconds."""

MOST_TOPICS: Final = 1_000
"""The most topics that are counted one by one; the records of the others are counted under no name."""

SHARE_FETCH_VERSIONS: Final = range(1, 3)
"""The versions of ShareFetch whose answers are read."""

_COUNTED: Final[Mapping[int, tuple[str, Container[int]]]] = {
    PRODUCE: ("produce", PRODUCE_VERSIONS),
    FETCH: ("fetch", FETCH_VERSIONS),
    SHARE_FETCH: ("share", SHARE_FETCH_VERSIONS),
}

_ERROR_SIZE: Final = 2
_THROTTLE_AND_ERROR_SIZE: Final = SIZE.size + _ERROR_SIZE
_LEADER_SIZE: Final = 8
_ACQUIRED: Final = struct.Struct(">qqh")
"""Of records that a share group's member got: first offset, last offset, and how often they were delivered."""

_ACKS_AND_TIMEOUT_SIZE: Final = 6
_FIXED_HEADER_SIZE: Final = 8
_MOST_IN_A_BYTE: Final = 0x7F  # of a varint


def _nothing(_: object) -> None:
    pass


@lru_cache
def _partition_head(fixed: int, after: int | None) -> struct.Struct:
    """Return a struct that reads the count of transactions and, if there are none, the records' size of a partition.

    Where `after` is None, there is no such count.
    """
    return struct.Struct(f">{fixed - SIZE.size}xii" if after is None else f">{fixed}xi{after}xi")


class RecordCounts(FrameReader):
    """Counts one frame: an answer as its ResponseWatcher, a request by `watch`. Feed it from the size prefix on.

    It never raises: what cannot be read is not counted, and `fault` then has the reason, one of `frame` (lengths do not
    add up), `partitions` (too many) and `batch` (a length that no batch has; only its partition is not counted).
    """

    __slots__ = ("_partitions", "_starts_at_zero", "_topic", "by_id", "on_passed", "topics")

    def __init__(self, structure: str, version: int) -> None:
        """`structure` is "fetch" or "share" for a Fetch or ShareFetch answer, "produce" for a Produce request."""
        self.topics: dict[bytes, list[int]] = {}
        """[records, bytes of whole batches] by topic name or id."""
        self.on_passed: Callable[[RecordCounts], object] = _nothing
        """Called with it by `passed`."""
        self._topic = b""
        self._partitions = 0
        self._starts_at_zero = structure == "produce"
        self.by_id = structure == "share"
        """Whether topics go by their ids: also from Fetch v13 and Produce v13 on."""
        if structure == "produce":
            asked = PRODUCE_VERSIONS[version]
            self.by_id = asked.names_topics_by_id
            super().__init__(self._produce(asked))
        elif structure == "share":
            super().__init__(self._share())
        else:
            row = FETCH_VERSIONS[version]
            self.by_id = row.names_topics_by_id
            super().__init__(self._fetch(row))

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

    def _fetch(self, row: FetchVersion) -> Structure:
        head, fixed = row.response_head.layout.size, row.response_partition.layout.size
        self.skip(SIZE.size)
        if row.is_flexible:
            yield from self.tags()
            yield from self._flexible(head, fixed)
        else:
            after = SIZE.size if row.has_preferred_read_replica else 0
            yield from self._classic(head, fixed, after if row.has_aborted_transactions else None)

    def _produce(self, row: ProduceVersion) -> Structure:
        self.skip(_FIXED_HEADER_SIZE)
        yield from self.string()  # the client id is not compact in any version
        if row.is_flexible:
            yield from self.tags()
            yield from self.compact_bytes()  # the transactional id
            yield from self._flexible(_ACKS_AND_TIMEOUT_SIZE, 0)
            return
        if row.is_transactional:
            yield from self.string()
        yield from self._classic(_ACKS_AND_TIMEOUT_SIZE, SIZE.size, None)

    def _classic(self, head: int, fixed: int, after: int | None) -> Structure:
        """Read topics, `head` bytes from here, of which each partition has `fixed` bytes before its records' size.

        `after`: in between come aborted transactions, after their count, and so many bytes.
        """
        partition = _partition_head(fixed, after)
        size_at = partition.size - SIZE.size
        self.skip(head)
        yield from self.need(SIZE.size)
        for _ in range(self._count()):
            if self.at + STRING_LENGTH.size > self.end:
                yield STRING_LENGTH.size
            (length,) = STRING_LENGTH.unpack_from(self.view, self.at)
            if length < 0:
                raise CannotRead("frame")
            if self.at + (wanted := STRING_LENGTH.size + length + SIZE.size) > self.end:
                yield wanted
            name = self.at + STRING_LENGTH.size
            self.at = name + length
            self._topic = bytes(self.view[name : self.at])
            partitions = self._checked_partitions(self._count())
            view, at, end = self.view, self.at, self.end
            for _ in range(partitions):
                if at + partition.size > end:
                    self.at = at
                    yield partition.size
                    view, at, end = self.view, self.at, self.end
                transactions, size = partition.unpack_from(view, at)
                if transactions > 0 and after is not None:
                    self.at = at
                    self.skip(transactions * ABORTED_TRANSACTION_SIZE)
                    yield from self.need(partition.size)
                    view, at, end = self.view, self.at, self.end
                    (size,) = SIZE.unpack_from(view, at + size_at)
                at += partition.size
                if size > 0:
                    self.at = at
                    if left := self._count_usual(size):
                        yield from self._count_others(left)
                        view, end = self.view, self.end
                    at = self.at
            self.at = at

    def _flexible(self, head: int, fixed: int) -> Structure:
        """Read topics of a flexible version, `head` bytes from here.

        Each partition begins with `fixed` bytes and aborted transactions; with neither where `fixed` is 0. Before the
        records' size comes an INT32: of the partition, or of the preferred read replica.
        """
        size_at = fixed + 1 + SIZE.size if fixed else SIZE.size
        self.skip(head)
        for _ in range((yield from self.count())):
            partitions = yield from self._begin_topic()
            view, at, end = self.view, self.at, self.end
            for _ in range(partitions):
                if at + size_at >= end:
                    self.at = at
                    yield size_at + 1
                    view, at, end = self.view, self.at, self.end
                if fixed and view[at + fixed] > 1:
                    self.at = at + fixed
                    yield from self._transactions()
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
                    self.at = at
                    if left := self._count_usual(size):
                        yield from self._count_others(left)
                        view, end = self.view, self.end
                    at = self.at
                if at < end and not view[at]:
                    at += 1
                else:
                    self.at = at
                    yield from self.tags()
                    view, at, end = self.view, self.at, self.end
            self.at = at
            yield from self.tags()

    def _transactions(self) -> Structure:
        """Step over aborted transactions, and over what is between these and the records' size."""
        for _ in range((yield from self.count())):
            self.skip(ABORTED_TRANSACTION_SIZE)
            yield from self.tags()
        yield from self.need(SIZE.size + 1)
        self.at += SIZE.size

    def _share(self) -> Structure:
        self.skip(SIZE.size)
        yield from self.tags()
        self.skip(_THROTTLE_AND_ERROR_SIZE)
        yield from self.compact_bytes()  # what the error is
        self.skip(SIZE.size)  # how long acquired records are locked
        for _ in range((yield from self.count())):
            for _ in range((yield from self._begin_topic())):
                # the error of the fetch is behind the partition, and then that of its acknowledgements
                self.skip(SIZE.size + _ERROR_SIZE)
                yield from self.compact_bytes()
                self.skip(_ERROR_SIZE)
                yield from self.compact_bytes()
                self.skip(_LEADER_SIZE)
                yield from self.tags()
                size = yield from self.compact_bytes()
                acquired = 0
                for _ in range((yield from self.count())):
                    yield from self.need(_ACQUIRED.size)
                    first, last, _ = _ACQUIRED.unpack_from(self.view, self.at)
                    self.at += _ACQUIRED.size
                    acquired += max(0, last - first + 1)
                    yield from self.tags()
                if acquired:
                    self._add(acquired, size)
                yield from self.tags()
            yield from self.tags()

    def _begin_topic(self) -> Generator[int, None, int]:
        """Read a topic of a flexible version up to its partitions, and return how many there are."""
        length = TOPIC_ID_SIZE if self.by_id else (yield from self.varint()) - 1
        if not 0 <= length <= LONGEST_STRING:
            raise CannotRead("frame")
        yield from self.need(length + 1)
        self._topic = bytes(self.view[self.at : self.at + length])
        self.at += length
        return self._checked_partitions((yield from self.count()))

    def _count(self) -> int:
        """Read an array's count of a classic version, which is there."""
        (count,) = SIZE.unpack_from(self.view, self.at)
        self.at += SIZE.size
        return self.checked(count)

    def _checked_partitions(self, count: int) -> int:
        self._partitions += count
        if self._partitions > MOST_PARTITIONS:
            raise CannotRead("partitions")
        return count

    def _count_usual(self, size: int) -> int:
        """Count batches in the next `size` bytes, a partition's records. Returns how many of the bytes are left."""
        at = self.at
        records_end = at + size
        if records_end > self.frame_end:
            raise CannotRead("frame")
        records, self.at = count_batches(self.view, at, self.end, records_end)
        if self.at > at:
            self._add(records, self.at - at)
        return records_end - self.at

    def _count_others(self, left: int) -> Structure:
        records, size, is_corrupt = yield from count_others(self, left, starts_at_zero=self._starts_at_zero)
        if is_corrupt:
            self.fault = "batch"
        if size:
            self._add(records, size)

    def _add(self, records: int, size: int) -> None:
        topic = self._topic if self._topic in self.topics or len(self.topics) < MOST_TOPICS else b""
        counted = self.topics.setdefault(topic, [0, 0])
        counted[0] += records
        counted[1] += size


def counts_of(api_key: int, version: int) -> RecordCounts | None:
    """Return a counter for a Produce, or the answer to a Fetch or ShareFetch; None where the layout is not known."""
    structure, versions = _COUNTED.get(api_key, ("", ()))
    return RecordCounts(structure, version) if version in versions else None
