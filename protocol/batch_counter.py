# SPDX-License-Identifier: Apache-2.0
"""Counts records by the heads of their batches alone, while the bytes pass. Nothing is decompressed.

Magic 2 (Kafka's DefaultRecordBatch.java) says in its head how many records a batch has. Magic 0 and 1
(LegacyRecord.java) have one message after the other. A compressed set is one message around others, whose offset is the
last one within: so the distance to the offset before it tells how many there are, unless compaction took some.
"""

import struct
from collections.abc import Generator
from typing import Final

from weir.protocol.frame_reader import FrameReader

_HEAD: Final = struct.Struct(">qi4xbb")
"""Of every magic: base offset or offset, size of what follows, magic, and the attributes of magic 0 and 1."""

_BATCH: Final = struct.Struct(">8xi4xb4xhi30xi")
"""The head of magic 2: size, magic, attributes, last offset delta, count of records."""

_BEFORE_SIZE: Final = 12  # bytes that the size does not count
_LEAST_SIZE: Final = 14  # LegacyRecord.RECORD_OVERHEAD_V0
_LEAST_BATCH_SIZE: Final = _BATCH.size - _BEFORE_SIZE
_LEAST_RECORD_SIZE: Final = (
    7  # DefaultRecord: of length, attributes, both deltas, key, value and headers, one byte each
)
_CONTROL: Final = 0x20
_CODEC: Final = 0x07


def count_batches(view: memoryview, at: int, end: int, records_end: int) -> tuple[int, int]:
    """Count the records of usual batches of magic 2 from `view[at]` on, as long as whole heads are before `end`.

    Returns how many there are, and the offset after these batches, which may lie behind `end`. It stops at
    `records_end`, and at everything else, of which `count_others` knows.
    """
    unpack_from, head, counted = _BATCH.unpack_from, _BATCH.size, 0
    last = (end if end < records_end else records_end) - head
    while at <= last:
        size, magic, attributes, last_delta, records = unpack_from(view, at)
        after = at + size + _BEFORE_SIZE
        if magic != 2 or size < _LEAST_BATCH_SIZE or after > records_end or not 0 <= records <= last_delta + 1:
            break
        if records * _LEAST_RECORD_SIZE > size - _LEAST_BATCH_SIZE and not attributes & _CODEC:
            break
        if not attributes & _CONTROL:
            counted += records
        at = after
    return counted, at


def count_others(
    reader: FrameReader, left: int, *, starts_at_zero: bool
) -> Generator[int, None, tuple[int, int, bool]]:
    """Count the records of the next `left` bytes, which end a partition's records, whatever they are.

    Returns how many there are, the bytes of whole batches, and whether something cannot be a batch: it ends the count.

    - A tail that is cut off and a control batch have no records.
    - `starts_at_zero`: the offsets of messages begin with 0, as in a Produce request. Otherwise the first compressed
      set of magic 0 or 1 is taken to have as many as the next one; if it is alone, as one.
    """
    counted, size = 0, left
    before = -1 if starts_at_zero else None  # the last offset of the message before
    first_is_unknown = is_corrupt = False
    while left >= _HEAD.size:
        found, after = count_batches(reader.view, reader.at, reader.end, reader.at + left)
        counted += found
        left -= after - reader.at
        reader.at = after
        if left < _HEAD.size:
            break
        if reader.at + _HEAD.size > reader.end:
            yield _HEAD.size
            continue
        offset, rest, magic, attributes = _HEAD.unpack_from(reader.view, reader.at)
        whole = rest + _BEFORE_SIZE
        if whole > left:
            break  # cut off
        if magic == 2 and rest >= _LEAST_BATCH_SIZE and reader.at + _BATCH.size > reader.end:
            yield _BATCH.size
            continue
        if rest < _LEAST_SIZE or not 0 <= magic <= 1:
            is_corrupt = True
            break
        counted += 1
        if attributes & _CODEC:
            if before is None:
                first_is_unknown = True
            else:
                more = max(1, min(offset - before, whole)) - 1
                counted += 2 * more if first_is_unknown else more
                first_is_unknown = False
        before = offset
        left -= whole
        reader.at += whole
    reader.at += left
    return counted, size - left, is_corrupt
