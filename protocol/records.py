# SPDX-License-Identifier: Apache-2.0
"""Walks over records by their lengths alone.

Magic 0, 1 and 2 begin alike (Kafka's LegacyRecord.java, DefaultRecordBatch.java): an i64 offset, and an i32 size of
what follows. Nothing after these 12 bytes is read, so every magic and every codec is treated alike. For magic 0 and 1 a
"batch" is one entry of the message set: a message, or the wrapper of a compressed set.
"""

import struct
from dataclasses import dataclass
from typing import Final

BATCH_HEAD_SIZE: Final = 12
"""Bytes of a batch's offset and size; Kafka's Records.LOG_OVERHEAD."""

SMALLEST_BATCH: Final = 14
"""The least size that Kafka's log input streams accept; LegacyRecord.RECORD_OVERHEAD_V0."""

_SIZE_AT: Final = 8
_SIZE: Final = struct.Struct(">i")


@dataclass(slots=True)
class RecordsSeen:
    """The records of one partition in one response. All figures except `batches` are in bytes.

    `complete_bytes` + `cut_bytes` = `size`. A cut tail is a batch that did not fit into partition_max_bytes: brokers
    send it all the same, and followers throw it away.
    """

    partition: int
    size: int
    """Bytes of all records, with a tail that was cut off."""
    complete_bytes: int = 0
    batches: int = 0
    """The number of whole batches."""
    cut_bytes: int = 0
    smallest: int = 0
    largest: int = 0
    """The size of the largest whole batch; 0 without any."""
    next_batch_size: int = 0
    """The whole size of the batch that was cut or taken out; 0 if none was, or if its first 12 bytes did not arrive
    whole."""
    taken_out: int = 0
    """What the broker sent beyond `size`, and was not passed on (see take_out)."""

    def take_out_tail(self) -> int:
        """Count the tail as taken out. Returns the bytes that pass."""
        self.taken_out, self.cut_bytes = self.cut_bytes, 0
        self.size -= self.taken_out
        return self.size


class RecordWalker:
    """Fills a RecordsSeen from record bytes as they pass, in chunks of any size. It keeps at most 11 of the bytes.

    A size that no batch can have ends the walk. The rest counts as cut, since a follower does not keep it either.
    """

    __slots__ = ("_head", "_next", "_passed", "seen")

    def __init__(self, seen: RecordsSeen) -> None:
        self.seen = seen
        self._passed = 0  # record bytes that have passed
        self._next = 0  # where the next batch begins, counted from the first record byte
        self._head = b""  # the part of the next batch's first 12 bytes that the last chunk had

    def receive(self, view: memoryview, start: int, end: int) -> None:
        """Take the partition's next record bytes, `view[start:end]`."""
        if self._head:
            missing = BATCH_HEAD_SIZE - len(self._head)
            head = self._head + bytes(view[start : min(start + missing, end)])
            if len(head) < BATCH_HEAD_SIZE:
                self._head = head
                self._passed += end - start
                return
            self._head = b""
            self._next = _step(self.seen, memoryview(head), self._next, -self._next, self._next + BATCH_HEAD_SIZE)
        shift = start - self._passed
        self._passed += end - start
        self._next = _step(self.seen, view, self._next, shift, self._passed)
        if self._next < self._passed:
            self._head = bytes(view[self._next + shift : end])


def walk_records(partition: int, view: memoryview, start: int, size: int) -> RecordsSeen:
    """Return what a RecordWalker finds in the records `view[start : start + size]`, which are there as a whole."""
    if size >= BATCH_HEAD_SIZE + SMALLEST_BATCH:
        (only,) = _SIZE.unpack_from(view, start + _SIZE_AT)
        if only + BATCH_HEAD_SIZE == size:  # one whole batch, which is what a replica in sync mostly gets
            return RecordsSeen(partition, size, size, 1, 0, size, size)
    seen = RecordsSeen(partition, size)
    _step(seen, view, 0, start, size)
    return seen


def _step(seen: RecordsSeen, view: memoryview, at: int, shift: int, passed: int) -> int:
    """Walk from the batch at record byte `at` over those whose first 12 bytes are among the first `passed` bytes.

    Record byte n is at `view[n + shift]`. Returns where the next batch begins; after a cut one, the end of the records.
    """
    records_end = seen.size
    start = at
    batches, smallest, largest = seen.batches, seen.smallest or records_end, seen.largest
    size_from, size_at, last = _SIZE.unpack_from, shift + _SIZE_AT, passed - BATCH_HEAD_SIZE
    while at <= last:
        (size,) = size_from(view, at + size_at)
        whole = size + BATCH_HEAD_SIZE
        if size < SMALLEST_BATCH or at + whole > records_end:
            seen.next_batch_size = whole if size >= SMALLEST_BATCH else 0
            seen.cut_bytes = records_end - at
            break
        at += whole
        batches += 1
        if whole < smallest:
            smallest = whole
        if whole > largest:
            largest = whole
    else:
        if records_end - at < BATCH_HEAD_SIZE:
            seen.cut_bytes += records_end - at
    if batches > seen.batches:
        seen.batches, seen.smallest, seen.largest = batches, smallest, largest
        seen.complete_bytes += at - start
    return records_end if seen.cut_bytes else at
