# SPDX-License-Identifier: Apache-2.0
"""One direction of a link: bytes from one socket to the other, as fast as the slower peer takes them.

A pump reads when its source has bytes and all that it read before is sent. While its target blocks it does not read, so
memory is bounded by one borrowed buffer (back-pressure). What is sent for the bytes received is up to a subclass; what
kind of connection it is, is up to the transports.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from weir.protocol.response_scanner import Buffer
from weir.proxy.relay.buffers import LARGE_BUFFER_SIZE, BufferPool
from weir.proxy.relay.transport import Transport
from weir.proxy.relay.turn_budget import TurnBudget

# Reasons why a pump does not read; it reads when there is none. Plain integers, as enum's flags cost more than a read.
STOPPED: Final = 1  # its link stopped it, or the source sent its last byte
BLOCKED: Final = 2  # not all that was read is sent: the target takes no more, or may not have more yet
UNTAKEN: Final = 4  # what was read has to wait for its turn
IN_LINE: Final = 8  # the next read has to wait for its turn

READS_IN_A_ROW: Final = 16
"""Reads of small buffers before other connections have their turn: as many bytes as one large buffer has."""

_ROW_SECONDS: Final = 0.0005  # the longest that such a row of reads may take
_SLOW_SECONDS: Final = 0.002  # a read that takes longer has bytes that cost much: the next one has to wait for its turn

_MOST_BUFFERS: Final = 64  # for one sendmsg; the system's limit is 1,024


def _nothing() -> None:
    pass


@dataclass(eq=False, slots=True)
class Pump:
    """Moves bytes from `source` to `target` from the first `resume(STOPPED)` until `close`.

    A subclass says what is done with what is read. Nothing in there may block or await.
    """

    _loop: asyncio.AbstractEventLoop
    _pool: BufferPool
    _source: Transport
    _target: Transport
    _turns: TurnBudget
    unsent: list[Buffer]
    """Bytes to send, the oldest first. Add to it, then call `flush`."""
    held_back: Callable[[], None] = _nothing
    """Called when there are bytes to send, and `allowed` ones were sent. `allow` goes on."""
    allowed: float = math.inf
    """How many bytes more may be sent."""
    large_reads: bool = False
    """Whether a large buffer is worth borrowing for the next read."""
    waits_in_line: bool = False
    """Whether a read has to wait for its turn: the last one brought more than could be taken at once."""
    is_slow: bool = False
    """Whether the last read took long."""
    moved: int = 0
    """Bytes read so far."""
    sent: int = 0
    """Bytes sent so far."""
    _borrowed: memoryview | None = None  # slices of it may be in `unsent`
    _paused: int = STOPPED
    _reading: bool = False
    _reads_again: bool = False  # in the loop's next turn, whatever the source tells
    _writing: bool = False

    def received(self, view: memoryview) -> None:
        """Take bytes that arrived. Put what to send for them into `unsent`; slices of `view` are allowed."""
        raise NotImplementedError

    def unblocked(self) -> None:
        """Note that everything is sent which could not be sent at once."""

    def ended(self) -> None:
        """Note that the source sent its last byte, that all of it was passed on, and that the target was told."""

    def failed(self, error: Exception) -> None:
        """Close: the source or the target broke, or `received` raised."""
        raise NotImplementedError

    def is_paused(self, reasons: int) -> bool:
        """Whether one of `reasons` keeps it from reading."""
        return bool(self._paused & reasons)

    def pause(self, reason: int) -> None:
        """Stop reading until `resume` was called for this reason and all others.

        A source that is STOPPED is watched until it sends something: most of them wait for an answer, and send nothing.
        """
        self._paused |= reason
        if reason != STOPPED:
            self._unwatch()

    def resume(self, reason: int) -> None:
        """Take back one reason to stop. When none is left, reading goes on."""
        self._paused &= ~reason
        if not self._paused and not self._reading:
            self._reading = True
            self._source.watch_reads(self._readable)

    def close(self) -> None:
        """Give the buffer back and let go of both connections, which stay open. Unsent bytes are dropped."""
        self.pause(STOPPED)
        self._unwatch()
        if self._writing:
            self._writing = False
            self._target.unwatch_sends()
        self.unsent.clear()
        self.held_back = _nothing
        self._give_back()

    def allow(self, size: float) -> None:
        """Let `size` bytes more be sent, and no others."""
        self.allowed = size
        if self.unsent:
            self.flush()

    def flush(self) -> None:
        """Send what the target takes now, and may have. The rest follows; until then nothing is read."""
        unsent = self.unsent
        try:
            while unsent and self.allowed > 0:
                sent = self._send()
                self.sent += sent
                self.allowed -= sent
                self._drop(sent)
        except (BlockingIOError, InterruptedError):
            self._block()
        except OSError as error:
            self.failed(error)
        else:
            if self._writing:
                self._writing = False
                self._target.unwatch_sends()
            if unsent:
                self.pause(BLOCKED)
                self.held_back()
                return
            self._give_back()
            if self._paused & BLOCKED:
                self.resume(BLOCKED)
                self.unblocked()

    def _send(self) -> int:
        unsent = self.unsent
        if self.allowed == math.inf and len(unsent) > 1:
            return self._target.send_many(unsent[:_MOST_BUFFERS])
        first = unsent[0]
        return self._target.send(first if len(first) <= self.allowed else memoryview(first)[: int(self.allowed)])

    def _unwatch(self) -> None:
        if self._reading:
            self._reading = False
            self._source.unwatch_reads()

    def _readable(self) -> None:
        if self._paused:
            self._unwatch()
        elif not self.waits_in_line and not self.is_slow:
            self._read(READS_IN_A_ROW)
        else:
            self.pause(IN_LINE)
            self._turns.add(self._read_in_turn)

    def _read_in_turn(self) -> None:
        self._paused &= ~IN_LINE
        self._read(1)
        self.resume(IN_LINE)

    def _read(self, most: int) -> None:
        now = time.perf_counter()
        end = now + _ROW_SECONDS
        for _ in range(most):
            if self._paused:
                return
            buffer = self._borrowed = self._pool.borrow(self.large_reads and not self.is_slow, self.moved)
            try:
                size = self._source.receive_into(buffer)
            except (BlockingIOError, InterruptedError):
                self._give_back()
                return
            except OSError as error:
                self.failed(error)
                return
            if not size:
                self._end()
                return
            self.moved += size
            try:
                self.received(buffer[:size])
            except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the loop's turn
                self.failed(error)
                return
            self.flush()
            began, now = now, time.perf_counter()
            self.is_slow = now - began > _SLOW_SECONDS
            if size == LARGE_BUFFER_SIZE:
                break
            if size < len(buffer) and self._source.tells_again:
                return
            if now >= end:
                break
        # The source may tell of the same bytes, too. If each call asked for one more, a peer that sends fast would soon
        # have dozens of reads in one turn.
        if not self._source.tells_again and not self._reads_again:
            self._reads_again = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._reads_again = False
        self._readable()

    def _end(self) -> None:
        self._give_back()
        self.pause(STOPPED)
        self._unwatch()
        with contextlib.suppress(OSError):  # the target may be gone already
            self._target.finish()
        self.ended()

    def _block(self) -> None:
        if not self._writing:
            self._writing = True
            self._target.watch_sends(self.flush)
            self.pause(BLOCKED)

    def _drop(self, sent: int) -> None:
        """Remove `sent` bytes from the front of `unsent`."""
        unsent = self.unsent
        whole = 0
        for buffer in unsent:
            size = len(buffer)
            if sent < size:
                if sent:
                    unsent[whole] = memoryview(buffer)[sent:]
                break
            sent -= size
            whole += 1
        del unsent[:whole]

    def _give_back(self) -> None:
        if self._borrowed is not None:
            self._pool.give_back(self._borrowed)
            self._borrowed = None
