"""The stream of responses: each is matched with its request, and passed or observed.

Answers of weir's own come between.

Responses come in the order of requests on every connection. So only the queue of waiting requests is needed to read
them. They are streamed, however long.
"""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.errors import CorrelationMismatch, InvalidFrameSize, UnexpectedResponse
from protocol.frame_stream import FrameStream
from protocol.header import SIZE
from protocol.response_scanner import Buffer

_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_SMALLEST_RESPONSE: Final = SIZE.size  # the correlation id


class ResponseObserver(Protocol):
    """Sees one response while its bytes pass, and may change them. FetchResponseScanner is one.

    One that does not change what is in the middle may have a method `sees(view)` for speed: it returns True where all
    of `view` passes as it is and does not end the response, and has then taken it.
    """

    @property
    def done(self) -> bool:
        """Whether the response's last byte was received."""

    @property
    def is_dense(self) -> bool:
        """Whether a large read of what follows would take long, by what was received last."""

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take the next bytes received; the first call begins with the frame's size prefix.

        Returns what to send for them, in order, and how many bytes of `view` were of this response. Raises
        ProtocolError where the response cannot be trusted; the connection then has to be closed.
        """


@dataclass(slots=True)
class Pending:
    """A request that waits for its response.

    `observer` sees the broker's response as it passes. `answer`, a whole frame, is sent instead of one; the broker does
    not know such a request. With neither, the broker's response passes as it is.
    """

    correlation_id: int
    observer: ResponseObserver | None = None
    answer: bytes | None = None


class ResponseStream(FrameStream):
    """One connection's responses, from broker to follower or client.

    `expect` every request in order, and feed `receive` with the bytes that arrive. `completed` gets the observers of
    responses that were received whole; the caller takes them out.
    """

    __slots__ = ("_becoming_opaque", "_observer", "_shows", "completed", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.pending: deque[Pending] = deque()
        """Requests whose responses have not passed whole, the oldest first."""
        self.completed: list[ResponseObserver] = []
        self._becoming_opaque = False
        self._observer: ResponseObserver | None = None  # of the response that is being received
        self._shows: Callable[[memoryview], bool] | None = None  # its `sees`

    @property
    def at_boundary(self) -> bool:
        """Whether the last byte received was the last one of a response."""
        return not self._left and self._observer is None and not self._head

    @property
    def observing(self) -> bool:
        """Whether a response is being observed now."""
        return self._observer is not None

    @property
    def is_dense(self) -> bool:
        """Whether a response is being observed now, and a large read of what follows would take long."""
        return self._observer is not None and self._observer.is_dense

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
        """Return whether the next `size` bytes pass and end no response.

        If so, they count as received (the fast path).
        """
        if self.opaque:
            return True
        if size < self._left:
            self._left -= size
            return True
        return False

    def shows(self, view: memoryview) -> bool:
        """Return whether `view` passes as it is, shown to the observer; if so, it counts as received (a fast path)."""
        return self._shows is not None and self._shows(view)

    def receive(self, view: memoryview, out: list[Buffer]) -> None:
        """Take the next bytes received. What to send goes into `out`, as slices of `view` where possible.

        Raises InvalidFrameSize, UnexpectedResponse, CorrelationMismatch, and what observers raise. `out` then has
        everything before that response.
        """
        size = len(view)
        start = at = 0  # view[start:at] passes, and is not in `out` yet
        try:
            while at < size:
                if self.opaque:
                    at = size
                elif self._left:
                    step = min(self._left, size - at)
                    at += step
                    self._left -= step
                    if not self._left:
                        if self._answer_follows():
                            out.append(view[start:at])
                            start = at
                        self._finish(out)
                elif self._observer is not None or self._head or size - at < _SIZE_AND_CORRELATION.size:
                    if start < at:
                        out.append(view[start:at])
                        start = at
                    if self._observer is not None:
                        at += self._observe(self._observer, view[at:], out)
                    else:
                        at = self._complete_head(view, at, out)
                    start = at
                else:
                    self._begin(*_SIZE_AND_CORRELATION.unpack_from(view, at))
        finally:
            if start < at:
                out.append(view[start:at])

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
        if self._observer is not None:
            self._observe(self._observer, memoryview(bytes(held)), out)
        else:
            out.append(bytes(held))
            self._left -= len(held)
            if not self._left:
                self._finish(out)
        return at

    def _begin(self, size: int, correlation_id: int) -> None:
        """Match a response, of which nothing was taken yet, with its request."""
        _check_size(size)
        if not self.pending:
            raise UnexpectedResponse(correlation_id)
        first = self.pending[0]
        if correlation_id != first.correlation_id:
            raise CorrelationMismatch(first.correlation_id, correlation_id)
        self._observer = first.observer
        self._shows = getattr(first.observer, "sees", None)
        if self._observer is None:
            self._left = SIZE.size + size

    def _observe(self, observer: ResponseObserver, view: memoryview, out: list[Buffer]) -> int:
        """Let the observer take the next bytes. Returns how many it took."""
        buffers, taken = observer.receive(view)
        out += buffers
        if observer.done:
            self._observer = self._shows = None
            self.completed.append(observer)
            self._finish(out)
        return taken

    def _finish(self, out: list[Buffer]) -> None:
        """Note that the first pending response has passed whole."""
        self.pending.popleft()
        self._take_answers(out)

    def _answer_follows(self) -> bool:
        return len(self.pending) > 1 and self.pending[1].answer is not None

    def _take_answers(self, out: list[Buffer]) -> None:
        while self.pending and (answer := self.pending[0].answer) is not None:
            self.pending.popleft()
            out.append(answer)
        self.opaque = self._becoming_opaque and not self.pending


def _check_size(size: int) -> None:
    if size < _SMALLEST_RESPONSE:
        raise InvalidFrameSize(size)
