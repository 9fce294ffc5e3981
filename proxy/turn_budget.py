"""Work that can wait, done a little in each turn of the event loop, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_SECONDS: Final = 0.0002
"""What all that can wait may take of one turn of the loop, but for one piece of work that is longer by itself."""


class TurnBudget:
    """A line of short pieces of work, first come, first served. `clock` gives seconds, and is read for each of them.

    A piece of work must not raise.
    """

    def __init__(self, seconds: float = TURN_SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._seconds = seconds
        self._clock = clock
        self._line: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def add(self, work: Callable[[], None]) -> None:
        """Put one piece of work at the end of the line; it may add another one when it is done."""
        self._line.append(work)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Do what this turn has time for, one piece at least."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        end = self._clock() + self._seconds
        while self._line:
            self._line.popleft()()
            if self._clock() >= end:
                break
        if self._line and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self.run)
