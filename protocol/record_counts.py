"""Counts the records of one Fetch answer or one Produce request while its bytes pass, in chunks of any size.

No record is read, and nothing is kept but a few bytes of the head that a chunk cuts off and two figures for each topic.
The layouts are those of Kafka's FetchResponse.json, v0 to v18, ProduceRequest.json, v0 to v13, and
ShareFetchResponse.json, v1 and v2 (KIP-932). A share group's member is given whole batches, and told which of their
records are its own: only these count.
"""

import struct
from collections.abc import Generator
from typing import Final

from weir.protocol.batch_counter import BatchCounter
from weir.protocol.fetch_versions import ABORTED_TRANSACTION_SIZE, FETCH_VERSIONS, TOPIC_ID_SIZE, FetchVersion
from weir.protocol.header import FETCH, PRODUCE, SHARE_FETCH, SIZE
from weir.protocol.primitives import LONGEST_STRING
from weir.protocol.produce_versions import PRODUCE_VERSIONS, ProduceVersion
from weir.protocol.structure import LongVarint, Structure, tags, varint

MOST_PARTITIONS: Final = 20_000
"""With more partitions in one frame the rest is not counted, as each takes some microseconds."""

MOST_TOPICS: Final = 1_000
"""The most topics that are counted one by one; the records of the others are counted under no name."""

SHARE_FETCH_VERSIONS: Final = range(1, 3)
"""The versions of ShareFetch whose answers are read."""

_INT16: Final = struct.Struct(">h")
_THROTTLE_AND_ERROR_SIZE: Final = 6
_LEADER_SIZE: Final = 8
_ACQUIRED: Final = struct.Struct(">qqh")
"""Of records that a share group's member got: first offset, last offset, and how often they were delivered."""

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_FIXED_HEADER_SIZE: Final = 8


class _NotCounted(Exception):
    """The frame cannot be read any further; the argument is the reason."""


class RecordCounts:
    """Counts one frame. Feed `receive` from the size prefix on, until `done`.

    It never raises: what cannot be read is not counted, and `fault` then has the reason, one of `frame` (lengths do not
    add up), `partitions` (too many) and `batch` (a length that no batch has; only its partition is not counted).
    """

    __slots__ = (
        "_batches",
        "_by_id",
        "_held",
        "_left",
        "_partitions",
        "_skip",
        "_starts_at_zero",
        "_structure",
        "_topic",
        "_unread",
        "_wanted",
        "fault",
        "frame_size",
        "topics",
    )

    def __init__(self, structure: str, version: int) -> None:
        """`structure` is "fetch" or "share" for a Fetch or ShareFetch answer, "produce" for a Produce request."""
        self.topics: dict[bytes, list[int]] = {}
        """[records, bytes of whole batches] by topic name; by id from Fetch v13 and Produce v13 on."""
        self.fault: str | None = None
        self.frame_size = 0
        """Bytes with the size prefix; 0 until that has come."""
        self._left = -1  # bytes of the frame still to come
        self._unread = 0  # bytes of it that the structure has not taken
        self._held = bytearray()
        self._wanted = SIZE.size
        self._skip = 0
        self._batches: BatchCounter | None = None
        self._topic = b""
        self._partitions = 0
        self._starts_at_zero = structure == "produce"
        if structure == "produce":
            read = self._produce(PRODUCE_VERSIONS[version])
        else:
            read = self._share_fetch() if structure == "share" else self._fetch(FETCH_VERSIONS[version])
        self._structure: Structure | None = self._as_far_as_readable(read)

    @property
    def done(self) -> bool:
        """Whether the frame's last byte was received."""
        return self._left == 0

    @property
    def left(self) -> int:
        """Bytes of the frame still to come; -1 until that is known."""
        return self._left

    @property
    def records(self) -> int:
        """All records so far."""
        return sum([counted[0] for counted in self.topics.values()])

    def receive(self, view: memoryview) -> int:
        """Take the next bytes. Returns how many of them are of this frame."""
        at, end = 0, len(view)
        if self._left < 0:
            at = min(SIZE.size - len(self._held), end)
            self._held += view[:at]
            if len(self._held) < SIZE.size:
                return at
            (size,) = SIZE.unpack(self._held)
            self._held = bytearray()
            self._left = self._unread = max(0, size)
            self.frame_size = SIZE.size + self._left
            self._go_on(None)
        end = min(end, at + self._left)
        self._left -= end - at
        while at < end and self._structure is not None:
            if self._skip:
                step = min(self._skip, end - at)
                if self._batches is not None:
                    self._batches.receive(view, at, at + step)
                self._skip -= step
                self._unread -= step
                at += step
                if not self._skip:
                    self._go_on(None)
            elif self._held or end - at < self._wanted:
                step = min(self._wanted - len(self._held), end - at)
                self._held += view[at : at + step]
                at += step
                if len(self._held) == self._wanted:
                    data, self._held = bytes(self._held), bytearray()
                    self._unread -= len(data)
                    self._go_on(data)
            else:
                at += self._read(self._structure, view[at:end])
        if not self._left and self._structure is not None:
            self._structure = None
            self.fault = self.fault or "frame"
        return end

    def _read(self, structure: Structure, view: memoryview) -> int:
        """Read as much of the structure as is there whole, until something is skipped. Returns how many bytes it was.

        It is what `receive` does too, without a look at the state for each field.
        """
        at, end, wanted, send = 0, len(view), self._wanted, structure.send
        try:
            while 0 < wanted <= end - at:
                stop = at + wanted
                wanted = send(bytes(view[at:stop]))
                at = stop
        except StopIteration:
            self._structure = None
        else:
            self._unread -= at
            self._want(wanted)
        return at

    def step_over(self) -> int:
        """Count as received what is left of a batch whose head was read, or of a frame that cannot be read.

        Returns how many bytes that is, without the frame's last one. The caller may let as many pass without giving
        them to `receive`.
        """
        if self._structure is None:
            size = max(0, self._left - 1)
        elif self._batches is not None:
            size = self._batches.step_over(self._skip - 1)
            self._skip -= size
            self._unread -= size
        else:
            return 0
        self._left -= size
        return size

    def _go_on(self, data: bytes | None) -> None:
        assert self._structure is not None  # noqa: S101
        try:
            wanted = next(self._structure) if data is None else self._structure.send(data)
        except StopIteration:
            self._structure = None
        else:
            self._want(wanted)

    def _want(self, wanted: int) -> None:
        if abs(wanted) > self._unread:
            self._structure = None
            self.fault = self.fault or "frame"
        self._wanted, self._skip = (wanted, 0) if wanted > 0 else (0, -wanted)

    # The structures

    def _as_far_as_readable(self, structure: Structure) -> Structure:
        try:
            yield from structure
        except LongVarint:
            self.fault = "frame"
        except _NotCounted as error:
            self.fault = str(error)

    def _fetch(self, row: FetchVersion) -> Structure:
        if row.is_flexible:
            yield from self._flexible_fetch(row)
            return
        # As few pieces as can be: each one costs about a microsecond.
        head = SIZE.size + row.response_head.layout.size
        fixed = row.response_partition.layout.size
        after = SIZE.size if row.has_preferred_read_replica else 0
        for _ in range(self._checked(_last_int((yield head + SIZE.size)))):
            (length,) = _INT16.unpack((yield _INT16.size))
            if length < 0:
                raise _NotCounted("frame")
            named = yield length + SIZE.size
            self._topic = named[:length]
            for _ in range(self._checked_partitions(_last_int(named))):
                if row.has_aborted_transactions:
                    transactions = self._checked(_last_int((yield fixed + SIZE.size)))
                    if transactions:
                        yield -transactions * ABORTED_TRANSACTION_SIZE
                    size = _last_int((yield after + SIZE.size))
                else:
                    size = _last_int((yield fixed + SIZE.size))
                yield from self._records(size)

    def _flexible_fetch(self, row: FetchVersion) -> Structure:
        yield SIZE.size
        yield from tags()
        yield row.response_head.layout.size
        fixed = row.response_partition.layout.size
        for _ in range((yield from self._count(flexible=True))):
            yield from self._begin_topic(flexible=True, by_id=row.names_topics_by_id)
            for _ in range((yield from self._partitions_count(flexible=True))):
                yield fixed
                for _ in range((yield from self._count(flexible=True))):
                    yield -ABORTED_TRANSACTION_SIZE
                    yield from tags()
                yield SIZE.size  # the preferred read replica
                yield from self._records((yield from varint()) - 1)
                yield from tags()
            yield from tags()

    def _share_fetch(self) -> Structure:
        yield SIZE.size
        yield from tags()
        yield _THROTTLE_AND_ERROR_SIZE
        yield from self._compact_bytes()  # what the error is
        yield SIZE.size  # how long acquired records are locked
        for _ in range((yield from self._count(flexible=True))):
            yield from self._begin_topic(flexible=True, by_id=True)
            for _ in range((yield from self._partitions_count(flexible=True))):
                yield SIZE.size
                for _ in range(2):  # the error of the fetch, and of its acknowledgements
                    yield _INT16.size
                    yield from self._compact_bytes()
                yield _LEADER_SIZE
                yield from tags()
                size = yield from self._compact_bytes()
                acquired = 0
                for _ in range((yield from self._count(flexible=True))):
                    first, last, _ = _ACQUIRED.unpack((yield _ACQUIRED.size))
                    acquired += max(0, last - first + 1)
                    yield from tags()
                if acquired:
                    self._add(acquired, size)
                yield from tags()
            yield from tags()

    def _produce(self, row: ProduceVersion) -> Structure:
        flexible = row.is_flexible
        yield _FIXED_HEADER_SIZE
        yield from self._string()  # the client id is not compact in any version
        if flexible:
            yield from tags()
            yield from self._compact_bytes()
        elif row.is_transactional:
            yield from self._string()
        yield _ACKS_AND_TIMEOUT.size
        for _ in range((yield from self._count(flexible))):
            yield from self._begin_topic(flexible, by_id=row.names_topics_by_id)
            for _ in range((yield from self._partitions_count(flexible))):
                yield SIZE.size
                size = (yield from varint()) - 1 if flexible else _last_int((yield SIZE.size))
                yield from self._records(size)
                if flexible:
                    yield from tags()
            if flexible:
                yield from tags()

    def _begin_topic(self, flexible: bool, *, by_id: bool) -> Structure:
        if by_id:
            self._topic = yield TOPIC_ID_SIZE
            return
        if flexible:
            length = (yield from varint()) - 1
        else:
            (length,) = _INT16.unpack((yield _INT16.size))
        if not 0 <= length <= LONGEST_STRING:
            raise _NotCounted("frame")
        self._topic = (yield length) if length else b""

    def _partitions_count(self, flexible: bool) -> Generator[int, bytes, int]:
        return self._checked_partitions((yield from self._count(flexible)))

    def _checked_partitions(self, count: int) -> int:
        count = self._checked(count)
        self._partitions += count
        if self._partitions > MOST_PARTITIONS:
            raise _NotCounted("partitions")
        return count

    def _records(self, size: int) -> Structure:
        if size <= 0:
            return
        self._batches = batches = BatchCounter(size, starts_at_zero=self._starts_at_zero)
        yield -size
        self._batches = None
        if batches.corrupt:
            self.fault = "batch"
        if batches.complete:
            self._add(batches.records, batches.complete)

    def _add(self, records: int, size: int) -> None:
        topic = self._topic if self._topic in self.topics or len(self.topics) < MOST_TOPICS else b""
        counted = self.topics.setdefault(topic, [0, 0])
        counted[0] += records
        counted[1] += size

    def _compact_bytes(self) -> Generator[int, bytes, int]:
        """Skip a compact string, or compact records. Returns how many bytes these have, 0 where they are null."""
        size = (yield from varint()) - 1
        if size > 0:
            yield -size
        return max(0, size)

    def _string(self) -> Structure:
        (length,) = _INT16.unpack((yield _INT16.size))
        if length > 0:
            yield -length

    def _count(self, flexible: bool) -> Generator[int, bytes, int]:
        """Read an array's count."""
        return self._checked((yield from varint()) - 1 if flexible else _last_int((yield SIZE.size)))

    def _checked(self, count: int) -> int:
        """Return an array's count; 0 where it is null. Each element takes a byte at least."""
        if count > self._unread:
            raise _NotCounted("frame")
        return max(0, count)


def _last_int(data: bytes) -> int:
    """Return the INT32 at the end of `data`."""
    return int(SIZE.unpack_from(data, len(data) - SIZE.size)[0])


def counts_of_answer(api_key: int, version: int) -> RecordCounts | None:
    """Return a counter for the answer to a request; None where it has no records, or its layout is not known."""
    if api_key == SHARE_FETCH:
        return RecordCounts("share", version) if version in SHARE_FETCH_VERSIONS else None
    return RecordCounts("fetch", version) if api_key == FETCH and version in FETCH_VERSIONS else None


def counts_of_request(api_key: int, version: int) -> RecordCounts | None:
    """Return a counter for a request; None where it has no records, or its layout is not known."""
    return RecordCounts("produce", version) if api_key == PRODUCE and version in PRODUCE_VERSIONS else None
