# SPDX-License-Identifier: Apache-2.0
"""Reads the topics of a Fetch response while their bytes pass.

`ResponseBody` knows the structure of every version, unit by unit and byte by byte: the head of a topic, a partition,
the end of a topic. This is slow. So its subclasses read whole runs of usual units within one chunk, and stop at
everything else: a unit that the chunk cuts off, rare fields, and errors. Errors are raised only here, so they do not
depend on how a response is cut into chunks.
"""

import struct
from collections.abc import Container, Generator
from dataclasses import InitVar, dataclass, field
from typing import Final, NamedTuple, TypeAlias

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import ABORTED_TRANSACTION_SIZE, TOPIC_ID_SIZE, FetchVersion
from weir.protocol.header import SIZE
from weir.protocol.primitives import COUNT, LONGEST_STRING, STRING_LENGTH
from weir.protocol.records import RecordsSeen, RecordWalker
from weir.protocol.take_out import Passing, TakeOut
from weir.protocol.varint import LONGEST_VARINT, MOST_TAGS

RESPONSE_ENTRY: Final = struct.Struct(">ihqi")
"""What is kept of a partition: partition, error_code, high_watermark, bytes of its records (-1: null)."""

HEAD_SIZE: Final = RESPONSE_ENTRY.size - SIZE.size
"""Bytes of partition, error_code and high_watermark, with which a partition begins in every version."""

_LONGEST_NAME: Final = 255
"""The most bytes that a topic's name may have (Kafka's limit is 249); a leader that sends a longer one is not trusted.
"""

_NO_BOUND: Final = 2**63
_NULL: Final = -1  # null records take no bytes


Unit: TypeAlias = Generator[int, bytes, None]
"""Reads a unit of a frame. It yields n > 0 to be sent the next n bytes whole, and n < 0 to have -n bytes skipped."""


class _LongVarint(Exception):
    """An unsigned varint does not end within LONGEST_VARINT bytes, which were read."""


def _varint() -> Generator[int, bytes, int]:
    """Read an unsigned varint, for use within a unit. Raises _LongVarint."""
    value = 0
    for index in range(LONGEST_VARINT):
        (byte,) = yield 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
    raise _LongVarint


class ScannedTopic(NamedTuple):
    """One topic of a response.

    - `name`: its name, from v13 on its id.
    - `headers`: its partitions as RESPONSE_ENTRY, one after the other in wire order (size -1: null records).
    - `records`: what was seen of each partition with records, in the same order.
    - `diverging`: the partitions with a diverging epoch (v12+), which the follower will truncate.
    """

    name: bytes
    headers: bytes
    records: list[RecordsSeen]
    diverging: tuple[int, ...] = ()


@dataclass(eq=False, repr=False, slots=True)
class ResponseBody:
    """What follows a response's head: `_topics_left` topics in the last `left` bytes of a frame of `_frame_size` bytes.

    It raises MalformedFrame when there are more than `most_partitions` (None is no bound). `topics` is complete when
    `left` is 0. `behind_topics` is how many bytes of the frame follow the topics array; -1 until that is known.
    """

    _row: FetchVersion
    _topics_left: int
    left: int
    _frame_size: int
    _walk: Container[bytes]
    most_partitions: InitVar[int | None]
    topics: list[ScannedTopic] = field(default_factory=list)
    behind_topics: int = -1
    take_out: TakeOut | None = None
    """What to ask about each partition's records, while some may be taken out."""
    _smallest: int = field(init=False)
    _transactions_at: int = field(init=False)
    _allowed: int = field(init=False)  # partitions that may still come
    _longest_name: int = field(init=False)
    # the topic being read
    _in_topic: bool = False
    _name: bytes = b""
    _is_walked: bool = False
    _partitions_left: int = 0
    _seen_headers: list[bytes] = field(default_factory=list)
    _records: list[RecordsSeen] = field(default_factory=list)
    _diverging: list[int] = field(default_factory=list)
    # the unit being read
    _unit: Unit | None = None
    _wanted: int = 0  # bytes that the unit waits for
    _held: bytearray = field(default_factory=bytearray)  # the first of these bytes
    _skip: int = 0  # bytes that the unit skips
    _walker: RecordWalker | None = None  # sees the skipped bytes, if they are records

    def __post_init__(self, most_partitions: int | None) -> None:
        row = self._row
        self.behind_topics = -1 if self._topics_left else self.left
        self._smallest = smallest_partition(row)
        self._transactions_at = row.response_partition.layout.size if row.has_aborted_transactions else 0
        self._allowed = _NO_BOUND if most_partitions is None else most_partitions
        self._longest_name = LONGEST_STRING if most_partitions is None else _LONGEST_NAME

    def walk(self, view: memoryview, at: int, end: int) -> None:
        """Read `view[at:end]`, which is of this frame only, and begins where the last chunk ended."""
        while at < end:
            if self._skip:
                at = self._pass_over(view, at, end)
            elif self._unit is not None:
                at = self._take(view, at, end)
            elif self._in_topic:
                if self._partitions_left:
                    start, at = at, self._read_partitions(view, at, end)
                    if at == start and self._unit is None:
                        self._begin(self._partition())
                else:
                    self._begin(self._topic_end())
            elif self._topics_left:
                start, at = at, self._read_topics(view, at, end)
                if at == start and self._unit is None:
                    self._begin(self._topic())
            elif self._row.is_flexible and self.left == self.behind_topics:
                self._begin(self._response_end())
            else:
                raise MalformedFrame(f"{self.left} bytes follow the last topic", self._frame_size - self.left)

    def finish(self) -> None:
        """Note that the frame's last byte was read. MalformedFrame where more is announced."""
        if self._topics_left:
            raise MalformedFrame(f"the frame ends with {self._topics_left} topics to come", self._frame_size)
        if self._row.is_flexible and self.behind_topics <= 0:
            raise MalformedFrame("the frame ends without the response's tags", self._frame_size)

    def so_far(self) -> list[ScannedTopic]:
        """Return what was read of a body that is broken off. Records that are walked count as far as they came."""
        if self._walker is not None:
            self._walker.seen.size -= self._skip
        if self._in_topic:
            self._leave_topic()
        return self.topics

    def is_within(self, size: int) -> bool:
        """Whether the next `size` bytes all lie in the middle of what is skipped, such as one partition's records."""
        return size < self._skip

    def step_over(self) -> int:
        """Count bytes that are skipped as read, but for their last one. Returns how many; 0 while records are walked.

        So the caller can let as many bytes pass without giving them to `walk`.
        """
        if self._walker is not None or self._skip < 2:
            return 0
        size = self._skip - 1  # with the last one the unit ends, and perhaps the frame
        self._skip = 1
        self.left -= size
        return size

    # Runs, for subclasses to read. Each takes what it can of `view[at:end]`, and returns where it stopped.

    def _read_topics(self, view: memoryview, at: int, end: int) -> int:
        raise NotImplementedError

    def _read_partitions(self, view: memoryview, at: int, end: int) -> int:
        raise NotImplementedError

    # Bytes for the unit being read

    def _begin(self, unit: Unit) -> None:
        """Begin to read a unit, of which nothing was taken yet."""
        self._unit = unit
        self._go_on(None)

    def _go_on(self, data: bytes | None) -> None:
        assert self._unit is not None  # noqa: S101
        try:
            wanted = next(self._unit) if data is None else self._unit.send(data)
        except StopIteration:
            self._unit = None
            return
        except _LongVarint:
            raise self._malformed("a varint is longer than 5 bytes", self.left + LONGEST_VARINT) from None
        if abs(wanted) > self.left:
            raise self._malformed(f"{abs(wanted)} bytes are announced where {self.left} are left")
        if wanted > 0:
            self._wanted = wanted
        else:
            self._skip = -wanted

    def _take(self, view: memoryview, at: int, end: int) -> int:
        held = self._held
        stop = min(at + self._wanted - len(held), end)
        held += view[at:stop]
        self.left -= stop - at
        if len(held) == self._wanted:
            self._held = bytearray()
            self._go_on(bytes(held))
        return stop

    def _pass_over(self, view: memoryview, at: int, end: int) -> int:
        stop = min(at + self._skip, end)
        if self._walker is not None:
            self._walker.receive(view, at, stop)
        self._skip -= stop - at
        self.left -= stop - at
        if not self._skip:
            self._walker = None
            self._go_on(None)
        return stop

    # The structure

    def _topic(self) -> Unit:
        row = self._row
        if row.names_topics_by_id:
            name = yield TOPIC_ID_SIZE
        else:
            start = self.left
            if row.is_flexible:
                length = (yield from _varint()) - 1
            else:
                (length,) = STRING_LENGTH.unpack((yield STRING_LENGTH.size))
            if not 0 <= length <= min(LONGEST_STRING, self.left):
                raise self._malformed(f"a topic name of {length} bytes does not fit into the frame", start)
            if length > self._longest_name:
                raise self._malformed(f"a topic name has {length} bytes", start)
            name = (yield length) if length else b""
        start = self.left
        partitions = yield from self._count()
        if partitions < 0 or partitions * self._smallest > self.left:
            raise self._malformed(f"{partitions} partitions cannot stand in {self.left} bytes", start)
        if partitions > self._allowed:
            raise self._malformed(
                f"{partitions} partitions come where {self._allowed} are left of those asked for", start
            )
        self._enter_topic(name, partitions)

    def _partition(self) -> Unit:
        row = self._row
        head = (yield row.response_partition.layout.size)[:HEAD_SIZE]
        (partition,) = SIZE.unpack_from(head)
        if row.has_aborted_transactions:
            start = self.left
            transactions = yield from self._count()
            if transactions < _NULL:
                raise self._malformed(f"{transactions} aborted transactions are announced", start)
            if row.is_flexible:
                for _ in range(transactions):
                    yield -ABORTED_TRANSACTION_SIZE
                    yield from self._tags()
            elif transactions > 0:
                yield -transactions * ABORTED_TRANSACTION_SIZE
        if row.has_preferred_read_replica:
            yield SIZE.size
        start = self.left
        size = yield from self._count()
        if size < _NULL:
            raise self._malformed(f"records have a size of {size}", start)
        if size + (self._partitions_left - 1) * self._smallest > self.left:
            raise self._malformed(f"{size} bytes of records pass the end of the frame", start)
        self._seen_headers.append(head + SIZE.pack(size))
        yield from self._records_of(partition, max(size, 0), start)

    def _records_of(self, partition: int, size: int, length: int = 0) -> Unit:
        """Read a partition's records, and what follows them.

        `length` is what was left of the frame where their size stands; without it nothing is taken out of them.
        """
        if size:
            take_out = self.take_out if length else None
            passing = Passing.ALL if take_out is None else take_out.passing(self._name, partition, size)
            if passing is Passing.NOTHING:
                yield from self._taken_out(partition, size, length)
            else:
                walks = self._is_walked or passing is Passing.WHOLE_BATCHES
                seen = RecordsSeen(partition, size, complete_bytes=0 if walks else size)
                self._records.append(seen)
                self._walker = RecordWalker(seen) if walks else None
                records = self.left
                yield -size
                if passing is Passing.WHOLE_BATCHES and seen.cut_bytes and take_out is not None:
                    length_at, records_at = self._frame_size - length, self._frame_size - records
                    take_out.shorten(length_at, records_at, size, seen.take_out_tail())
        yield from self._partition_end(partition)

    def _taken_out(self, partition: int, size: int, length: int) -> Unit:
        """Read records that do not pass: one whole batch, or its bytes up to the end where it was cut."""
        assert self.take_out is not None  # noqa: S101
        self.take_out.shorten(self._frame_size - length, self._frame_size - self.left, size, 0)
        seen = RecordsSeen(partition, size)
        self._walker = RecordWalker(seen)
        yield -size
        next_size = seen.largest or seen.next_batch_size
        self._records.append(RecordsSeen(partition, 0, next_batch_size=next_size, taken_out=size))

    def _partition_end(self, partition: int) -> Unit:
        if self._row.is_flexible and (yield from self._tags()):  # tag 0 is the diverging epoch
            self._diverging.append(partition)
        self._partitions_left -= 1
        if not self._partitions_left and not self._row.is_flexible:
            self._leave_topic()

    def _topic_end(self) -> Unit:
        yield from self._tags()
        self._leave_topic()

    def _response_end(self) -> Unit:
        yield from self._tags()

    def _tags(self) -> Generator[int, bytes, bool]:
        """Read a tag buffer, skipping the tags' contents. Returns whether tag 0 is among them."""
        start, has_first = self.left, False
        count = yield from _varint()
        if count > MOST_TAGS:
            raise self._malformed(f"a tag buffer has {count} tags", start)
        for _ in range(count):
            has_first |= (yield from _varint()) == 0
            size = yield from _varint()
            if size:
                yield -size
        return has_first

    def _count(self) -> Generator[int, bytes, int]:
        """Read an array's count or the size of records; -1 where it is null."""
        if self._row.is_flexible:
            return (yield from _varint()) - 1
        return int(COUNT.unpack((yield COUNT.size))[0])

    def _enter_topic(self, name: bytes, partitions: int) -> None:
        self._topics_left -= 1
        self._in_topic = True
        self._name = name
        self._is_walked = name in self._walk
        self._partitions_left = partitions
        self._allowed -= partitions
        self._seen_headers, self._records, self._diverging = [], [], []
        if not partitions and not self._row.is_flexible:
            self._leave_topic()

    def _leave_topic(self) -> None:
        headers = b"".join(self._seen_headers)
        # takes half as long as the class's own constructor
        self.topics.append(tuple.__new__(ScannedTopic, (self._name, headers, self._records, tuple(self._diverging))))
        self._in_topic = False
        if not self._topics_left:
            self.behind_topics = self.left

    def _malformed(self, reason: str, left: int | None = None) -> MalformedFrame:
        """Return an error at the place where `left` bytes of the frame are still to come; by default here."""
        return MalformedFrame(reason, self._frame_size - (self.left if left is None else left))


def smallest_partition(row: FetchVersion) -> int:
    """Return the least bytes that a partition of a response takes: without transactions, records and tags."""
    count = 1 if row.is_flexible else COUNT.size
    return (
        row.response_partition.layout.size
        + count * row.has_aborted_transactions
        + SIZE.size * row.has_preferred_read_replica
        + count
        + row.is_flexible
    )
