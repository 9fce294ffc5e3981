"""Counts the records of one Fetch answer or one Produce request while its bytes pass, in chunks of any size.

No record is read, and nothing is kept but a few bytes of the head that a chunk cuts off and two figures for each topic.
The layouts are those of Kafka's FetchResponse.json, v0 to v18, ProduceRequest.json, v0 to v13, and
ShareFetchResponse.json, v1 and v2 (KIP-932). A share group's member is given whole batches, and told which of their
records are its own: only these count.
"""

import struct
from collections.abc import Callable, Container, Generator, Mapping
from typing import Final, TypeAlias

from weir.protocol.batch_counter import BatchCounter
from weir.protocol.fetch_versions import ABORTED_TRANSACTION_SIZE, FETCH_VERSIONS, TOPIC_ID_SIZE, FetchVersion
from weir.protocol.header import FETCH, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.primitives import LONGEST_STRING
from weir.protocol.produce_versions import PRODUCE_VERSIONS, ProduceVersion
from weir.protocol.varint import LONGEST_VARINT

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

_INT16: Final = struct.Struct(">h")
_THROTTLE_AND_ERROR_SIZE: Final = 6
_LEADER_SIZE: Final = 8
_ACQUIRED: Final = struct.Struct(">qqh")
"""Of records that a share group's member got: first offset, last offset, and how often they were delivered."""

_ACKS_AND_TIMEOUT_SIZE: Final = 6
_FIXED_HEADER_SIZE: Final = 8

Structure: TypeAlias = Generator[int, bytes, None]
"""Reads a frame. It yields n > 0 to be sent the next n bytes, and n < 0 to have -n bytes skipped."""


def _nothing(_: object) -> None:
    pass


class _NotCounted(Exception):
    """The frame cannot be read any further; the argument is the reason."""


class RecordCounts:
    """Counts one frame: an answer as its ResponseWatcher, a request by `watch`. Feed it from the size prefix on.

    It never raises: what cannot be read is not counted, and `fault` then has the reason, one of `frame` (lengths do not
    add up), `partitions` (too many) and `batch` (a length that no batch has; only its partition is not counted).
    """

    __slots__ = (
        "_batches",
        "_held",
        "_partitions",
        "_skip",
        "_starts_at_zero",
        "_structure",
        "_topic",
        "_unread",
        "_wanted",
        "by_id",
        "fault",
        "left",
        "on_passed",
        "topics",
    )

    def __init__(self, structure: str, version: int) -> None:
        """`structure` is "fetch" or "share" for a Fetch or ShareFetch answer, "produce" for a Produce request."""
        self.topics: dict[bytes, list[int]] = {}
        """[records, bytes of whole batches] by topic name or id."""
        self.fault: str | None = None
        self.left = -1
        """Bytes of the frame still to come; -1 until that is known."""
        self.on_passed: Callable[[RecordCounts], object] = _nothing
        """Called with it by `passed`."""
        self._unread = 0  # bytes of it that the structure has not taken
        self._held = bytearray()
        self._skip = 0
        self._batches: BatchCounter | None = None
        self._topic = b""
        self._partitions = 0
        self._starts_at_zero = structure == "produce"
        self.by_id = structure == "share"
        """Whether topics go by their ids: also from Fetch v13 and Produce v13 on."""
        self._structure: Structure | None
        if structure == "produce":
            asked = PRODUCE_VERSIONS[version]
            self.by_id = asked.names_topics_by_id
            self._structure = self._produce(asked)
        elif structure == "share":
            self._structure = self._share()
        else:
            row = FETCH_VERSIONS[version]
            self.by_id = row.names_topics_by_id
            self._structure = self._fetch(row)
        self._wanted = next(self._structure)

    @property
    def done(self) -> bool:
        """Whether the frame's last byte was received."""
        return self.left == 0

    def receive(self, view: memoryview) -> int:
        """Take the next bytes. Returns how many of them are of this frame."""
        at, end = 0, len(view)
        if self.left < 0:
            at = min(SIZE.size - len(self._held), end)
            head = self._held + view[:at]
            if len(head) < SIZE.size:
                self._held = head
                return at
            (size,) = SIZE.unpack(head)
            if self._held:
                self._held = bytearray()
            self.left = self._unread = max(0, size)
        end = min(end, at + self.left)
        self.left -= end - at
        while at < end and self._structure is not None:
            if self._skip:
                step = min(self._skip, end - at)
                if self._batches is not None:
                    self._batches.receive(view, at, at + step)
                self._skip -= step
                self._unread -= step
                at += step
                if not self._skip:
                    self._read(self._structure, view[:0])
            elif self._held or end - at < self._wanted:
                step = min(self._wanted - len(self._held), end - at)
                self._held += view[at : at + step]
                at += step
                if len(self._held) == self._wanted:
                    held, self._held = self._held, bytearray()
                    self._read(self._structure, memoryview(held))
            else:
                at += self._read(self._structure, view[at:end])
        if not self.left and self._structure is not None:
            self._structure = None
            self.fault = self.fault or "frame"
        return end

    def watch(self, view: memoryview) -> bool:
        """Take the next bytes. Returns whether the last one has come, after `passed`."""
        self.receive(view)
        if not self.left:
            self.passed()
        return not self.left

    def passed(self) -> None:
        """Note that the frame has passed whole."""
        self.on_passed(self)

    def _read(self, structure: Structure, view: memoryview) -> int:
        """Read as much of the structure as is there whole, until something is skipped. Returns how many bytes it was.

        What was to be skipped has passed. There is no look at the state for each field.
        """
        at, end, wanted, send = 0, len(view), self._wanted, structure.send
        try:
            wanted = wanted or next(structure)
            while 0 < wanted <= end - at:
                stop = at + wanted
                wanted = send(bytes(view[at:stop]))
                at = stop
        except StopIteration:
            self._structure = None
        except _NotCounted as error:
            self._structure = None
            self.fault = str(error)
        else:
            self._unread -= at
            if abs(wanted) > self._unread:
                self._structure = None
                self.fault = self.fault or "frame"
            self._wanted, self._skip = (wanted, 0) if wanted > 0 else (0, -wanted)
        return at

    def step_over(self) -> int:
        """Take the next bytes that need not be seen for received, without the frame's last one; returns how many.

        These are what is left of a batch whose head was read, or of a frame that cannot be read.
        """
        if self._structure is None:
            size = max(0, self.left - 1)
        elif self._batches is not None:
            size = self._batches.step_over(self._skip - 1)
            self._skip -= size
            self._unread -= size
        else:
            return 0
        self.left -= size
        return size

    # The structures. As few pieces as can be, as each one costs about a microsecond: what is certain to follow is asked
    # for along with it. Where that ends with a varint's first byte, the others are asked for if there are any.

    def _fetch(self, row: FetchVersion) -> Structure:
        """Return the structure of an answer to a Fetch."""
        head, fixed = row.response_head.layout.size, row.response_partition.layout.size
        if row.is_flexible:
            return self._flexible(self._tags_after(SIZE.size), head, fixed)
        after = SIZE.size if row.has_preferred_read_replica else 0
        return self._classic(SIZE.size + head, fixed, after if row.has_aborted_transactions else None)

    def _produce(self, row: ProduceVersion) -> Structure:
        yield _FIXED_HEADER_SIZE
        yield from self._string()  # the client id is not compact in any version
        if row.is_flexible:
            yield from self._flexible(self._produce_head(), _ACKS_AND_TIMEOUT_SIZE, 0)
            return
        if row.is_transactional:
            yield from self._string()
        yield from self._classic(_ACKS_AND_TIMEOUT_SIZE, SIZE.size, None)

    def _produce_head(self) -> Structure:
        yield from self._tags_after(0)
        yield from self._compact_bytes((yield 1))  # the transactional id

    def _classic(self, head: int, fixed: int, after: int | None) -> Structure:
        """Read topics, `head` bytes from here, of which each partition has `fixed` bytes before its records' size.

        `after`: in between come aborted transactions, and so many bytes.
        """
        for _ in range(self._checked(_last_int((yield head + SIZE.size)))):
            (length,) = _INT16.unpack((yield _INT16.size))
            if length < 0:
                raise _NotCounted("frame")
            named = yield length + SIZE.size
            self._topic = named[:length]
            for _ in range(self._checked_partitions(_last_int(named))):
                size = _last_int((yield fixed + SIZE.size))
                if after is not None:
                    if transactions := self._checked(size):
                        yield -transactions * ABORTED_TRANSACTION_SIZE
                    size = _last_int((yield after + SIZE.size))
                if size > 0:
                    yield self._records(size)
                    self._end_of_records()

    def _flexible(self, before: Structure, head: int, fixed: int) -> Structure:
        """Read topics of a flexible version, `head` bytes behind what `before` reads.

        Each partition begins with `fixed` bytes and aborted transactions; with neither where `fixed` is 0. Before the
        records' size comes an INT32: of the partition, or of the preferred read replica.
        """
        yield from before
        for _ in range((yield from self._count((yield head + 1)))):
            for _ in range((yield from self._begin_topic())):
                if fixed:
                    for _ in range((yield from self._count((yield fixed + 1)))):
                        yield from self._tags((yield ABORTED_TRANSACTION_SIZE + 1))
                size = (yield from self._varint((yield SIZE.size + 1))) - 1
                if size > 0:
                    yield self._records(size)
                    self._end_of_records()
                yield from self._tags((yield 1))
            yield from self._tags((yield 1))

    def _share(self) -> Structure:
        yield from self._tags_after(SIZE.size)
        yield from self._compact_bytes((yield _THROTTLE_AND_ERROR_SIZE + 1))  # what the error is
        # how long acquired records are locked is before the topics
        for _ in range((yield from self._count((yield SIZE.size + 1)))):
            for _ in range((yield from self._begin_topic())):
                # the error of the fetch is behind the partition, and then that of its acknowledgements
                yield from self._compact_bytes((yield SIZE.size + _INT16.size + 1))
                yield from self._compact_bytes((yield _INT16.size + 1))
                yield from self._tags((yield _LEADER_SIZE + 1))
                size = yield from self._compact_bytes((yield 1))
                acquired = 0
                for _ in range((yield from self._count((yield 1)))):
                    range_and_tags = yield _ACQUIRED.size + 1
                    first, last, _ = _ACQUIRED.unpack_from(range_and_tags)
                    acquired += max(0, last - first + 1)
                    yield from self._tags(range_and_tags)
                if acquired:
                    self._add(acquired, size)
                yield from self._tags((yield 1))
            yield from self._tags((yield 1))

    def _begin_topic(self) -> Generator[int, bytes, int]:
        """Read a topic of a flexible version up to its partitions, and return how many there are."""
        if self.by_id:
            data = yield TOPIC_ID_SIZE + 1
        else:
            length = (yield from self._varint((yield 1))) - 1
            if not 0 <= length <= LONGEST_STRING:
                raise _NotCounted("frame")
            data = yield length + 1
        self._topic = data[:-1]
        return self._checked_partitions((yield from self._count(data)))

    def _checked_partitions(self, count: int) -> int:
        count = self._checked(count)
        self._partitions += count
        if self._partitions > MOST_PARTITIONS:
            raise _NotCounted("partitions")
        return count

    def _records(self, size: int) -> int:
        """Count batches in the next bytes: returns what is to be yielded for them. Call `_end_of_records` then."""
        self._batches = BatchCounter(size, starts_at_zero=self._starts_at_zero)
        return -size

    def _end_of_records(self) -> None:
        batches, self._batches = self._batches, None
        assert batches is not None  # noqa: S101
        if batches.corrupt:
            self.fault = "batch"
        if batches.complete:
            self._add(batches.records, batches.complete)

    def _add(self, records: int, size: int) -> None:
        topic = self._topic if self._topic in self.topics or len(self.topics) < MOST_TOPICS else b""
        counted = self.topics.setdefault(topic, [0, 0])
        counted[0] += records
        counted[1] += size

    def _tags_after(self, size: int) -> Structure:
        yield from self._tags((yield size + 1))

    def _string(self) -> Structure:
        (length,) = _INT16.unpack((yield _INT16.size))
        if length > 0:
            yield -length

    # Each of these gets what ends with the first byte of a varint.

    def _compact_bytes(self, data: bytes) -> Generator[int, bytes, int]:
        """Step over a compact string, or records, and return the size."""
        size = (yield from self._varint(data)) - 1
        if size > 0:
            yield -size
        return max(0, size)

    def _tags(self, data: bytes) -> Structure:
        for _ in range((yield from self._varint(data))):
            yield from self._varint((yield 1))
            size = yield from self._varint((yield 1))
            if size:
                yield -size

    def _count(self, data: bytes) -> Generator[int, bytes, int]:
        """Read a compact array's count."""
        return self._checked((yield from self._varint(data)) - 1)

    def _varint(self, data: bytes) -> Generator[int, bytes, int]:
        byte = data[-1]
        value = byte & 0x7F
        for index in range(1, LONGEST_VARINT):
            if byte < 0x80:
                return value
            (byte,) = yield 1
            value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
        raise _NotCounted("frame")

    def _checked(self, count: int) -> int:
        """Return an array's count; 0 where it is null. Each element takes a byte at least."""
        if count > self._unread:
            raise _NotCounted("frame")
        return max(0, count)


def _last_int(data: bytes) -> int:
    """Return the INT32 at the end of `data`."""
    return int(SIZE.unpack_from(data, len(data) - SIZE.size)[0])


def counts_of(api_key: int, version: int) -> RecordCounts | None:
    """Return a counter for a Produce, or the answer to a Fetch or ShareFetch; None where the layout is not known."""
    structure, versions = _COUNTED.get(api_key, ("", ()))
    return RecordCounts(structure, version) if version in versions else None
