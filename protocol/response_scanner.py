# SPDX-License-Identifier: Apache-2.0
"""Scans a Fetch response while its bytes pass from socket to socket.

A response may have gigabytes. Only the partition headers are kept (18 bytes each), never a record byte. Topics that the
broker was not asked for may be appended; the frame's size and the topics array's count come first, so both are changed
before anything is sent.

The layout is that of Kafka's FetchResponse.json: [size, correlation_id, fixed fields of the version, count of topics],
then the topics (see response_body). From v12 on one tag buffer follows the correlation id, and another one the topics.
"""

from collections.abc import Callable, Container
from dataclasses import InitVar, dataclass, field
from typing import Final, NamedTuple, TypeAlias

from weir.protocol.errors import CorrelationMismatch, FrameTooLarge, InvalidFrameSize, MalformedFrame
from weir.protocol.fetch_versions import MAX_INT32, FetchVersion, fetch_version
from weir.protocol.frame_reader import Structure
from weir.protocol.header import SIZE
from weir.protocol.primitives import COUNT, LONGEST_STRING
from weir.protocol.records import RecordsSeen, see_records, walk_records
from weir.protocol.response_body import ScannedTopic, See, TopicsReader, answer_layout
from weir.protocol.take_out import Admit, Passing, TakeOut
from weir.protocol.varint import after_tags, encode_unsigned_varint, read_unsigned_varint

__all__ = ["Buffer", "Expected", "FetchResponseScanner", "RecordsSeen", "ResponseHead", "ScannedTopic"]

Buffer: TypeAlias = bytes | memoryview
"""Bytes to send. A memoryview is a slice of what was received, and is valid only until the next receive."""

_LONGEST_HEAD: Final = 4096  # bytes with the header's tags, of which brokers send none
_LONGEST_NAME: Final = 255
"""The most bytes that a topic's name may have (Kafka's limit is 249); a leader that sends a longer one is not trusted.
"""

_NO_BOUND: Final = 2**63
_SPARSE_TOPIC: Final = 1024  # bytes of a topic, below which reading its entries costs more than moving its bytes
_SPARSE_RUN: Final = 2**14  # bytes of one partition's records that are worth a large read


class ResponseHead(NamedTuple):
    """A response's fields before its topics. They exist from v1, v7 and v7 on, and are 0 in earlier versions."""

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0


class Expected(NamedTuple):
    """What is known of a response before it comes, and what is changed of it.

    - `appended`: `appended_topics` topics, as encode_response_topics makes them, to be sent after the broker's own.
      They are not sent if the head that goes out has an error, as followers then read nothing else. An answer without
      topics that has a throttle_time_ms stays empty: an empty answer is legal for a full fetch (KIP-219), an answer
      with only some of the partitions is not.
    - `walk`: topics whose records are walked batch by batch. For all others RecordsSeen has complete_bytes = size, and
      no batches.
    - `most_partitions`, `most_topics`: how many were asked for. A response with more is malformed (repeated ones count
      each time), so what is kept of it is bounded by its request. None is no bound.
    - `head_patch`: called once with the broker's head. It returns the head to send, as far as the version has the
      fields.
    - `admit`: says what passes of each partition's records; None lets all pass. Nothing is sent before it is known what
      is taken out (see take_out). `holds_all`: a small answer is held whole where there is room, so that tails can be
      taken out, too.
    """

    appended: bytes = b""
    appended_topics: int = 0
    walk: Container[bytes] = ()
    head_patch: Callable[[ResponseHead], ResponseHead] | None = None
    most_partitions: int | None = None
    most_topics: int | None = None
    admit: Admit | None = None
    holds_all: bool = False


_NOTHING_KNOWN: Final = Expected()


def _always(size: int) -> bool:
    return True


class _Body(TopicsReader):
    """What follows a response's head: `topics_left` topics in the last `left` bytes of a frame of `size` bytes."""

    __slots__ = ("_behind_records", "_is_walked", "_walk", "_walked", "take_out", "topics_read")

    def __init__(
        self,
        row: FetchVersion,
        topics_left: int,
        left: int,
        size: int,
        walk: Container[bytes],
        most_partitions: int | None,
        take_out: TakeOut | None,
    ) -> None:
        bounds = (_NO_BOUND, LONGEST_STRING) if most_partitions is None else (most_partitions, _LONGEST_NAME)
        self.topics_read: list[ScannedTopic] = []
        super().__init__(self._all(row, topics_left, *bounds), self.topics_read.append)
        self.left, self.frame_size = left, size
        self.take_out = take_out
        """What to ask about each partition's records, while some may be taken out."""
        self._walk = walk
        self._is_walked = False  # whether records of the present topic are
        self._walked: RecordsSeen | None = None  # of the records that are walked, or were last
        self._behind_records = size  # bytes of the frame behind the records that pass

    def is_within(self, size: int) -> bool:
        """Whether the next `size` bytes all lie in the middle of one partition's records."""
        return self.left - size > self._behind_records

    def so_far(self) -> list[ScannedTopic]:
        """Return what was read of a body that is broken off. Records that are walked count as far as they came."""
        self.end_reading()
        if self._walked is not None:
            self._walked.size -= max(0, self.left - self._behind_records)
        if self.topic is not None:
            name, headers, records, diverging = self.topic
            self.topics_read.append(ScannedTopic(name, b"".join(headers), records, tuple(diverging)))
        return self.topics_read

    def step_over(self) -> int:
        """Step over bytes that nobody reads; but all of records that are walked are to be told, as far as they came."""
        return 0 if self._walked is not None and self.is_within(0) else super().step_over()

    # What is read

    def _all(self, row: FetchVersion, topics_left: int, allowed: int, longest_name: int) -> Structure:
        yield from self.read_topics(answer_layout(row.api_version), topics_left, allowed, longest_name)
        if row.is_flexible:
            yield from self.tags()
        if self.at < self.frame_end:
            raise self.malformed(f"{self.frame_end - self.at} bytes follow the last topic", self.at)

    def enter(self, name: bytes) -> See | None:
        self._is_walked = name in self._walk
        return None if self.take_out is not None else walk_records if self._is_walked else _unwalked

    def records(self, partition: int, size: int, size_bytes: int, seen: list[RecordsSeen]) -> Structure | None:
        self._behind_records, self._walked = self.frame_end - self.at - size, None
        if self.take_out is not None:
            return self._admitted(self.take_out, partition, size, size_bytes, seen)
        if self._is_walked:
            return self._walk_over(RecordsSeen(partition, size), seen)
        seen.append(RecordsSeen(partition, size, size))
        self.at += size
        return None

    def _walk_over(self, records: RecordsSeen, seen: list[RecordsSeen]) -> Structure:
        self._walked = records
        seen.append(records)
        return see_records(self, records)

    def _admitted(
        self, take_out: TakeOut, partition: int, size: int, size_bytes: int, seen: list[RecordsSeen]
    ) -> Structure:
        """Step over records of which some may be taken out."""
        assert self.topic is not None  # noqa: S101
        records_at = self.frame_size - self.frame_end + self.at
        records, passing = RecordsSeen(partition, size), take_out.passing(self.topic[0], partition, size)
        if passing is Passing.NOTHING:  # one whole batch, or its bytes up to the end where it was cut
            take_out.shorten(records_at - size_bytes, records_at, size, 0)
            yield from see_records(self, records)
            next_size = records.largest or records.next_batch_size
            seen.append(RecordsSeen(partition, 0, next_batch_size=next_size, taken_out=size))
        elif passing is Passing.ALL and not self._is_walked:
            seen.append(RecordsSeen(partition, size, size))
            self.at += size
        else:
            yield from self._walk_over(records, seen)
            if passing is Passing.WHOLE_BATCHES and records.cut_bytes:
                take_out.shorten(records_at - size_bytes, records_at, size, records.take_out_tail())


def _unwalked(partition: int, view: memoryview, at: int, size: int) -> RecordsSeen:
    return RecordsSeen(partition, size, size)


@dataclass(eq=False, repr=False, slots=True)
class FetchResponseScanner:
    """Scans one Fetch response, in chunks of any size. Feed `receive` from the size prefix on until `done`.

    After an error it can't be used any more. `topics` is complete when `done`. `frame_size` is the size field as
    received, and `head` the broker's head; both exist as soon as there are buffers to send. `expected` is then let go.

    `may_hold` is asked once whether an answer of so many bytes may be held whole.
    """

    version: InitVar[int]
    correlation_id: int
    expected: Expected = _NOTHING_KNOWN
    may_hold: InitVar[Callable[[int], bool]] = _always
    done: bool = field(init=False, default=False)
    topics: list[ScannedTopic] = field(init=False, default_factory=list)
    head: ResponseHead = field(init=False, default=ResponseHead())
    frame_size: int = field(init=False, default=0)
    is_dense: bool = field(init=False, default=False)
    """Whether the bytes received last had so many topics that a large read of the like would take long.

    It is not where many bytes of records follow.
    """
    _row: FetchVersion = field(init=False)
    _take_out: TakeOut | None = field(init=False, default=None)
    _held: bytearray = field(init=False, default_factory=bytearray)
    """The frame's start, held back until it can be changed."""
    _needed: int = field(init=False, default=SIZE.size)  # bytes of it that are needed to read on
    _body: _Body | None = field(init=False, default=None)  # None until the head is read
    _appended: bytes = field(init=False)  # what is still to be appended

    def __post_init__(self, version: int, may_hold: Callable[[int], bool]) -> None:
        self._row = fetch_version(version)
        self._appended = self.expected.appended
        if (admit := self.expected.admit) is not None:
            holds_all = self.expected.holds_all
            self._take_out = TakeOut(admit, may_hold, is_flexible=self._row.is_flexible, holds_all=holds_all)

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take the next bytes received.

        Returns what to send for them, and how many bytes of `view` were of this response.

        Raises InvalidFrameSize, CorrelationMismatch, MalformedFrame, or FrameTooLarge where the appended topics no
        longer fit into a frame. Then nothing of `view` may be sent.
        """
        if self.done:
            return [], 0
        buffers: list[Buffer] = []
        start = walked = 0
        if self._body is None:
            held = len(self._held)
            head = self._read_head(view)
            if head is None:
                return [], len(view)
            received, sent = head
            walked = len(received) - held
            if self._take_out is not None:
                self._take_out.begin(sent, len(received) - SIZE.size, self.frame_size)
                start = walked
            elif held or sent != received:
                buffers.append(sent)
                start = walked
        body = self._body
        assert body is not None  # noqa: S101
        end = min(len(view), walked + body.left)
        topics = len(body.topics_read)
        body.read(view[walked:end])
        is_dense = (len(body.topics_read) - topics) * _SPARSE_TOPIC > end - walked
        self.is_dense = is_dense and not body.is_within(_SPARSE_RUN)
        take_out = self._take_out
        if body.take_out is not None:
            buffers, start = self._held_back(body, body.take_out, view[start:end]), end
        elif take_out is not None:
            at = self.frame_size - body.left - end  # the offset of view[0] in the frame
            start = min(max(start, take_out.drops_until - at), end)
            if at + end >= take_out.drops_until:
                self._take_out = None
        if self._appended and body.topics_behind >= body.left and body.take_out is None:
            topics_end = end + body.left - body.topics_behind
            if topics_end > start:
                buffers.append(view[start:topics_end])
            buffers.append(self._appended)
            self._appended = b""
            start = topics_end
        if end > start:
            buffers.append(view[start:end])
        if not body.left:
            self.topics = body.topics_read
            self.done = True
        return buffers, end

    def _held_back(self, body: _Body, take_out: TakeOut, data: memoryview) -> list[Buffer]:
        """Hold `data` back. Returns what to send: all that was held, if nothing more can be taken out."""
        take_out.hold(data)
        if body.left and not take_out.is_decided:
            return []
        if self._appended and body.topics_behind >= body.left:
            take_out.insert(self.frame_size - body.topics_behind, self._appended)
            self._appended = b""
        body.take_out = None
        buffers = take_out.release()
        if take_out.drops_until <= self.frame_size - body.left:
            self._take_out = None
        return buffers

    def so_far(self) -> list[ScannedTopic]:
        """Return what has come of a response that is broken off. Nothing more of it can be received."""
        return [] if self._body is None else self._body.so_far()

    def passed(self) -> None:
        """It was done before."""

    @property
    def is_held(self) -> bool:
        """Whether what has come of the response is held back, all but its head."""
        return self._body is not None and self._body.take_out is not None

    def step_over(self) -> int:
        """Count as received what is left of records that are not walked, but for their last byte.

        Returns how many bytes that is. The caller may let as many pass without giving them to `receive`.
        """
        return 0 if self._body is None or self._take_out is not None else self._body.step_over()

    def look(self, view: memoryview) -> int:
        """Walk over `view` if it lies in the middle of one partition's records, which all pass as they are.

        Returns what `step_over` then does; -1 where it does not, and nothing was taken.
        """
        body = self._body
        if body is None or self._take_out is not None or not body.is_within(len(view)):
            return -1
        body.read(view[:])
        return body.step_over()

    def _read_head(self, view: memoryview) -> tuple[bytes, bytes] | None:
        """Read the frame's start up to the count of topics. Returns it as received and as to be sent.

        None until all of it has come. From then on there is a body.
        """
        row = self._row
        self._held += view[: _LONGEST_HEAD - len(self._held)]
        if len(self._held) < self._needed:
            return None
        head = bytes(self._held)
        (size,) = SIZE.unpack_from(head)
        if size < SIZE.size:
            raise InvalidFrameSize(size)
        frame = head[SIZE.size : SIZE.size + size]
        fields_at = after_tags(frame, SIZE.size) if row.is_flexible else SIZE.size
        count_at = fields_at + row.response_head.layout.size
        count, end = _read_count(frame, count_at, row.is_flexible)
        if end > size:
            raise MalformedFrame("the frame ends within the response's fixed fields", size)
        if end > len(frame):
            if SIZE.size + end > _LONGEST_HEAD:
                raise MalformedFrame(f"the fields in front of the topics take {end} bytes", fields_at)
            self._needed = SIZE.size + (end if fields_at <= len(frame) else fields_at)
            return None
        (correlation_id,) = SIZE.unpack_from(frame)
        if correlation_id != self.correlation_id:
            raise CorrelationMismatch(self.correlation_id, correlation_id)
        left = size - end
        if not 0 <= count <= left // answer_layout(row.api_version).smallest_topic:
            raise MalformedFrame(f"{count} topics cannot stand in {left} bytes", count_at)
        expected, most = self.expected, self.expected.most_topics
        self.expected = _NOTHING_KNOWN
        if most is not None and count > most:
            raise MalformedFrame(f"{count} topics answer a fetch that can have {most} at most", count_at)

        names, layout = row.response_head.names, row.response_head.layout
        self.head = ResponseHead(**dict(zip(names, layout.unpack_from(frame, fields_at), strict=True)))
        self.frame_size = size
        self._held = bytearray()
        self._body = _Body(row, count, left, size, expected.walk, expected.most_partitions, self._take_out)

        received = head[: SIZE.size + end]
        sent_head = self.head if expected.head_patch is None else expected.head_patch(self.head)
        if sent_head.error_code or (not count and sent_head.throttle_time_ms > 0):
            expected = expected._replace(appended_topics=0)
            self._appended = b""
        if not expected.appended_topics and sent_head == self.head:
            return received, received
        sent_count = received[SIZE.size + count_at :]
        if expected.appended_topics:
            sent_count = _encode_count(count + expected.appended_topics, row.is_flexible)
        fields = layout.pack(*[getattr(sent_head, name) for name in names])
        sent_size = size + len(self._appended) + len(sent_count) - (end - count_at)
        if sent_size > MAX_INT32:
            raise FrameTooLarge(sent_size, MAX_INT32)
        return received, SIZE.pack(sent_size) + frame[:fields_at] + fields + sent_count


def _read_count(frame: bytes, at: int, is_flexible: bool) -> tuple[int, int]:
    """Read the count of topics. Returns it and the offset after it; an offset beyond `frame` if it is cut off."""
    if is_flexible:
        count_and_one, end = read_unsigned_varint(frame, at)
        return count_and_one - 1, end
    end = at + COUNT.size
    return (COUNT.unpack_from(frame, at)[0] if end <= len(frame) else 0), end


def _encode_count(count: int, is_flexible: bool) -> bytes:
    return encode_unsigned_varint(count + 1) if is_flexible else COUNT.pack(count)
