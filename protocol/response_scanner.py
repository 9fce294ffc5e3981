"""Walking a Fetch response while its bytes pass from socket to socket.

A response may have gigabytes; what is kept of it are the partition headers (18 bytes each), never a record byte. The
response may grow on its way: topics that the broker was not asked for are appended, and the frame's size and the
topics array's count, which come first, are patched before anything is sent.

The layout is Kafka's FetchResponse.json: [size, correlation_id, fixed fields of the version, count of topics], then for
each topic its name, a count, and for each partition RESPONSE_ENTRY and that many bytes of records.
"""

from collections.abc import Container
from typing import Final, NamedTuple, TypeAlias

from protocol.errors import CorrelationMismatch, FrameTooLarge, InvalidFrameSize, MalformedFrame
from protocol.fetch import COUNT, MAX_INT32, SMALLEST_TOPIC, STRING_LENGTH, fetch_version
from protocol.header import SIZE
from protocol.records import RecordsSeen, RecordWalker, walk_records

__all__ = ["Buffer", "FetchResponseScanner", "RecordsSeen", "ScannedTopic"]

Buffer: TypeAlias = bytes | memoryview
"""Bytes to send; a memoryview is a slice of what was received and only lives until the next receive."""

_CORRELATION_END: Final = 8  # size and correlation_id
_NO_RECORDS: Final = (SIZE.pack(0), SIZE.pack(-1))
_NULL: Final = -1  # records that are null, which takes no bytes
_FIRST_RUN: Final = 4  # partitions looked at in one go at first
_LIKE_NO_RECORDS: Final = b"\x00\xff"  # what the bytes of a size of 0 or -1 are


class ScannedTopic(NamedTuple):
    """One topic of a response.

    `headers` are its partitions' RESPONSE_ENTRY back to back in wire order, records left out; `records` has what was
    seen of each partition that had any, in the same order.
    """

    name: bytes
    headers: bytes
    records: list[RecordsSeen]


class FetchResponseScanner:
    """Scans one Fetch response in chunks of any size.

    Feed `receive` from the frame's size prefix on until `done`; after an error the scanner is of no use any more.
    `appended` are `appended_topics` topics as encode_response_topics made them; they go out behind the broker's own.
    `walk` names the topics whose records are stepped through batch by batch; for the records of others RecordsSeen has
    complete_bytes = size and no batches.

    `topics` is complete when `done`. `frame_size` is the frame's size field as received, `throttle_time_ms` the
    broker's (0 in v0); both are there from the first buffers on.
    """

    __slots__ = (
        "_appended",
        "_appended_topics",
        "_carry",
        "_correlation_id",
        "_head",
        "_head_size",
        "_headers",
        "_layout",
        "_left",
        "_name",
        "_needed",
        "_partitions_left",
        "_records",
        "_skip",
        "_topics_left",
        "_walk",
        "_walker",
        "done",
        "frame_size",
        "throttle_time_ms",
        "topics",
    )

    def __init__(
        self,
        version: int,
        correlation_id: int,
        appended: bytes = b"",
        appended_topics: int = 0,
        walk: Container[bytes] = (),
    ) -> None:
        self.done = False
        self.topics: list[ScannedTopic] = []
        self.throttle_time_ms = 0
        self.frame_size = 0

        self._correlation_id = correlation_id
        self._appended = appended
        self._appended_topics = appended_topics
        self._walk = walk
        self._layout = fetch_version(version)
        self._head_size = _CORRELATION_END + self._layout.response_head.size + COUNT.size

        self._head = b""  # the frame's start, held back until it can be patched
        self._left = -1  # bytes of the frame still to be walked; -1 before its head was read
        self._carry = bytearray()  # a topic's head or an entry that a chunk cut off, `_needed` bytes when it is whole
        self._needed = 0
        self._topics_left = 0
        # The topic being walked:
        self._name = b""
        self._partitions_left = 0
        self._headers: list[bytes] = []
        self._records: list[RecordsSeen] = []
        self._skip = 0  # record bytes to come of the partition that was read last
        self._walker: RecordWalker | None = None  # steps through them

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take the next bytes received.

        Returns what to send in their place, in order, and how many bytes of `view` belonged to this response. Raises
        InvalidFrameSize, CorrelationMismatch, MalformedFrame, or FrameTooLarge where the appended topics do not fit
        into a frame any more; nothing of `view` may be sent then.
        """
        if self.done:
            return [], 0
        buffers: list[Buffer] = []
        start = walked = 0
        if self._left < 0:
            held = len(self._head)
            head = self._read_head(view)
            if head is None:
                return [], len(view)
            walked = self._head_size - held
            if held or self._appended_topics:
                buffers.append(head)
                start = walked
        end = min(len(view), walked + self._left)
        self._walk_frame(view, walked, end)
        if end > start:
            buffers.append(view[start:end])
        if self._left == 0:
            if self._topics_left:  # partitions cannot be left: room for them was checked with their count
                raise MalformedFrame(f"the frame ends with {self._topics_left} topics to come", self.frame_size)
            self.done = True
            if self._appended:
                buffers.append(self._appended)
        return buffers, end

    def _read_head(self, view: memoryview) -> bytes | None:
        """The frame's start up to the count of topics, patched; None until all of it was received."""
        head = self._head + bytes(view[: self._head_size - len(self._head)])
        if len(head) < SIZE.size:
            self._head = head
            return None
        (size,) = SIZE.unpack_from(head)
        if size < SIZE.size:
            raise InvalidFrameSize(size)
        if size < self._head_size - SIZE.size:
            raise MalformedFrame("the frame ends within the response's fixed fields", size)
        if len(head) < self._head_size:
            self._head = head
            return None
        (correlation_id,) = SIZE.unpack_from(head, SIZE.size)
        if correlation_id != self._correlation_id:
            raise CorrelationMismatch(self._correlation_id, correlation_id)
        if size + len(self._appended) > MAX_INT32:
            raise FrameTooLarge(size + len(self._appended), MAX_INT32)
        count_at = self._head_size - COUNT.size
        (count,) = COUNT.unpack_from(head, count_at)
        left = size + SIZE.size - self._head_size
        if not 0 <= count <= left // SMALLEST_TOPIC:
            raise MalformedFrame(f"{count} topics cannot stand in {left} bytes", count_at - SIZE.size)

        layout = self._layout
        fields = dict(
            zip(layout.response_fields, layout.response_head.unpack_from(head, _CORRELATION_END), strict=True)
        )
        self.throttle_time_ms = fields.get("throttle_time_ms", 0)
        self.frame_size = size
        self._topics_left = count
        self._left = left
        self._head = b""
        if not self._appended_topics:
            return head
        return (
            SIZE.pack(size + len(self._appended))
            + head[SIZE.size : count_at]
            + COUNT.pack(count + self._appended_topics)
        )

    def _walk_frame(self, view: memoryview, at: int, end: int) -> None:
        """Walk `view[at:end]`, which is all of this frame and begins where the last chunk ended."""
        while at < end:
            if self._skip:
                at = self._step_over_records(view, at, end)
            elif self._carry:
                at = self._complete_carry(view, at, end)
            elif self._partitions_left:
                at = self._read_partitions(view, at, end)
            elif self._topics_left:
                at = self._read_topics(view, at, end)
            else:
                raise MalformedFrame(f"{self._left} bytes follow the last topic", self.frame_size - self._left)

    def _step_over_records(self, view: memoryview, at: int, end: int) -> int:
        stop = min(at + self._skip, end)
        if self._walker is not None:
            self._walker.receive(view, at, stop)
        self._skip -= stop - at
        self._left -= stop - at
        return stop

    def _complete_carry(self, view: memoryview, at: int, end: int) -> int:
        """Add to the carried bytes; once whole they are read like a chunk that ends where they do."""
        carry = self._carry
        stop = min(at + self._needed - len(carry), end)
        carry += view[at:stop]
        self._left -= stop - at
        if len(carry) == self._needed:
            self._carry = bytearray()
            self._left += len(carry)  # they are walked again, from their first byte
            read = self._read_partitions if self._partitions_left else self._read_topics
            with memoryview(carry) as whole:
                read(whole, 0, len(carry))
        return stop

    def _read_topics(self, view: memoryview, at: int, end: int) -> int:
        """Read topics up to what the chunk cuts off; returns the offset of what was not read."""
        stride, no_records, topics = self._layout.response_entry.size, self._no_records, self.topics
        string_length, entry_count = STRING_LENGTH.unpack_from, COUNT.unpack_from
        make = tuple.__new__  # at half of what the class's own constructor costs
        frame_end = at + self._left
        while self._topics_left:
            if at + SMALLEST_TOPIC > end:
                at = self._keep(view, at, end, SMALLEST_TOPIC, frame_end)
                break
            (length,) = string_length(view, at)
            name_start = at + 2
            name_end = name_start + length
            entries = name_end + 4
            if length < 0:
                raise MalformedFrame(f"a topic name has a length of {length}", self.frame_size - (frame_end - at))
            if entries > end:
                at = self._keep(view, at, end, entries - at, frame_end)
                break
            (partitions,) = entry_count(view, name_end)
            at = entries + partitions * stride
            if partitions < 0 or at > frame_end:
                raise MalformedFrame(
                    f"{partitions} partitions cannot stand in {frame_end - entries} bytes",
                    self.frame_size - (frame_end - name_end),
                )
            name = view[name_start:name_end].tobytes()
            self._topics_left -= 1
            if at <= end:
                headers = view[entries:at].tobytes()
                if no_records(headers, partitions):
                    topics.append(make(ScannedTopic, (name, headers, [])))
                    continue
            self._name, self._partitions_left, self._headers, self._records = name, partitions, [], []
            self._left = frame_end - entries
            at = self._read_partitions(view, entries, end)
            if self._partitions_left or self._skip:
                break
        self._left = frame_end - at
        return at

    def _read_partitions(self, view: memoryview, at: int, end: int) -> int:
        """Read the topic's partitions up to records, or a header, that the chunk cuts off; returns where it stopped.

        Partitions without records are taken in runs, which grow while they hold and shrink to single steps where
        records appear: neither a lone active partition among thousands nor thousands of active ones are slow.
        """
        layout, headers, records = self._layout.response_entry, self._headers, self._records
        stride, unpack_from = layout.size, layout.unpack_from
        is_walked = self._name in self._walk
        frame_end = at + self._left
        partitions_left = self._partitions_left
        longest = min(_FIRST_RUN, partitions_left)
        while partitions_left:
            if at + stride > end:
                at = self._keep(view, at, end, stride, frame_end)
                break
            if longest > 1:
                run = min(longest, partitions_left, (end - at) // stride)
                block = view[at : at + run * stride].tobytes()
                idle = self._count_idle(block, run)
                headers.append(block[: idle * stride])
                at += idle * stride
                partitions_left -= idle
                if idle == run:
                    longest *= 2
                    continue
                longest = max(2 * idle + 1, longest // 4)
            fields = unpack_from(view, at)
            headers.append(view[at : at + stride].tobytes())
            at += stride
            partitions_left -= 1
            partition, size = fields[0], fields[-1]
            if size > 0:
                if at + size + partitions_left * stride > frame_end:
                    raise MalformedFrame(
                        f"{size} bytes of records pass the end of the frame", self.frame_size - (frame_end - at) - 4
                    )
                if at + size > end:
                    self._begin_records(partition, size, is_walked)
                    break
                records.append(
                    walk_records(partition, view, at, size) if is_walked else RecordsSeen(partition, size, size)
                )
                at += size
            elif size >= _NULL:
                longest *= 2
            else:
                raise MalformedFrame(f"records have a size of {size}", self.frame_size - (frame_end - at) - 4)
        self._partitions_left = partitions_left
        self._left = frame_end - at
        if not partitions_left:
            self.topics.append(ScannedTopic(self._name, b"".join(headers), records))
        return at

    def _begin_records(self, partition: int, size: int, is_walked: bool) -> None:
        """Step over records that this chunk cuts off as their bytes come."""
        seen = RecordsSeen(partition, size, complete_bytes=0 if is_walked else size)
        self._records.append(seen)
        self._skip, self._walker = size, RecordWalker(seen) if is_walked else None

    def _count_idle(self, headers: bytes, count: int) -> int:
        """How many of `count` headers come before the first that announces records.

        0 also where the two low bytes of a size look like none. What stands behind records is no header at all.
        """
        stride = self._layout.response_entry.size
        low = len(headers[stride - 1 :: stride].lstrip(_LIKE_NO_RECORDS))
        high = len(headers[stride - 2 :: stride].lstrip(_LIKE_NO_RECORDS))
        idle = count - max(low, high)
        return idle if self._no_records(headers[: idle * stride], idle) else 0

    def _no_records(self, headers: bytes, count: int) -> bool:
        """Whether the records' sizes of `count` headers are all 0 or all -1 (null), or a mixture of both.

        Seen column by column: a size is neither when its four bytes differ or are not 0x00 or 0xff. Where all are
        so, the headers do stand back to back, for then no records stand between them.
        """
        if count == 1:
            return headers.endswith(_NO_RECORDS)
        stride = self._layout.response_entry.size
        low = headers[stride - 1 :: stride]
        return (
            low.count(0) + low.count(0xFF) == count
            and low == headers[stride - 2 :: stride]
            and low == headers[stride - 3 :: stride]
            and low == headers[stride - 4 :: stride]
        )

    def _keep(self, view: memoryview, at: int, end: int, needed: int, frame_end: int) -> int:
        """Carry `view[at:end]`, the first of `needed` bytes that are read together, over to the next chunk."""
        if at + needed > frame_end != at:  # the frame's very end is for `receive` to judge
            raise MalformedFrame(
                f"{needed} bytes are announced where {frame_end - at} are left", self.frame_size - (frame_end - at)
            )
        self._carry = bytearray(view[at:end])
        self._needed = needed
        return end
