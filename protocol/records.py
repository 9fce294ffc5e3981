# SPDX-License-Identifier: Apache-2.0
"""Walks over records by their lengths alone.

Magic 0, 1 and 2 begin alike (Kafka's LegacyRecord.java, DefaultRecordBatch.java): an i64 offset, and an i32 size of
what follows. Nothing after these 12 bytes is read, so every magic and every codec is treated alike. For magic 0 and 1 a
"batch" is one entry of the message set: a message, or the wrapper of a compressed set.
"""

import struct
from dataclasses import dataclass
from typing import Final

from weir.protocol.frame_reader import FrameReader, Structure

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


def walk_records(partition: int, view: memoryview, start: int, size: int) -> RecordsSeen:
    """Return what is seen of the records `view[start : start + size]`, which are there as a whole."""
    if size >= BATCH_HEAD_SIZE + SMALLEST_BATCH:
        (only,) = _SIZE.unpack_from(view, start + _SIZE_AT)
        if only + BATCH_HEAD_SIZE == size:  # one whole batch, which is what a replica in sync mostly gets
            return RecordsSeen(partition, size, size, 1, 0, size, size)
    seen = RecordsSeen(partition, size)
    _walk(seen, view, start, start + size, start + size)
    return seen


def see_records(reader: FrameReader, seen: RecordsSeen) -> Structure:
    """Step over the next `seen.size` bytes, and note what is seen of them.

    A size that no batch can have ends the walk. The rest counts as cut, since a follower does not keep it either.
    """
    behind = reader.frame_end - reader.at - seen.size
    while (records_end := reader.frame_end - behind) > reader.at:
        reader.at = _walk(seen, reader.view, reader.at, reader.end, records_end)
        if reader.at < records_end:
            yield BATCH_HEAD_SIZE


def _walk(seen: RecordsSeen, view: memoryview, at: int, end: int, records_end: int) -> int:
    """Walk from the batch at `view[at]` over those whose first 12 bytes are before `end`.

    The partition's records end at `records_end`. Returns where the next batch begins, which may be behind `end`; after
    a cut one, the end of the records.
    """
    start = at
    batches, smallest, largest = seen.batches, seen.smallest or seen.size, seen.largest
    size_from, last = _SIZE.unpack_from, (end if end < records_end else records_end) - BATCH_HEAD_SIZE
    while at <= last:
        (size,) = size_from(view, at + _SIZE_AT)
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
