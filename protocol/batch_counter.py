"""Counts records by the heads of their batches alone, while the bytes pass. Nothing is decompressed.

Magic 2 (Kafka's DefaultRecordBatch.java) says in its head how many records a batch has. Magic 0 and 1
(LegacyRecord.java) have one message after the other. A compressed set is one message around others, whose offset is the
last one within: so the distance to the offset before it tells how many there are, unless compaction took some.
"""

import struct
from typing import Final

_HEAD: Final = struct.Struct(">qi4xbb")
"""Of every magic: base offset or offset, size of what follows, magic, and the attributes of magic 0 and 1."""

_BATCH: Final = struct.Struct(">qi4xb4xhi30xi")
"""The head of magic 2: base offset, size, magic, attributes, last offset delta, count of records."""

_BEFORE_SIZE: Final = 12  # bytes that the size does not count
_LEAST_SIZE: Final = 14  # LegacyRecord.RECORD_OVERHEAD_V0
_LEAST_BATCH_SIZE: Final = _BATCH.size - _BEFORE_SIZE
_LEAST_RECORD_SIZE: Final = (
    7  # DefaultRecord: of length, attributes, both deltas, key, value and headers, one byte each
)
_CONTROL: Final = 0x20
_CODEC: Final = 0x07


class BatchCounter:
    """Counts the records of one partition, `size` bytes in all, from chunks of any size. It keeps at most 61 of them.

    - A tail that is cut off and a control batch have no records.
    - What cannot be a batch ends the count of its partition; `corrupt` then says so.
    - `starts_at_zero`: the offsets of messages begin with 0, as in a Produce request. Otherwise the first compressed
      set of magic 0 or 1 is taken to have as many as the next one; if it is alone, as one.
    """

    __slots__ = ("_before", "_first_is_unknown", "_held", "_left", "_needed", "_skip", "complete", "corrupt", "records")

    def __init__(self, size: int, *, starts_at_zero: bool) -> None:
        self.records = 0
        self.complete = 0
        """Bytes of whole batches."""
        self.corrupt = False
        self._left = size  # from the begin of the next batch on
        self._skip = 0  # bytes to step over
        self._held = bytearray()  # of the next head
        self._needed = _HEAD.size
        self._before: int | None = -1 if starts_at_zero else None  # the last offset of the message before
        self._first_is_unknown = False

    def receive(self, view: memoryview, at: int, end: int) -> None:
        """Take the partition's next bytes, `view[at:end]`."""
        while at < end:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
            elif self._held or end - at < self._needed:
                step = min(self._needed - len(self._held), end - at)
                self._held += view[at : at + step]
                at += step
                if len(self._held) < self._needed:
                    return
                if whole := self._read(self._held, 0):
                    self._skip = whole - len(self._held)
                    self._held = bytearray()
                    self._needed = _HEAD.size
            elif (after := self._read_batches(view, at, end)) > at:
                at = after
            elif whole := self._read(view, at):
                self._skip = whole
                self._needed = _HEAD.size

    def step_over(self, most: int) -> int:
        """Count as received what is left of a batch whose head was read: `most` bytes at most. Returns how many."""
        size = min(self._skip, most)
        self._skip -= size
        return size

    def _read_batches(self, view: memoryview, at: int, end: int) -> int:
        """Read usual batches of magic 2 as long as whole heads are there. Returns the offset after them.

        It stops at everything else, of which `_read` knows.
        """
        unpack_from, head, left, seen = _BATCH.unpack_from, _BATCH.size, self._left, 0
        if self._needed != _HEAD.size:
            return at
        last = end - head
        while at <= last:
            _, size, magic, attributes, last_delta, records = unpack_from(view, at)
            whole: int = size + _BEFORE_SIZE
            if magic != 2 or not head <= whole <= left or not 0 <= records <= last_delta + 1:
                break
            if records * _LEAST_RECORD_SIZE > whole - head and not attributes & _CODEC:
                break
            if not attributes & _CONTROL:
                seen += records
            left -= whole
            at += whole
        self.records += seen
        self.complete += self._left - left
        self._left = left
        if at > end:
            self._skip = at - end
            return end
        return at

    def _read(self, head: memoryview | bytearray, at: int) -> int:
        """Read the head at `head[at]`, of which `_needed` bytes are there.

        Returns how many bytes it and what belongs to it have; 0 where more of it is needed.
        """
        if self._needed == _HEAD.size:
            offset, size, magic, attributes = _HEAD.unpack_from(head, at)
            whole = int(size) + _BEFORE_SIZE
            if whole > self._left:
                return self._end()  # cut off
            if size < _LEAST_SIZE or not 0 <= magic <= 2 or (magic == 2 and size < _LEAST_BATCH_SIZE):
                self.corrupt = True
                return self._end()
            if magic == 2:
                self._needed = _BATCH.size
                return 0
            self._add_message(offset, attributes & _CODEC, whole)
        else:
            _, size, _, attributes, last_delta, records = _BATCH.unpack_from(head, at)
            whole = int(size) + _BEFORE_SIZE
            has_room = attributes & _CODEC or records * _LEAST_RECORD_SIZE <= whole - _BATCH.size
            if not 0 <= records <= last_delta + 1 or not has_room:
                self.corrupt = True
                return self._end()
            if not attributes & _CONTROL:
                self.records += records
        self.complete += whole
        self._left -= whole
        return whole

    def _add_message(self, offset: int, codec: int, whole: int) -> None:
        before, self._before = self._before, offset
        if not codec:
            self.records += 1
            return
        if before is None:
            self._first_is_unknown = True
            self.records += 1
            return
        records = max(1, min(offset - before, whole))
        self.records += records
        if self._first_is_unknown:
            self._first_is_unknown = False
            self.records += records - 1

    def _end(self) -> int:
        """Count no more records of this partition: what comes is skipped."""
        left, self._left = self._left, 0
        return left
