"""One direction's bytes between their arrival and their turn: a few frames at a time, and no more while others wait.

A client may put a thousand requests into one packet. To take them all at once would keep every other connection
waiting, so what is more than a few waits in line with that of all connections like it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from protocol.frame_cutter import FrameCutter
from proxy.buffers import SMALL_BUFFER_SIZE
from proxy.pump import BLOCKED, UNTAKEN, Pump
from proxy.turn_budget import TurnBudget

MOST_FRAMES: Final = 16
"""Frames taken at once. Kafka's clients have five requests under way at the most, its replica fetchers one."""

_AT_ONCE_SECONDS: Final = 0.0002  # while nobody waits in line, more frames are taken for so long
_SMALL_FRAME: Final = 1024  # bytes: larger ones never wait, for they cost no more than moving them


class InflowOwner(Protocol):
    """The link of an inflow. Nothing here may block or await."""

    def take(self, pump: Pump, view: memoryview) -> int:
        """Take the next bytes of a direction; returns how many were taken, up to a frame's end when not all were."""

    def took(self, pump: Pump) -> None:
        """Bytes that had to wait were taken, and sent as far as possible."""

    def failed(self, pump: Pump, error: Exception) -> None:
        """`take` raised: the link has to be closed."""


class Inflow:
    """What `pump` has read and its owner has not taken yet; while there is such, the pump does not read.

    Nothing is taken while `is_open` is False, or the pump has something to send that is not taken from it.
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
        """What waits; it begins with a frame's first byte, or behind those of a request that is held."""

    def skip(self, size: int) -> None:
        """Bytes passed that end no later than the frame under way."""
        self._cutter.skip(size)

    def arrived(self, view: memoryview, clock: Callable[[], float] = time.perf_counter) -> bool:
        """Have the first frames of `view` taken, and keep what follows them.

        Returns whether a small buffer came full, with so few frames that a large one would not hold up others.
        """
        at, frames = self._take_some(view)
        if at < len(view):
            end = clock() + (0.0 if self._turns.is_busy else _AT_ONCE_SECONDS)
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
        """Get in line with what waits, unless it has to wait for something else too."""
        if self.rest and not self._is_in_line and self.is_open and not self._pump.is_paused(BLOCKED):
            self._is_in_line = True
            self._turns.add(self._take_next)

    def drop(self) -> None:
        """Forget what waits."""
        self.rest = memoryview(b"")
        self._pump.resume(UNTAKEN)

    def close(self) -> None:
        """The link is closed."""
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

    def _take_some(self, view: memoryview) -> tuple[int, int]:
        """Have at most MOST_FRAMES taken; returns how many bytes, and how many frames were seen in them."""
        before = self._cutter.place
        size, frames = self._cutter.cut(view, MOST_FRAMES)
        taken = self._owner.take(self._pump, view[:size])
        if taken < size:
            self._cutter.place = before
            self._cutter.cut(view[:taken], MOST_FRAMES + 1)
        return taken, frames
