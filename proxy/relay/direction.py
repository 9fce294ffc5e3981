"""One direction of a link: a pump whose bytes go to the link's core."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from weir.protocol.frame_cutter import FrameCutter
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.connection import Connection
from weir.proxy.relay.open_link import OpenLink, Sender
from weir.proxy.relay.pump import BLOCKED, STOPPED, UNTAKEN, Pump
from weir.proxy.relay.side import Side
from weir.proxy.relay.transport import Transport

MOST_FRAMES: Final = 16
"""The most frames taken at once. Kafka's clients have at most five requests under way, its replica fetchers one."""

_AT_ONCE_SECONDS: Final = 0.0002  # while no other connection waits, more frames are taken for this long
_SMALL_FRAME: Final = 1024  # bytes: larger frames never wait, as they cost no more than moving them


class Direction(Pump):
    """One direction of a link: what is read of `sender` goes to `core`, a few frames at a time.

    A client may put a thousand requests into one packet. Taking all of them at once would keep every other connection
    waiting. So what is left waits in one line with that of all similar connections. Meanwhile nothing is read.
    """

    __slots__ = ("_core", "_cutter", "_is_in_line", "_link", "_sender", "counted", "rest")

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
        self._cutter = FrameCutter()
        self._is_in_line = False
        self.rest = memoryview(b"")
        """What waits to be taken: it begins with a frame, or with what follows the start of a request that is held."""

    # What happens to it

    def received(self, view: memoryview) -> None:
        """Have bytes taken that were read."""
        core, size = self._core, len(view)
        self.counted[self._sender] += size
        if core.passes(self._sender, view):
            self._cutter.skip(size)
            if core.phase == "draining":
                self._link.carry_out()
            return
        is_bulk = self._take_first(view)
        self.large_reads = core.next_is_large(self._sender, is_bulk)
        self._link.carry_out()

    def unblocked(self) -> None:
        """Take what was received meanwhile, now that the target takes bytes again."""
        self.go_on()
        self._link.carry_out()

    def ended(self) -> None:
        """Note that one end has sent its last byte, and that the other end was told."""
        self._core.ended(self._sender)
        self._link.carry_out()

    def failed(self, error: Exception) -> None:
        """Close the link, and log the reason unless a peer simply went away."""
        self._link.failed(error, self._sender)

    # What waits

    def follow(self) -> None:
        """Read and take, or not, as the core's state says now."""
        if self._core.reads(self._sender):
            self.resume(STOPPED)
        else:
            self.pause(STOPPED)
        self.go_on()

    def go_on(self) -> None:
        """Get in line with the bytes that wait, unless something else has to happen first."""
        if self.rest and not self._is_in_line and self._may_take:
            self._is_in_line = True
            self._turns.add(self._take_next)

    def begin_with(self, unread: bytes) -> None:
        """Take these bytes before any that are read."""
        if unread:
            self.rest = memoryview(unread)
            self.pause(UNTAKEN)

    def drop(self) -> None:
        """Throw away the bytes that wait."""
        self.rest = memoryview(b"")
        self.resume(UNTAKEN)

    def close(self) -> None:
        """Stop reading, and throw away what waits, as the link is closed."""
        self.rest = memoryview(b"")
        super().close()

    @property
    def _may_take(self) -> bool:
        return self._core.takes(self._sender) and not self.is_paused(BLOCKED)

    def _take_first(self, view: memoryview) -> bool:
        """Have the first frames of `view` taken, and keep the rest.

        Returns whether a large buffer is worth it: a small one came full, with few frames in it.
        """
        is_busy = self._turns.is_busy
        if is_busy and self._has_many_small(view):
            # A hundred connections may have something to read in one turn of the loop: then none of them may take many
            # frames at once. The frame under way is taken: a link that takes no more requests ends after that one.
            at, frames = self._take_some(view, 1)[0] if self._cutter.is_within else 0, MOST_FRAMES
        else:
            at, frames = self._take_some(view)
        if 0 < at < len(view):
            end = time.perf_counter() + (0.0 if is_busy else _AT_ONCE_SECONDS)
            while at < len(view) and self._may_take:
                if frames * _SMALL_FRAME >= at and time.perf_counter() >= end:
                    break
                size, more = self._take_some(view[at:])
                at += size
                frames += more
        self.waits_in_line = at < len(view)
        if at < len(view):
            self.rest = memoryview(bytes(view[at:]))
            self.pause(UNTAKEN)
            self.go_on()
        return len(view) >= SMALL_BUFFER_SIZE and frames * _SMALL_FRAME < len(view)

    def _take_next(self) -> None:
        self._is_in_line = False
        if not self.rest or not self._may_take:
            return
        try:
            taken, _ = self._take_some(self.rest)
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self.failed(error)
            return
        self.rest = self.rest[taken:]
        self.flush()
        if self.rest:
            self.go_on()
        else:
            self.resume(UNTAKEN)
        self._link.carry_out()

    def _has_many_small(self, view: memoryview) -> bool:
        before = self._cutter.place
        size, frames = self._cutter.cut(view, MOST_FRAMES)
        self._cutter.place = before
        return size < len(view) and size < frames * _SMALL_FRAME

    def _take_some(self, view: memoryview, most: int = MOST_FRAMES) -> tuple[int, int]:
        """Have at most `most` frames taken. Returns the bytes taken, and the frames seen in them."""
        before = self._cutter.place
        size, frames = self._cutter.cut(view, most)
        taken = self._core.receive(self._sender, view[:size])
        if taken < size:
            self._cutter.place = before
            self._cutter.cut(view[:taken], MOST_FRAMES + 1)
        if self._core.work is not None:
            self._link.begin_work()
        return taken, frames
