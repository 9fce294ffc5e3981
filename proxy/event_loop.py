# SPDX-License-Identifier: Apache-2.0
"""The event loop: which kind runs, how many files it may open, and how busy it is.

A timer tells the share of time that the loop works, and how late it calls back, on asyncio's own loop and on uvloop. It
costs nothing per turn or record, and some 30 us each 100 ms.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from weir.proxy.name_lookups import NameLookups

EVENT_LOOP: Literal["asyncio", "uvloop"] = "asyncio"
"""Which loop runs the sidecar, as decided by the bench (docs/performance.md). WEIR_EVENT_LOOP overrides it to compare.
"""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the chosen kind; asyncio's own where uvloop is not installed.

    It looks names up as `weir.proxy.name_lookups` says.
    """
    loop = _new_event_loop()
    loop.getaddrinfo = NameLookups(loop).getaddrinfo  # type: ignore[method-assign]
    return loop


def _new_event_loop() -> asyncio.AbstractEventLoop:
    if os.environ.get("WEIR_EVENT_LOOP", EVENT_LOOP) == "uvloop":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, as each link takes two. Returns the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard


TICK_SECONDS: Final = 0.1
WINDOW_SECONDS: Final = 10.0

SATURATED_BUSY: Final = 0.9
"""From this share on nearly every byte waits for the loop."""

SATURATED_LOST: Final = 0.25
"""From this share on a sidecar does not get its core: it is stopped again and again, or has used its CPU limit."""

_LEAST_SECONDS: Final = 1.0  # a share is of so much at least: a start is busy for a moment


class _Tick(NamedTuple):
    at: float  # monotonic seconds
    worked: float  # seconds since the start
    late: float  # seconds


class LoopLoad:
    """Measures the running event loop from `start` to `close`; until then it is idle."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._worked = worked or worked_by_this_thread
        self._ticks: deque[_Tick] = deque()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, on the thread of the loop."""
        self._due = self._clock()
        self.tick()

    def close(self) -> None:
        """Stop the timer: the shares stay as they are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Note how late this is called, and have it called again."""
        now = self._clock()
        self._ticks.append(_Tick(now, self._worked(), max(0.0, now - self._due)))
        while len(self._ticks) > 2 and self._ticks[1].at <= now - WINDOW_SECONDS:
            self._ticks.popleft()
        self._due = now + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self.tick)

    @property
    def busy(self) -> float:
        """The share of the last 10 s in which the loop worked, from 0 to 1."""
        if len(self._ticks) < 2:
            return 0.0
        first, last = self._ticks[0], self._ticks[-1]
        return min(1.0, (last.worked - first.worked) / max(_LEAST_SECONDS, last.at - first.at))

    @property
    def lost(self) -> float:
        """The share of 10 s in which the loop was late. One callback that is late says little."""
        return min(1.0, sum([tick.late for tick in self._ticks]) / WINDOW_SECONDS)

    @property
    def late_seconds(self) -> float:
        """How late the loop called back, in seconds: the 99th percentile of the last 10 s."""
        late = sorted(tick.late for tick in self._ticks)
        return late[math.ceil(0.99 * len(late)) - 1] if late else 0.0

    @property
    def is_saturated(self) -> bool:
        """Whether what passes has to wait for the loop."""
        return is_saturated(self.busy, self.lost)

    def as_plain(self) -> dict[str, float]:
        """Return it as the status shows it."""
        return {"busy": round(self.busy, 3), "late_seconds": round(self.late_seconds, 4)}


def is_saturated(busy: float, lost: float) -> bool:
    """Return whether what passes has to wait for such a loop."""
    return busy >= SATURATED_BUSY or lost >= SATURATED_LOST


def worked_by_this_thread() -> float:
    """Return the seconds that this thread has run, or has waited for a core while it had work.

    Where the kernel does not tell of the waiting, it is CPU time alone.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as told:
            ran, waited, *_ = map(int, told.read().split())
    except (OSError, ValueError):
        return time.thread_time()
    return (ran + waited) / 1e9
