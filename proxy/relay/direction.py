# SPDX-License-Identifier: Apache-2.0
"""One direction of a link: a pump whose bytes go to the link's core."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from weir.protocol.header import SIZE
from weir.protocol.request_stream import RequestStream
from weir.protocol.response_scanner import FetchResponseScanner
from weir.protocol.response_stream import ResponseStream
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.connection import MOST_FRAMES, Connection
from weir.proxy.relay.open_link import OpenLink, Sender
from weir.proxy.relay.pump import BLOCKED, STOPPED, UNTAKEN, Pump
from weir.proxy.relay.side import Side
from weir.proxy.relay.transport import Transport
from weir.proxy.relay.turn_budget import TurnBudget

_AT_ONCE_SECONDS: Final = 0.0002  # while no other connection waits, more frames are taken for this long
_SMALL_FRAME: Final = 1024  # bytes: larger frames never wait, as they cost no more than moving them


class Direction(Pump):
    """One direction of a link: what is read of `sender` goes to `core`, a few frames at a time.

    A client may put a thousand requests into one packet. Taking all of them at once would keep every other connection
    waiting. So what is left waits in one line with that of all similar connections. Meanwhile nothing is read.
    """

    __slots__ = ("_core", "_is_in_line", "_link", "_sender", "_soon", "_stream", "_unread", "counted", "rest")

    def __init__(
        self, link: OpenLink, core: Connection, sender: Sender, side: Side, source: Transport, target: Transport
    ) -> None:
        unsent = core.to_upstream if sender == "client" else core.to_client
        super().__init__(asyncio.get_running_loop(), side.pool, source, target, side.turns, unsent)
        self._link = link
        self._core = core
        self._sender: Sender = sender
        self.counted = side.stats.clients_bytes
        """Where all bytes read are added."""
        self._stream: RequestStream | ResponseStream = core.requests if sender == "client" else core.responses
        self._soon = side.held.turns
        self._unread = side.unread
        self._is_in_line = False
        self.rest = memoryview(b"")
        """What waits to be taken: it begins with a frame, or with what follows the start of a request that is held."""

    # What happens to it, as Pump says

    def received(self, view: memoryview) -> None:
        core, stream, size = self._core, self._stream, len(view)
        self.counted[self._sender] += size
        if core.passes(self._sender, view):
            if core.phase == "draining":
                self._link.carry_out()
            return
        began = stream.frames
        self._take_first(view)
        if self._sender == "upstream" and isinstance(observer := core.responses.observer, FetchResponseScanner):
            self.large_reads = not observer.is_dense
        else:  # a large buffer is worth it, too, where a small one came full, with few frames in it
            is_bulk = size >= SMALL_BUFFER_SIZE and (stream.frames - began) * _SMALL_FRAME < size
            self.large_reads = is_bulk or stream.opaque or stream.passing > SMALL_BUFFER_SIZE
        self._link.carry_out()

    def unblocked(self) -> None:
        """Take what was received meanwhile, now that the target takes bytes again."""
        self._link.carry_out()

    def ended(self) -> None:
        self._core.ended.add(self._sender)
        self._link.carry_out()

    def failed(self, error: Exception) -> None:
        self._link.failed(error, self._sender)

    def _block(self) -> None:
        super()._block()
        self._leaves_unread()

    # What waits

    def _leaves_unread(self) -> None:
        if self._sender == "client":
            self._unread.add(self._link)

    def follow(self) -> None:
        """Read and take, or not, as the core's state says now."""
        if not self._core.reads(self._sender):
            self.pause(STOPPED)
        elif self._paused & STOPPED:
            self.resume(STOPPED)
        if self.rest:
            self._get_in(self._soon)

    def _get_in(self, line: TurnBudget) -> None:
        """Have the bytes taken that wait, unless something else has to happen first."""
        if not self._is_in_line and self._may_take:
            self._is_in_line = True
            line.add(self._take_next)

    def begin_with(self, unread: bytes) -> None:
        """Take these bytes before any that are read."""
        if unread:
            self.rest = memoryview(unread)
            self.pause(UNTAKEN)

    def drop(self) -> bytes:
        """Have no bytes wait any more. Returns those that did."""
        rest, self.rest = bytes(self.rest), memoryview(b"")
        self.resume(UNTAKEN)
        return rest

    def close(self) -> None:
        """Stop reading, and throw away what waits, as the link is closed."""
        self.rest = memoryview(b"")
        super().close()

    @property
    def _may_take(self) -> bool:
        return self._core.takes(self._sender) and not self.is_paused(BLOCKED)

    def _take_first(self, view: memoryview) -> None:
        """Have the first frames of `view` taken, and keep the rest."""
        core, began, size = self._core, self._stream.frames, len(view)
        is_busy = self._turns.is_busy
        # A hundred connections may have something to read in one turn of the loop: then none of them may take many
        # frames at once. The frame under way is taken: a link that takes no more requests ends after that one.
        most = 0 if is_busy and self._has_many_small(view) else MOST_FRAMES
        at = core.receive(self._sender, view, most) if core.takes(self._sender) else 0
        if 0 < at < size:
            end = time.perf_counter() + (0.0 if is_busy else _AT_ONCE_SECONDS)
            while at < size and self._may_take:
                if (self._stream.frames - began) * _SMALL_FRAME >= at and time.perf_counter() >= end:
                    break
                at += core.receive(self._sender, view[at:])
        self.waits_in_line = at < size
        if at < size:
            self.rest = memoryview(bytes(view[at:]))
            self.pause(UNTAKEN)
            self._leaves_unread()
            self._get_in(self._turns)

    def _take_next(self) -> None:
        self._is_in_line = False
        if not self.rest or not self._may_take:
            return
        try:
            self.rest = self.rest[self._core.receive(self._sender, self.rest) :]
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(error)
            return
        self.flush()
        if self.rest:
            self._get_in(self._turns)
        else:
            self.resume(UNTAKEN)
        self._link.carry_out()

    def _has_many_small(self, view: memoryview) -> bool:
        """Return whether more than MOST_FRAMES frames are in a view, and these are small."""
        at = self._stream.passing
        for _ in range(MOST_FRAMES):
            if at + SIZE.size > len(view):
                return False
            at += SIZE.size + max(0, SIZE.unpack_from(view, at)[0])
        return at < min(len(view), MOST_FRAMES * _SMALL_FRAME)
