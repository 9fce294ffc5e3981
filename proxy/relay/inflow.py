"""The bytes of one direction between their arrival and their turn.

A client may put a thousand requests into one packet. Taking all of them at once would keep every other connection
waiting. So a few frames are taken at a time, and the rest waits in one line with that of all similar connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from weir.protocol.frame_cutter import FrameCutter
from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.pump import BLOCKED, UNTAKEN, Pump
from weir.proxy.relay.turn_budget import TurnBudget

MOST_FRAMES: Final = 16
"""The most frames taken at once. Kafka's clients have at most five requests under way, its replica fetchers one."""

_AT_ONCE_SECONDS: Final = 0.0002  # while no other connection waits, more frames are taken for this long
_SMALL_FRAME: Final = 1024  # bytes: larger frames never wait, as they cost no more than moving them


class InflowOwner(Protocol):
    """The link that an inflow belongs to. Nothing here may block or await."""

    def take(self, pump: Pump, view: memoryview) -> int:
        """Take the next bytes of a direction. Returns how many were taken; if not all, they end at a frame's end."""

    def took(self, pump: Pump) -> None:
        """Note that bytes which had to wait were taken, and sent as far as possible."""

    def failed(self, pump: Pump, error: Exception) -> None:
        """Close the link: `take` raised."""


class Inflow:
    """The bytes that `pump` has read and its owner has not taken yet. While there are any, the pump does not read.

    Nothing is taken while `is_open` is False, or while the pump still has to send bytes that came by another way.
    """

    __slots__ = ("_cutter", "_is_in_line", "_owner", "_pump", "_turns", "is_open", "rest")

    def __init__(self, owner: InflowOwner, pump: Pump, turns: TurnBudget) -> None:
        self._owner = owner
        self._pump = pump
        self._turns = turns
        self._cutter = FrameCutter()
        self._is_in_line = False
        self.is_open = False
        self.rest = memoryview(b"")
        """The bytes that wait. They begin with a frame, or with what follows a request that is held."""

    def skip(self, size: int) -> None:
        """Note that `size` bytes passed, which end no later than the frame under way."""
        self._cutter.skip(size)

    def arrived(self, view: memoryview, clock: Callable[[], float] = time.perf_counter) -> bool:
        """Have the first frames of `view` taken, and keep the rest.

        Returns whether a large buffer is worth it: a small one came full, with few frames in it.
        """
        is_busy = self._turns.is_busy
        # A hundred connections may have something to read in one turn of the loop: then none of them may take many
        # frames at once.
        at, frames = (0, MOST_FRAMES) if is_busy and self._has_many_small(view) else self._take_some(view)
        if 0 < at < len(view):
            end = clock() + (0.0 if is_busy else _AT_ONCE_SECONDS)
            while at < len(view) and self.is_open and not self._pump.is_paused(BLOCKED):
                if frames * _SMALL_FRAME >= at and clock() >= end:
                    break
                size, more = self._take_some(view[at:])
                at += size
                frames += more
        self._pump.waits_in_line = at < len(view)
        if at < len(view):
            self.rest = memoryview(bytes(view[at:]))
            self._pump.pause(UNTAKEN)
            self.go_on()
        return len(view) >= SMALL_BUFFER_SIZE and frames * _SMALL_FRAME < len(view)

    def go_on(self) -> None:
        """Get in line with the bytes that wait, unless something else has to happen first."""
        if self.rest and not self._is_in_line and self.is_open and not self._pump.is_paused(BLOCKED):
            self._is_in_line = True
            self._turns.add(self._take_next)

    def drop(self) -> None:
        """Throw away the bytes that wait."""
        self.rest = memoryview(b"")
        self._pump.resume(UNTAKEN)

    def close(self) -> None:
        """End the inflow: the link is closed."""
        self.rest = memoryview(b"")

    def _take_next(self) -> None:
        self._is_in_line = False
        if not self.rest or not self.is_open or self._pump.is_paused(BLOCKED):
            return
        try:
            taken, _ = self._take_some(self.rest)
        except Exception as error:  # noqa: BLE001 - whatever it is ends this link, not the other links' turns
            self._owner.failed(self._pump, error)
            return
        self.rest = self.rest[taken:]
        self._pump.flush()
        if self.rest:
            self.go_on()
        else:
            self._pump.resume(UNTAKEN)
        self._owner.took(self._pump)

    def _has_many_small(self, view: memoryview) -> bool:
        before = self._cutter.place
        size, frames = self._cutter.cut(view, MOST_FRAMES)
        self._cutter.place = before
        return size < len(view) and size < frames * _SMALL_FRAME

    def _take_some(self, view: memoryview) -> tuple[int, int]:
        """Have at most MOST_FRAMES taken. Returns the bytes taken, and the frames seen in them."""
        before = self._cutter.place
        size, frames = self._cutter.cut(view, MOST_FRAMES)
        taken = self._owner.take(self._pump, view[:size])
        if taken < size:
            self._cutter.place = before
            self._cutter.cut(view[:taken], MOST_FRAMES + 1)
        return taken, frames
