# SPDX-License-Identifier: Apache-2.0
"""Reads topics and their partitions, each with its records, while the bytes pass: of a Fetch answer, or of a Produce.

This is the one place that knows their structure. Subclasses of `TopicsReader` decide what becomes of records.

Usual partitions of a Fetch answer have no records, transactions or tags. All of these have one size, so a run of them
is compared column by column. Runs grow while they fit, and shrink to single steps where records appear. So neither one
active partition among thousands nor thousands of active ones are slow.
"""

import struct
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from weir.protocol.errors import MalformedFrame
from weir.protocol.fetch_versions import ABORTED_TRANSACTION_SIZE, TOPIC_ID_SIZE, fetch_version
from weir.protocol.frame_reader import FrameReader, Structure
from weir.protocol.header import SIZE
from weir.protocol.primitives import COUNT, STRING_LENGTH
from weir.protocol.records import RecordsSeen
from weir.protocol.varint import read_unsigned_varint

RESPONSE_ENTRY: Final = struct.Struct(">ihqi")
"""What is kept of a partition: partition, error_code, high_watermark, bytes of its records (-1: null)."""

_HEAD_SIZE: Final = RESPONSE_ENTRY.size - SIZE.size  # with which a partition of an answer begins in every version
_FIRST_RUN: Final = 4  # partitions in the first run
_GROWTH: Final = 4  # the factor by which a run that fits grows, and one that does not shrinks
_WINDOW: Final = 2**14  # bytes that are copied to be read
_ONE_BYTE: Final = 0x80  # what is below takes one byte as a varint
_EMPTY: Final = SIZE.pack(0)
_NULL: Final = SIZE.pack(-1)
_NO_REPLICA: Final = SIZE.pack(-1)


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


class TopicsLayout:
    """How topics, and partitions with records, are laid out. An idle partition has no transactions, records or tags.

    - `by_id`: topics go by their ids.
    - `fixed`: bytes of a partition in front of aborted transactions, or of its records' size.
    - `between`: bytes between aborted transactions and that size; None where there are no transactions.
    """

    def __init__(self, fixed: int, between: int | None = None, *, is_flexible: bool, by_id: bool) -> None:
        self.is_flexible = is_flexible
        self.between = between or 0
        self.count_size = 1 if is_flexible else COUNT.size
        """Bytes of a count or size that is null or 0."""
        self.size_at = fixed + (0 if between is None else self.count_size + between)
        """Where an idle partition has the size of its records."""
        self.stride = self.size_at + self.count_size + is_flexible
        """Bytes of an idle partition, the least that one takes."""
        length = 1 if is_flexible else STRING_LENGTH.size
        self.smallest_topic = (TOPIC_ID_SIZE if by_id else length) + self.count_size + is_flexible
        no_bytes = (b"\x00", b"\x01") if is_flexible else (_NULL, _EMPTY)  # null or empty records, or transactions
        tags = bytes(2 * is_flexible)  # of a partition, and of its topic
        before = [b""] if between is None else [some + _NO_REPLICA[:between] for some in no_bytes]
        idle_ends = tuple([some + size + tags for some in before for size in no_bytes])
        self._numbers = (fixed, self.size_at)[between is None :]
        """Where an idle partition has numbers that stand for nothing."""
        self._empty = no_bytes[1][-1]
        self._low = self.size_at + self.count_size - 1  # the size's last byte, which tells null from empty
        head = min(_HEAD_SIZE, self.stride)
        self._heads = struct.Struct(f">{head}s{self.stride - head}x")
        # together, as every frame needs all of them
        transactions_at = None if between is None else fixed
        self.facts = is_flexible, by_id, self.stride, self.size_at, transactions_at, self.smallest_topic
        is_kept = self.stride == RESPONSE_ENTRY.size and not is_flexible  # a RESPONSE_ENTRY as it came
        self.of_idle = idle_ends, self.count_idle, is_kept, self.shortened

    def count_idle(self, partitions: bytes, count: int) -> int:
        """Return how many of `count` partitions come before the first one that is not idle.

        It may be 0 where bytes of a size look as if there were none. What follows records is no partition.
        """
        stride = self.stride
        if self.is_flexible:
            for at in self._numbers:
                count -= len(partitions[at : count * stride : stride].lstrip(b"\x00\x01"))
            return count - len(partitions[stride - 1 : count * stride : stride].lstrip(b"\x00"))
        for at in self._numbers:  # 0 or -1: four equal bytes
            low = partitions[at + 3 : count * stride : stride]
            if low.count(0) + low.count(0xFF) < count:
                above = partitions[at + 2 : count * stride : stride]
                count -= max(len(low.lstrip(b"\x00\xff")), len(above.lstrip(b"\x00\xff")))
                low = low[:count]
            end = count * stride
            if low != partitions[at + 2 : end : stride]:
                return 0
            if low != partitions[at + 1 : end : stride] or low != partitions[at:end:stride]:
                return 0
        return count

    def shortened(self, partitions: bytes, count: int) -> bytes:
        """Return a RESPONSE_ENTRY for each of `count` idle partitions."""
        empty, low = self._empty, self._low
        if count == 1:
            return partitions[:_HEAD_SIZE] + (_EMPTY if partitions[low] == empty else _NULL)
        heads = [head for (head,) in self._heads.iter_unpack(partitions)]
        sizes = partitions[low :: self.stride]
        some = sizes.count(empty)
        if some in (0, count):
            return (_EMPTY if some else _NULL).join([*heads, b""])
        return b"".join([head + (_EMPTY if size == empty else _NULL) for head, size in zip(heads, sizes, strict=True)])


@lru_cache
def answer_layout(api_version: int) -> TopicsLayout:
    """Return the layout of a Fetch answer, of a version in FETCH_VERSIONS."""
    row = fetch_version(api_version)
    return TopicsLayout(
        row.response_partition.layout.size,
        SIZE.size * row.has_preferred_read_replica if row.has_aborted_transactions else None,
        is_flexible=row.is_flexible,
        by_id=row.names_topics_by_id,
    )


See: TypeAlias = Callable[[int, memoryview, int, int], RecordsSeen]
"""Sees the records of a partition: its number, the view, the offset where they begin, and their bytes."""


class TopicsReader(FrameReader):
    """Reads the topics of a frame; subclasses see them, and say what becomes of records."""

    __slots__ = ("keep", "topic", "topics_behind")

    def __init__(self, structure: Structure, keep: Callable[[ScannedTopic], object] | None) -> None:
        super().__init__(structure)
        self.keep = keep
        """Gets each topic when it is read, if any. The last records that are not walked may still have to pass."""
        self.topic: tuple[bytes, list[bytes], list[RecordsSeen], list[int]] | None = None
        """What ScannedTopic has, of a topic that is being read; None between topics."""
        self.topics_behind = -1
        """Bytes of the frame behind the topics array; -1 while topics are to come."""

    # For subclasses to see what is read

    def enter(self, name: bytes) -> See | None:
        """Note that partitions of this topic follow. Returns what sees records that are there whole, if that is so."""
        raise NotImplementedError

    def records(self, partition: int, size: int, size_bytes: int, seen: list[RecordsSeen]) -> Structure | None:
        """Move `at` over a partition's `size` bytes of records, which begin there; at once, or as a structure.

        The size itself stands in the `size_bytes` bytes in front of them. Add to `seen` what is seen of them.
        """
        raise NotImplementedError

    def wrong_count(self, partitions: int, allowed: int, at: int) -> MalformedFrame:
        """Return the error that a count of partitions at the offset `at` of the view is impossible, or too high."""
        if partitions <= allowed:
            return self.malformed(f"{partitions} partitions cannot stand in what is left of the frame", at)
        return self.malformed(f"{partitions} partitions come where {allowed} are left of those asked for", at)

    # The structure. What is hot is read by local names, plainly.

    def read_topics(self, layout: TopicsLayout, topics_left: int, allowed: int, longest_name: int) -> Structure:
        """Read `topics_left` topics of at most `allowed` partitions in all, with names of at most so many bytes."""
        is_flexible, by_id, stride, size_at, transactions_at, smallest_topic = layout.facts
        idle_ends, count_idle, is_kept, shortened = layout.of_idle
        head_size = RESPONSE_ENTRY.size if is_kept else _HEAD_SIZE
        string_length, int32, pack = STRING_LENGTH.unpack_from, SIZE.unpack_from, SIZE.pack
        keep, make = self.keep, tuple.__new__  # the latter at half of what the class's own constructor costs
        none: list[RecordsSeen] = []  # one for all topics without records
        headers: list[bytes]
        records: list[RecordsSeen]
        diverging: list[int]
        wanted = smallest_topic
        # `data` is a copy of what stands in the view from `base` on, as slices of bytes take half as long as those of a
        # view. `at` is an offset in it; it ends at `size`, and the frame at `rest`.
        view, base, at, end = self.view, self.at, 0, self.end
        data, size, rest = b"", 0, 0
        while topics_left:
            if at + wanted > size:
                self.at = base + at
                if self.at + wanted > self.end:
                    yield wanted
                view, base, at, end = self.view, self.at, 0, self.end
                data = view[base : base + max(wanted, _WINDOW)].tobytes()
                size, rest, wanted = len(data), self.frame_end - base, smallest_topic
            # what a topic begins with: its name or id, and the count of its partitions
            if not is_flexible:
                (length,) = string_length(data, at)
                name_at = at + STRING_LENGTH.size
            elif by_id:
                name_at, length = at, TOPIC_ID_SIZE
            elif data[at] < _ONE_BYTE:
                name_at, length = at + 1, data[at] - 1
            else:
                length, name_at = self._compact_count(data, at, base)
                if name_at > size:
                    wanted = name_at - at
                    continue
            name_end = name_at + length
            if not 0 <= length <= longest_name or name_end > rest:
                raise self.malformed(f"a topic has a name of {length} bytes", base + at)
            if not is_flexible:
                entries = name_end + COUNT.size
                if entries <= size:
                    (partitions,) = int32(data, name_end)
            elif name_end < size and data[name_end] < _ONE_BYTE:
                partitions, entries = data[name_end] - 1, name_end + 1
            else:
                partitions, entries = self._compact_count(data, name_end, base)
            if entries > size:
                wanted = entries - at
                continue
            stop = entries + partitions * stride
            if not 0 <= partitions <= allowed or stop > rest:
                raise self.wrong_count(partitions, allowed, base + name_end)
            topics_left -= 1
            allowed -= partitions
            name = data[name_at:name_end]
            # most have nothing but idle partitions
            behind = stop + is_flexible
            if behind <= size:
                block = data[entries:behind]
                if block.endswith(idle_ends) and (partitions == 1 or count_idle(block, partitions) == partitions):
                    if keep:
                        kept = block if is_kept else shortened(block[: stop - entries], partitions)
                        keep(make(ScannedTopic, (name, kept, none, ())))
                    at = behind
                    continue
            # all others, and those that are not there as a whole
            at, left = entries, partitions
            headers, records, diverging = [], [], []
            self.topic = name, headers, records, diverging
            see = self.enter(name)
            wanted, longest = stride, min(_FIRST_RUN, partitions)
            while left:
                if at + wanted > size:
                    self.at = base + at
                    if self.at + wanted > self.end:
                        yield wanted
                    view, base, at, end = self.view, self.at, 0, self.end
                    data = view[base : base + max(wanted, _WINDOW)].tobytes()
                    size, rest, wanted = len(data), self.frame_end - base, stride
                if longest > 1:  # a run of idle partitions
                    run = min(longest, left, (size - at) // stride)
                    block = data[at : at + run * stride]
                    idle = count_idle(block, run)
                    if idle and keep:
                        kept = block[: idle * stride]
                        headers.append(kept if is_kept else shortened(kept, idle))
                    at += idle * stride
                    left -= idle
                    if idle == run:
                        longest *= _GROWTH
                        continue
                    longest = max(_GROWTH * idle + 1, longest // _GROWTH)
                # one partition: what is kept of it, and the size of its records
                (partition,) = int32(data, at)
                head = data[at : at + head_size]
                if transactions_at and (
                    data[at + transactions_at] > 1
                    if is_flexible
                    else int32(data, at + transactions_at)[0] not in (0, -1)
                ):
                    self.at = base + at + transactions_at
                    count, size_bytes = yield from self._behind_transactions(layout)
                    view, base, at, end, size = self.view, self.at, 0, self.end, 0
                    rest, size_from = self.frame_end - base, -size_bytes
                elif not is_flexible:
                    size_from = at + size_at
                    at = size_from + COUNT.size
                    (count,) = int32(data, size_from)
                else:
                    size_from = at + size_at
                    count, behind = data[size_from] - 1, size_from + 1
                    if count < _ONE_BYTE - 1:
                        pass
                    elif data[behind] < _ONE_BYTE:  # it is there, as tags follow
                        count += (data[behind] - 1) * _ONE_BYTE
                        behind += 1
                    else:
                        count, behind = self._compact_count(data, size_from, base)
                        if behind > size:
                            wanted, longest = behind - at, 1
                            continue
                    at = behind
                left -= 1
                if not -1 <= count <= rest - at - left * stride:
                    raise self.malformed(f"records of {count} bytes do not fit into the frame", base + size_from)
                if keep:
                    headers.append(head if is_kept else head + pack(count))
                if count <= 0:
                    longest *= _GROWTH
                elif see is not None and base + at + count <= end:
                    records.append(see(partition, view, base + at, count))
                    at += count
                else:
                    self.at = base + at
                    more = self.records(partition, count, at - size_from, records)
                    if more is None:
                        at = self.at - base
                    else:
                        data = block = b""  # not kept while records pass
                        yield from more
                        view, base, at, end, size = self.view, self.at, 0, self.end, 0
                        rest = self.frame_end - base
                if is_flexible:
                    if not data[at] if at < size else base + at < end and not view[base + at]:
                        at += 1
                        continue
                    self.at = base + at
                    if (yield from self.tags()):  # tag 0 is the diverging epoch
                        diverging.append(partition)
                    view, base, at, end, size = self.view, self.at, 0, self.end, 0
                    rest = self.frame_end - base
            if is_flexible:
                if not data[at] if at < size else base + at < end and not view[base + at]:
                    at += 1
                else:
                    self.at = base + at
                    yield from self.tags()
                    view, base, at, end, size = self.view, self.at, 0, self.end, 0
                    rest = self.frame_end - base
            if keep:
                keep(make(ScannedTopic, (name, b"".join(headers), records, tuple(diverging))))
            self.topic = None
            wanted = smallest_topic
        self.at = base + at
        self.topics_behind = self.frame_end - self.at

    def _compact_count(self, data: bytes, at: int, base: int) -> tuple[int, int]:
        """Read a count or size of a compact array, string or records; see `read_unsigned_varint`."""
        try:
            count_and_one, after = read_unsigned_varint(data, at)
        except MalformedFrame as error:
            raise self.malformed(error.reason, base + at) from None
        return count_and_one - 1, after

    def _behind_transactions(self, layout: TopicsLayout) -> Generator[int, None, tuple[int, int]]:
        """Read aborted transactions, and the size of the records. Returns it, and the bytes in which it stands."""
        start = self.frame_end - self.at
        if layout.is_flexible:
            for _ in range((yield from self.count(ABORTED_TRANSACTION_SIZE + 1))):
                self.skip(ABORTED_TRANSACTION_SIZE)
                yield from self.tags()
            self.skip(layout.between)
            start = self.frame_end - self.at
            size = (yield from self.varint()) - 1
            return size, start - self.frame_end + self.at
        yield from self.need(COUNT.size)
        (transactions,) = COUNT.unpack_from(self.view, self.at)
        if transactions < 0:
            raise self.malformed(f"{transactions} aborted transactions are announced", self.frame_end - start)
        self.at += COUNT.size
        self.skip(transactions * ABORTED_TRANSACTION_SIZE + layout.between)
        yield from self.need(COUNT.size)
        (size,) = COUNT.unpack_from(self.view, self.at)
        self.at += COUNT.size
        return size, COUNT.size
