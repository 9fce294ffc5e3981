# SPDX-License-Identifier: Apache-2.0
"""Reads runs of topics and partitions of a response without looking at each of them.

Usual partitions have no records, transactions or tags. All of these have one size, so a run of them is compared column
by column. Runs grow while they fit, and shrink to single steps where records appear. So neither one active partition
among thousands nor thousands of active ones are slow.
"""

import struct
from functools import lru_cache
from typing import Final

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import TOPIC_ID_SIZE, fetch_version
from weir.protocol.header import SIZE
from weir.protocol.primitives import COUNT, STRING_LENGTH
from weir.protocol.records import RecordsSeen, walk_records
from weir.protocol.request_topics import SMALLEST_TOPIC
from weir.protocol.response_body import HEAD_SIZE, RESPONSE_ENTRY, ResponseBody, ScannedTopic, smallest_partition
from weir.protocol.varint import read_tags

_FIRST_RUN: Final = 4  # partitions in the first run
_GROWTH: Final = 4  # the factor by which a run that fits grows, and one that does not shrinks
_NULL: Final = -1  # the size of records that are null
_EMPTY_SIZE: Final = SIZE.pack(0)
_NULL_SIZE: Final = SIZE.pack(_NULL)
_NO_RECORDS: Final = (_EMPTY_SIZE, _NULL_SIZE)
_WINDOW: Final = 2**14  # bytes that are copied to read topics: where records follow, the rest was copied in vain
_LIKE_NO_RECORDS: Final = b"\x00\xff"  # the values of the bytes in a size of 0 or -1
_COMPACT_NULL_OR_EMPTY: Final = b"\x00\x01"
_ONE_BYTE: Final = 0x80  # what is below takes one byte as a varint
_LONGEST_COMPACT_SIZE: Final = 5


@lru_cache
def _partition_and_size(api_version: int) -> struct.Struct:
    """Return a struct that reads the id and the records' size of a partition below v12 without transactions."""
    stride = smallest_partition(fetch_version(api_version))
    return struct.Struct(f">i{stride - 2 * SIZE.size}xi")


@lru_cache
def _heads(stride: int) -> struct.Struct:
    """Return a struct that reads what ScannedTopic keeps of a partition, without the size of its records."""
    return struct.Struct(f">{HEAD_SIZE}s{stride - HEAD_SIZE}x")


class ClassicBody(ResponseBody):
    """Versions below v12: lengths and counts of fixed size."""

    __slots__ = ()

    def _read_topics(self, view: memoryview, at: int, end: int) -> int:
        stride, is_idle, topics = self._smallest, self._is_idle, self.topics
        is_long, longest_name, is_plain = stride > RESPONSE_ENTRY.size, self._longest_name, not self._transactions_at
        string_length, entry_count = STRING_LENGTH.unpack_from, COUNT.unpack_from
        make = tuple.__new__  # at half of what the class's own constructor costs
        none = list[RecordsSeen]()  # one for all topics without records
        frame_end = at + self.left
        topics_left, allowed = self._topics_left, self._allowed
        data = view[at : min(end, at + _WINDOW)].tobytes()  # slices of bytes take half as long as those of a view
        base, size = at, len(data)
        while topics_left and at - base + SMALLEST_TOPIC <= size:
            name_start = at - base + 2
            (length,) = string_length(data, name_start - 2)
            name_end = name_start + length
            entries = name_end + 4
            if not 0 <= length <= longest_name or entries > size:
                break
            (partitions,) = entry_count(data, name_end)
            stop = entries + partitions * stride
            if not 0 <= partitions <= allowed or base + stop > frame_end:
                break
            name = data[name_start:name_end]
            if stop <= size:
                headers = data[entries:stop]
                is_one = is_plain and partitions == 1
                if headers.endswith(_NO_RECORDS) if is_one else is_idle(headers, partitions):
                    if is_long:
                        headers = self._shortened(headers, partitions)
                    topics.append(make(ScannedTopic, (name, headers, none, ())))
                    topics_left -= 1
                    allowed -= partitions
                    at = base + stop
                    continue
            self.left, self._topics_left, self._allowed = frame_end - base - entries, topics_left, allowed
            self._enter_topic(name, partitions)
            at = self._read_partitions(view, base + entries, end)
            if self._in_topic:
                return at
            topics_left, allowed = self._topics_left, self._allowed
        self.left, self._topics_left, self._allowed = frame_end - at, topics_left, allowed
        if not topics_left:
            self.behind_topics = self.left
        return at

    def _read_partitions(self, view: memoryview, at: int, end: int) -> int:
        stride, headers, records = self._smallest, self._seen_headers, self._records
        is_long, transactions_at = stride > RESPONSE_ENTRY.size, self._transactions_at
        is_walked = self._is_walked
        unpack_from = _partition_and_size(self._row.api_version).unpack_from
        frame_end = at + self.left
        partitions_left = self._partitions_left
        longest = min(_FIRST_RUN, partitions_left)
        while partitions_left and at + stride <= end:
            if longest > 1:
                run = min(longest, partitions_left, (end - at) // stride)
                block = view[at : at + run * stride].tobytes()
                idle = self._count_idle(block, run)
                if idle:
                    block = block[: idle * stride]
                    headers.append(self._shortened(block, idle) if is_long else block)
                    at += idle * stride
                    partitions_left -= idle
                if idle == run:
                    longest *= _GROWTH
                    continue
                longest = max(_GROWTH * idle + 1, longest // _GROWTH)
            partition, size = unpack_from(view, at)
            if transactions_at and SIZE.unpack_from(view, at + transactions_at)[0] not in (0, _NULL):
                break
            if size > 0 and self.take_out is not None:
                break
            behind = at + stride
            if size < _NULL or behind + size + (partitions_left - 1) * stride > frame_end:
                break
            if is_long:
                headers.append(view[at : at + HEAD_SIZE].tobytes() + view[behind - SIZE.size : behind].tobytes())
            else:
                headers.append(view[at:behind].tobytes())
            at = behind
            if size > 0:
                if at + size > end:
                    self.left, self._partitions_left = frame_end - at, partitions_left
                    self._begin(self._records_of(partition, size))
                    return at
                records.append(
                    walk_records(partition, view, at, size) if is_walked else RecordsSeen(partition, size, size)
                )
                at += size
            else:
                longest *= _GROWTH
            partitions_left -= 1
        self.left, self._partitions_left = frame_end - at, partitions_left
        if not partitions_left:
            self._leave_topic()
        return at

    def _count_idle(self, headers: bytes, count: int) -> int:
        """Return how many of `count` headers come before the first one that announces records.

        It is 0 also where the two low bytes of a size look as if there were none. What follows records is no header.
        """
        if self._is_idle(headers, count):
            return count
        stride = self._smallest
        low = len(headers[stride - 1 :: stride].lstrip(_LIKE_NO_RECORDS))
        high = len(headers[stride - 2 :: stride].lstrip(_LIKE_NO_RECORDS))
        idle = count - max(low, high)
        return idle if self._is_idle(headers[: idle * stride], idle) else 0

    def _is_idle(self, headers: bytes, count: int) -> bool:
        """Return whether `count` headers follow each other without records or transactions in between."""
        stride = self._smallest
        if self._transactions_at and not _all_null_or_empty(headers, count, self._transactions_at, stride):
            return False
        if count == 1:
            return headers.endswith(_NO_RECORDS)
        return _all_null_or_empty(headers, count, stride - SIZE.size, stride)

    def _shortened(self, headers: bytes, count: int) -> bytes:
        stride = self._smallest
        if count == 1:
            return headers[:HEAD_SIZE] + headers[-SIZE.size :]
        sizes = headers[stride - 1 :: stride]
        return _with_sizes(headers, stride, sizes.count(0), sizes, 0)


class CompactBody(ResponseBody):
    """Versions from v12 on: varints, and a tag buffer after every partition and every topic."""

    __slots__ = ()

    def _read_topics(self, view: memoryview, at: int, end: int) -> int:
        stride, topics, by_id = self._smallest, self.topics, self._row.names_topics_by_id
        make = tuple.__new__  # at half of what the class's own constructor costs
        frame_end = at + self.left
        topics_left, allowed = self._topics_left, self._allowed
        while topics_left and at < end:
            if by_id:
                name_start, name_end = at, at + TOPIC_ID_SIZE
            else:
                length_and_one = view[at]
                if not 0 < length_and_one < _ONE_BYTE:
                    break
                name_start, name_end = at + 1, at + length_and_one
            entries = name_end + 1
            if entries >= end:
                break
            count_and_one = view[name_end]
            if count_and_one >= _ONE_BYTE:
                if view[entries] >= _ONE_BYTE:
                    break
                count_and_one += (view[entries] - 1) * _ONE_BYTE
                entries += 1
            partitions = count_and_one - 1
            stop = entries + partitions * stride
            if not 0 <= partitions <= allowed or stop > frame_end:
                break
            name = view[name_start:name_end].tobytes()
            # Idle partitions have such bytes at the last one's size; most topics with records fail here.
            if stop < end and not view[stop] and view[stop - 2] <= 1:
                headers = view[entries:stop].tobytes()
                if self._count_idle(headers, partitions) == partitions:
                    topics.append(make(ScannedTopic, (name, self._shortened(headers, partitions), [], ())))
                    topics_left -= 1
                    allowed -= partitions
                    at = stop + 1
                    continue
            self.left, self._topics_left, self._allowed = frame_end - entries, topics_left, allowed
            self._enter_topic(name, partitions)
            at = self._read_partitions(view, entries, end)
            if self._in_topic:
                return at
            topics_left, allowed = self._topics_left, self._allowed
        self.left, self._topics_left, self._allowed = frame_end - at, topics_left, allowed
        if not topics_left:
            self.behind_topics = self.left
        return at

    def _read_partitions(self, view: memoryview, at: int, end: int) -> int:
        stride, transactions_at, headers, records = (
            self._smallest,
            self._transactions_at,
            self._seen_headers,
            self._records,
        )
        size_at = stride - 2  # after it come the records, if there are any, and a tag buffer
        is_walked = self._is_walked
        frame_end = at + self.left
        partitions_left = self._partitions_left
        longest = min(_FIRST_RUN, partitions_left)
        while partitions_left and at + stride + _LONGEST_COMPACT_SIZE <= end:
            if longest > 1:
                run = min(longest, partitions_left, (end - at) // stride)
                block = view[at : at + run * stride].tobytes()
                idle = self._count_idle(block, run)
                if idle:
                    headers.append(self._shortened(block[: idle * stride], idle))
                    at += idle * stride
                    partitions_left -= idle
                if idle == run:
                    longest *= _GROWTH
                    continue
                longest = max(_GROWTH * idle + 1, longest // _GROWTH)
                if at + stride + _LONGEST_COMPACT_SIZE > end:
                    break
            if view[at + transactions_at] not in _COMPACT_NULL_OR_EMPTY:
                break  # it has transactions
            behind = at + size_at + 1
            size = view[behind - 1]
            if size >= _ONE_BYTE:
                size &= 0x7F
                shift = 7
                while view[behind] >= _ONE_BYTE and shift < 28:
                    size |= (view[behind] & 0x7F) << shift
                    shift += 7
                    behind += 1
                size |= (view[behind] & 0x7F) << shift
                if view[behind] >= _ONE_BYTE:
                    break
                behind += 1
            size -= 1
            if size > 0 and self.take_out is not None:
                break
            if behind + size + (partitions_left - 1) * stride > frame_end:
                break
            headers.append(view[at : at + HEAD_SIZE].tobytes() + SIZE.pack(size))
            (partition,) = SIZE.unpack_from(view, at)
            at = behind
            if size > 0:
                if at + size >= end:
                    self.left, self._partitions_left = frame_end - at, partitions_left
                    self._begin(self._records_of(partition, size))
                    return at
                records.append(
                    walk_records(partition, view, at, size) if is_walked else RecordsSeen(partition, size, size)
                )
                at += size
            else:
                longest *= _GROWTH
            if view[at]:
                has_first, behind = _tags_within(view[:end], at)
                if not behind:
                    self.left, self._partitions_left = frame_end - at, partitions_left
                    self._begin(self._partition_end(partition))
                    return at
                if has_first:
                    self._diverging.append(partition)
                at = behind
            else:
                at += 1
            partitions_left -= 1
        self.left, self._partitions_left = frame_end - at, partitions_left
        if not partitions_left and at < end:
            _, behind = (False, at + 1) if not view[at] else _tags_within(view[:end], at)
            if behind:
                self.left = frame_end - behind
                self._leave_topic()
                return behind
        return at

    def _count_idle(self, headers: bytes, count: int) -> int:
        """Return how many of `count` partitions come before the first with transactions, records or tags."""
        stride = self._smallest
        return count - max(
            len(headers[self._transactions_at :: stride].lstrip(_COMPACT_NULL_OR_EMPTY)),
            len(headers[stride - 2 :: stride].lstrip(_COMPACT_NULL_OR_EMPTY)),
            len(headers[stride - 1 :: stride].lstrip(b"\x00")),
        )

    def _shortened(self, headers: bytes, count: int) -> bytes:
        stride = self._smallest
        if count == 1:
            return headers[:HEAD_SIZE] + (_EMPTY_SIZE if headers[stride - 2] else _NULL_SIZE)
        sizes = headers[stride - 2 :: stride]
        return _with_sizes(headers, stride, sizes.count(1), sizes, 1)


def _tags_within(view: memoryview, at: int) -> tuple[bool, int]:
    """Return whether tag 0 is in a tag buffer, and where it ends; 0 where it is cut off, or malformed."""
    try:
        has_first, behind = read_tags(view, at)
    except MalformedFrame:
        return False, 0
    return has_first, behind if behind <= len(view) else 0


def _all_null_or_empty(headers: bytes, count: int, at: int, stride: int) -> bool:
    """Return whether each of the int32s at `at` of `count` headers is 0 or -1.

    They are compared column by column: each has four equal bytes, 0x00 or 0xff.
    """
    low = headers[at + 3 :: stride]
    return (
        low.count(0) + low.count(0xFF) == count
        and low == headers[at + 2 :: stride]
        and low == headers[at + 1 :: stride]
        and low == headers[at::stride]
    )


def _with_sizes(headers: bytes, stride: int, empty: int, sizes: bytes, empty_size: int) -> bytes:
    """Return a RESPONSE_ENTRY for each of the headers, none of which has records.

    `sizes` has one byte for each header: `empty_size` where its records are empty (`empty` of them), else they are
    null.
    """
    heads = [head for (head,) in _heads(stride).iter_unpack(headers)]
    if empty in (0, len(heads)):
        size = _EMPTY_SIZE if empty else _NULL_SIZE
        return size.join([*heads, b""])
    return b"".join(
        [head + (_EMPTY_SIZE if size == empty_size else _NULL_SIZE) for head, size in zip(heads, sizes, strict=True)]
    )
