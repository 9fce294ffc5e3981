"""The stream of responses: each matched with its request, passed or observed, and our own put between.

Responses come in request order on every connection, so all that is needed to read them is the queue of requests that
wait for one. They stream at any size.
"""

import struct
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.errors import CorrelationMismatch, InvalidFrameSize, UnexpectedResponse
from protocol.frame_stream import FrameStream
from protocol.header import SIZE
from protocol.response_scanner import Buffer

_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_SMALLEST_RESPONSE: Final = SIZE.size  # the correlation id


class ResponseObserver(Protocol):
    """Sees one response while its bytes pass, and may change them. A FetchResponseScanner is one."""

    @property
    def done(self) -> bool:
        """Whether the response's last byte was received."""

    def receive(self, view: memoryview) -> tuple[list[Buffer], int]:
        """Take the next bytes received, the first time from the frame's size prefix on.

        Returns what to send in their place, in order, and how many bytes of `view` belonged to this response. Raises
        ProtocolError where the response cannot be trusted: the connection is then closed.
        """


@dataclass(slots=True)
class Pending:
    """A request that waits for its response.

    `observer` sees the broker's response as it passes; `answer`, a whole frame, is sent in place of one: the broker
    does not know of that request. With neither the broker's response passes as it is.
    """

    correlation_id: int
    observer: ResponseObserver | None = None
    answer: bytes | None = None


class ResponseStream(FrameStream):
    """One connection's responses, from broker to follower or client.

    `expect` every request in order, then feed `receive` with what arrives. `completed` has the observers of responses
    that were received whole; the caller takes them out.
    """

    __slots__ = ("_becoming_opaque", "_observer", "completed", "pending")

    def __init__(self) -> None:
        super().__init__()
        self.pending: deque[Pending] = deque()
        """Requests whose responses have not been passed on whole, oldest first."""
        self.completed: list[ResponseObserver] = []
        self._becoming_opaque = False
        self._observer: ResponseObserver | None = None  # of a response that is being received

    @property
    def at_boundary(self) -> bool:
        """Whether the last byte received was a response's last one."""
        return not self._left and self._observer is None and not self._head

    @property
    def observing(self) -> bool:
        """Whether a response is being observed."""
        return self._observer is not None

    def expect(self, pending: Pending) -> None:
        """Put a request that is being forwarded, or an answer of our own, at the end of those that wait."""
        self.pending.append(pending)

    def ready_answers(self) -> list[Buffer]:
        """Take the answers of our own whose turn it is: a response under way is still the first that is pending."""
        answers: list[Buffer] = []
        self._take_answers(answers)
        return answers

    def become_opaque(self) -> None:
        """Let everything pass once all responses that requests wait for have come."""
        self._becoming_opaque = True
        self.opaque = not self.pending and self.at_boundary

    def skip(self, size: int) -> bool:
        """Whether the next `size` bytes pass and end no response. If so they count as received: the fast path."""
        if self.opaque:
            return True
        if size < self._left:
            self._left -= size
            return True
        return False

    def receive(self, view: memoryview, out: list[Buffer]) -> None:
        """Take the next bytes received; put what to send into `out`, as slices of `view` wherever possible.

        Raises InvalidFrameSize, UnexpectedResponse, CorrelationMismatch, and what the observers raise; `out` then has
        all that came before that response.
        """
        size = len(view)
        start = at = 0  # view[start:at] is to pass and is not in `out` yet
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
        """Add to the 8 bytes that name the request answered; returns the offset behind what was taken."""
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
        """Match a response, of which nothing was taken yet, with the request that waits for it."""
        _check_size(size)
        if not self.pending:
            raise UnexpectedResponse(correlation_id)
        first = self.pending[0]
        if correlation_id != first.correlation_id:
            raise CorrelationMismatch(first.correlation_id, correlation_id)
        self._observer = first.observer
        if self._observer is None:
            self._left = SIZE.size + size

    def _observe(self, observer: ResponseObserver, view: memoryview, out: list[Buffer]) -> int:
        """Let the observer take the next bytes; returns how many of them it took."""
        buffers, taken = observer.receive(view)
        out += buffers
        if observer.done:
            self._observer = None
            self.completed.append(observer)
            self._finish(out)
        return taken

    def _finish(self, out: list[Buffer]) -> None:
        """The first pending response has passed whole."""
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
