"""What is seen of a limited client's requests and answers as they pass, and the throttle time that it is told."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from weir.limits.clients import Client
from weir.protocol.fetch_versions import fetch_version
from weir.protocol.produce_response import with_throttle_time
from weir.protocol.produce_versions import PRODUCE_VERSIONS, nearest_produce_version
from weir.protocol.record_counts import RecordCounts
from weir.protocol.response_scanner import Buffer
from weir.proxy.limits.stage import LimitStage

_THROTTLE_TIME: Final = struct.Struct(">i")
_SIZE_AND_CORRELATION: Final = 8

_TOLD_PART: Final = 0.8  # of a pause: the rest is held here, so that no client waits for longer than it has to
_LEAST_TOLD_SECONDS: Final = 0.2
MOST_TOLD_SECONDS: Final = 1.0
"""What is told cannot be taken back when limits change, so it is short where it can be."""

HOLD_SECONDS: Final = 10.0
"""How long a Produce request is held at most. Clients give up after 30 s (request.timeout.ms), or more."""

_MOST_HELD_PART: Final = 0.9  # of that, where the rest of a pause is told

_LONGEST_ANSWER: Final = 64 * 1024  # bytes of a Produce answer that is kept to be changed


class FetchAnswer:
    """Counts the records of one Fetch answer, and tells a client that would wait for it how long to wait.

    How long is not known before the answer has passed, and the field comes first. So it is foreseen from the size of
    the answer and those before it.
    """

    def __init__(
        self, stage: LimitStage, client: Client, counts: RecordCounts, version: int, answered: Callable[[int], None]
    ) -> None:
        """`answered` is called with the number of records when the answer has passed whole."""
        self._stage = stage
        self._client = client
        self._counts = counts
        self._row = fetch_version(version)
        self._answered = answered
        self._head: bytearray | None = bytearray() if self._row.clients_wait else None
        self._throttle_time_at = _SIZE_AND_CORRELATION + self._row.is_flexible

    @property
    def done(self) -> bool:
        """Whether the answer has passed whole."""
        return self._counts.done

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Let bytes pass. Only the throttle time is changed, if anything."""
        taken = self._counts.receive(view)
        out: list[Buffer] = [view[:taken]] if self._head is None else self._take_head(view[:taken])
        if self._counts.done:
            self._count()
        return out, taken

    @property
    def is_dense(self) -> bool:
        """Batches are stepped over, however large a read is."""
        return False

    def step_over(self) -> int:
        """Take bytes in the middle of the answer for received; see ResponseObserver."""
        return self._counts.step_over() if self._head is None else 0

    def look(self, view: memoryview) -> int:
        """Take bytes that pass, in the middle of the answer; see ResponseObserver."""
        counts = self._counts
        if self._head is not None or len(view) >= counts.left:
            return -1
        counts.receive(view)
        return counts.step_over()

    def _take_head(self, view: memoryview) -> list[Buffer]:
        head = self._head
        assert head is not None  # noqa: S101
        end = self._throttle_time_at + _THROTTLE_TIME.size
        if not head and len(view) >= end:
            self._head = None
            told = self._told(view)
            if not told:
                return [view]
            head, step = bytearray(view[:end]), end
        else:
            step = min(end - len(head), len(view))
            head += view[:step]
            if len(head) < end and not self._counts.done:
                return []
            self._head = None
            told = self._told(head) if len(head) == end else 0
        if told:
            _THROTTLE_TIME.pack_into(head, end - _THROTTLE_TIME.size, told)
        return [bytes(head), view[step:]] if step < len(view) else [bytes(head)]

    def _told(self, head: memoryview | bytearray) -> int:
        """Return how many milliseconds the client is told to wait; 0 where what the broker has told stays."""
        at = self._throttle_time_at
        if at > _SIZE_AND_CORRELATION and head[at - 1]:
            return 0  # tags stand where the field is otherwise
        seconds = told_seconds(self._client.expected_pause(self._counts.frame_size))
        milliseconds = int(seconds * 1000)
        if milliseconds <= _THROTTLE_TIME.unpack_from(head, at)[0]:
            return 0
        now = self._stage.clock()
        self._client.rates.throttled(now, now + seconds)
        return milliseconds

    def _count(self) -> None:
        counts = self._counts
        if counts.fault is not None:
            self._stage.not_counted[counts.fault] += 1
        batches = self._stage.batches(counts.topics, by_id=self._row.names_topics_by_id)
        self._client.count(batches, counts.frame_size)
        self._answered(sum([one.records for one in batches]))


class ProduceCount:
    """Counts the records of one Produce request as it passes."""

    def __init__(self, stage: LimitStage, client: Client, counts: RecordCounts, version: int) -> None:
        self._stage = stage
        self._client = client
        self._counts = counts
        self._row = PRODUCE_VERSIONS[version]

    @property
    def done(self) -> bool:
        """Whether the request has passed whole."""
        return self._counts.done

    def receive(self, view: memoryview) -> int:
        """See the next bytes."""
        counts = self._counts
        taken = counts.receive(view)
        if counts.done:
            if counts.fault is not None:
                self._stage.not_counted[counts.fault] += 1
            batches = self._stage.batches(counts.topics, by_id=self._row.names_topics_by_id)
            self._client.count(batches, counts.frame_size)
        return taken


class ProduceAnswer:
    """Sees the answer to a Produce request, and tells a client that would wait for it how long to wait.

    A small answer is kept until it is whole, as the field comes last. `held` is how long the next request may be held,
    and `most_told` bounds what is told (seconds).
    """

    def __init__(
        self,
        stage: LimitStage,
        client: Client,
        version: int,
        held: float,
        most_told: float,
        answered: Callable[[], None],
    ) -> None:
        self._stage = stage
        self._client = client
        self._version = version
        self._held = held
        self._most_told = most_told
        self._answered = answered
        self._kept = bytearray()
        self._left = -1

    @property
    def done(self) -> bool:
        """Whether the answer has passed whole."""
        return self._left == 0

    @property
    def is_dense(self) -> bool:
        """Produce answers are small."""
        return False

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take bytes; what is sent for them may come later."""
        taken = 0
        if self._left < 0:
            taken = min(_THROTTLE_TIME.size - len(self._kept), len(view))
            self._kept += view[:taken]
            if len(self._kept) < _THROTTLE_TIME.size:
                return [], taken
            self._left = max(0, _THROTTLE_TIME.unpack(self._kept)[0])
        step = min(self._left, len(view) - taken)
        self._left -= step
        kept, part = self._kept, view[taken : taken + step]
        taken += step
        out: list[Buffer] = []
        if len(kept) + step + self._left > _LONGEST_ANSWER:
            out, self._kept = [bytes(kept), part] if kept else [part], bytearray()
        else:
            kept += part
            if not self._left:
                out = [self._changed(bytes(kept))]
        if not self._left:
            self._answered()
        return out, taken

    def _changed(self, answer: bytes) -> bytes:
        if not nearest_produce_version(self._version).clients_wait:
            return answer
        seconds = told_seconds(self._client.pause(), self._most_told, self._held)
        changed = with_throttle_time(answer, self._version, int(seconds * 1000))
        if changed != answer:
            now = self._stage.clock()
            self._client.rates.throttled(now, now + seconds)
        return changed


def told_seconds(pause: float, most: float = MOST_TOLD_SECONDS, held: float = HOLD_SECONDS) -> float:
    """Return how many seconds of a pause a client is told to wait itself; 0 where all of it is held here.

    Of a pause that is longer than a request can be `held` (seconds), so much is told that the rest can.
    """
    if pause < _LEAST_TOLD_SECONDS:
        return 0.0
    return min(max(_TOLD_PART * min(pause, MOST_TOLD_SECONDS), pause - _MOST_HELD_PART * held), most)
