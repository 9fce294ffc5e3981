# SPDX-License-Identifier: Apache-2.0
"""The stream of responses: each is matched with its request, and passed or observed.

Answers of weir's own come between.

Responses come in the order of requests on every connection. So only the queue of waiting requests is needed to read
them. They are streamed, however long.
"""

import math
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from weir.protocol.errors import CorrelationMismatch, InvalidFrameSize, UnexpectedResponse
from weir.protocol.frame_stream import FrameStream
from weir.protocol.header import SIZE
from weir.protocol.response_scanner import Buffer

_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_SMALLEST_RESPONSE: Final = SIZE.size  # the correlation id


class ResponseObserver(Protocol):
    """Sees one response while its bytes pass, and may change them. FetchResponseScanner and FrameReader are such."""

    @property
    def done(self) -> bool:
        """Whether the response's last byte was received."""

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take the next bytes received; the first call begins with the frame's size prefix.

        Returns what to send for them, in order, and how many bytes of `view` were of this response. Raises
        ProtocolError where the response cannot be trusted; the connection then has to be closed.
        """

    def step_over(self) -> int:
        """Return how many of the next bytes pass unseen, not the last one among them, and take these for received."""
        return 0

    def look(self, view: memoryview) -> int:
        """See bytes that all pass as they are, and return what `step_over` then does.

        -1 where it has to change some, or where the response's last byte is among them: then it has taken none.
        """
        return -1

    def passed(self) -> None:
        """Note that the response has passed whole."""
        return


@dataclass(slots=True)
class Pending:
    """A request that waits for its response.

    `observer` sees the broker's response as it passes. `answer`, a whole frame, is sent instead of one; the broker does
    not know such a request. With none, the response passes as it is.
    """

    correlation_id: int
    observer: ResponseObserver | None = None
    answer: bytes | None = None


class ResponseStream(FrameStream):
    """One connection's responses, from broker to follower or client.

    `expect` every request in order, and feed `receive` with the bytes that arrive. `completed` gets the observers of
    responses that were received whole; the caller takes them out.
    """

    __slots__ = ("_becoming_opaque", "completed", "observer", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.pending: deque[Pending] = deque()
        """Requests whose responses have not passed whole, the oldest first."""
        self.completed: list[ResponseObserver] = []
        self._becoming_opaque = False
        self.observer: ResponseObserver | None = None
        """Who sees the response that is being received; None: nobody, or there is none."""

    @property
    def at_boundary(self) -> bool:
        """Whether the last byte received was the last one of a response."""
        return not self._left and self.observer is None and not self._head

    def expect(self, pending: Pending) -> None:
        """Add a request that is being forwarded, or an answer of weir's own, to the end of the queue."""
        self.pending.append(pending)

    def ready_answers(self) -> list[Buffer]:
        """Take out weir's own answers whose turn it is.

        While a response is being received, it is still first in the queue.
        """
        answers: list[Buffer] = []
        self._take_answers(answers)
        return answers

    def become_opaque(self) -> None:
        """Let everything pass after all pending responses have come."""
        self._becoming_opaque = True
        self.opaque = not self.pending and self.at_boundary

    def skip(self, size: int) -> bool:
        """Return whether the next `size` bytes pass unseen, and end no response.

        If so, they count as received (the fast path).
        """
        if self.opaque:
            return True
        if size < self._left:
            self._left -= size
            return True
        return False

    def looks(self, view: memoryview) -> bool:
        """Return whether all of the next bytes pass, in the middle of a response of which they are only looked at.

        If so, they were seen, and count as received. Call it where `skip` has returned False.
        """
        left = -1 if self.observer is None else self.observer.look(view[self._left :])
        if left < 0:
            return False
        self._left = left
        return True

    def receive(self, view: memoryview, out: list[Buffer], most: float = math.inf) -> int:
        """Take the next bytes received, and begin at most so many frames. Returns how many bytes were taken.

        What to send goes into `out`, as slices of `view` where possible.

        Raises InvalidFrameSize, UnexpectedResponse, CorrelationMismatch, and what observers raise. `out` then has
        everything before that response.
        """
        size = len(view)
        began = start = at = 0  # view[start:at] passes, and is not in `out` yet
        try:
            while at < size:
                if self.opaque:
                    at = size
                elif self._left:
                    step = min(self._left, size - at)
                    at += step
                    self._left -= step
                    if not self._left and self.observer is None:
                        start = self._finish(view, start, at, out)
                elif self.observer is not None:
                    start, at = self._observe(self.observer, view, start, at, out)
                elif self._head:
                    start = at = self._complete_head(view, at, out)
                elif began == most:
                    break
                else:
                    began += 1
                    self.frames += 1
                    if size - at >= _SIZE_AND_CORRELATION.size:
                        self._begin(*_SIZE_AND_CORRELATION.unpack_from(view, at))
                        continue
                    if start < at:
                        out.append(view[start:at])
                        start = at  # before an error, which would have them sent once more
                    start = at = self._complete_head(view, at, out)
        finally:
            if start < at:
                out.append(view[start:at])
        return at

    def _complete_head(self, view: memoryview, at: int, out: list[Buffer]) -> int:
        """Add to the first 8 bytes, which name the request. Returns the offset after those taken."""
        at = self._hold(view, at, _SIZE_AND_CORRELATION.size)
        held = self._head
        if len(held) < _SIZE_AND_CORRELATION.size:
            if len(held) >= SIZE.size:
                _check_size(SIZE.unpack_from(held)[0])
            return at
        self._begin(*_SIZE_AND_CORRELATION.unpack(held))
        self._head = bytearray()
        first = memoryview(bytes(held))
        if self.observer is not None:
            buffers, _ = self.observer.receive(first)
            out += buffers
            if self.observer.done:
                self._complete(self.observer, first, 0, 0, out)
            return at
        self._left -= len(first)
        if self._left or not self._finish(first, 0, len(first), out):
            out.append(first)
        return at

    def _begin(self, size: int, correlation_id: int) -> None:
        """Match a response, of which nothing was taken yet, with its request."""
        _check_size(size)
        if not self.pending:
            raise UnexpectedResponse(correlation_id)
        first = self.pending[0]
        if correlation_id != first.correlation_id:
            raise CorrelationMismatch(first.correlation_id, correlation_id)
        if first.observer is None:
            self._left = SIZE.size + size
        else:
            self.observer = first.observer

    def _observe(
        self, observer: ResponseObserver, view: memoryview, start: int, at: int, out: list[Buffer]
    ) -> tuple[int, int]:
        """Let the observer take the bytes from `view[at]` on; those before, from `start` on, pass.

        Returns the offset from which bytes are still to be sent, and the one after those taken. What the observer lets
        pass as it came is not sent yet, so that it stays in one piece with what was before.
        """
        rest = view[at:]
        buffers, taken = observer.receive(rest)
        after = at + taken
        if not _is_start(buffers, rest, taken):
            if start < at:
                out.append(view[start:at])
            out += buffers
            start = after
        if observer.done:
            start = self._complete(observer, view, start, after, out)
        else:
            self._left = observer.step_over()
        return start, after

    def _complete(self, observer: ResponseObserver, view: memoryview, start: int, at: int, out: list[Buffer]) -> int:
        """Note that an observed response was received whole; returns the same as `_finish`."""
        self.observer = None
        observer.passed()
        self.completed.append(observer)
        return self._finish(view, start, at, out)

    def _finish(self, view: memoryview, start: int, at: int, out: list[Buffer]) -> int:
        """Note that the first pending response has passed whole, of which `view[start:at]` is not in `out` yet.

        Returns from where on bytes are not in `out`: `at`, where an answer of weir's own follows.
        """
        if len(self.pending) > 1 and self.pending[1].answer is not None and start < at:
            out.append(view[start:at])
            start = at
        self.pending.popleft()
        self._take_answers(out)
        return start

    def _take_answers(self, out: list[Buffer]) -> None:
        while self.pending and (answer := self.pending[0].answer) is not None:
            self.pending.popleft()
            out.append(answer)
        self.opaque = self._becoming_opaque and not self.pending


def _is_start(buffers: list[Buffer], view: memoryview, taken: int) -> bool:
    """Return whether `buffers` are the first `taken` bytes of `view` as they came."""
    if len(buffers) != 1:
        return False
    only = buffers[0]
    return isinstance(only, memoryview) and only.obj is view.obj and len(only) == taken


def _check_size(size: int) -> None:
    if size < _SMALLEST_RESPONSE:
        raise InvalidFrameSize(size)
