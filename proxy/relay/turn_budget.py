# SPDX-License-Identifier: Apache-2.0
"""Work that can wait, done a little at a time so that other connections do not wait for it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from weir.protocol.steps import Steps, T

TURN_SECONDS: Final = 0.0002
"""How long all work that can wait may run in one turn of the event loop, except for a single piece that takes longer.
"""

PAUSE_SECONDS: Final = 0.001
"""How long work waits for its next turn: about the shortest time that a loop's timers can tell.

A process that is never idle is also the one that the operating system makes wait, and then all connections would wait.
"""

_LONG_LINE: Final = 200  # a longer line grows faster than it is worked off, so it does not pause


SLICE_SECONDS: Final = 0.002
"""How long one link's work may run in one turn, except for a single step that takes longer."""


@dataclass(eq=False, slots=True)
class TurnBudget:
    """A line of short pieces of work, first come, first served. `clock` gives seconds, and is read after each piece.

    The next turn comes `pause` seconds after the last one. With 0, or while the line is long, it comes as soon as the
    loop has served everything else. A piece of work must not raise.
    """

    seconds: float = TURN_SECONDS
    pause: float = 0.0
    clock: Callable[[], float] = time.perf_counter
    _line: OrderedDict[Callable[[], None], None] = field(default_factory=OrderedDict)
    _next: asyncio.Handle | None = None
    _pauses_until: float = -math.inf

    def __len__(self) -> int:
        return len(self._line)

    @property
    def is_busy(self) -> bool:
        """Whether new work has to wait: other work is in line, or the pause is not over."""
        return bool(self._line) or self.clock() < self._pauses_until

    def add(self, work: Callable[[], None]) -> None:
        """Put one piece of work at the end of the line, if it is not in line. It may add another one when it runs."""
        self._line[work] = None
        if self._next is None:
            self._set_next(self._pauses_until - self.clock() if self.pause else 0.0)

    def drop(self, work: Callable[[], None]) -> None:
        """Take a piece of work out of the line, if it is there."""
        self._line.pop(work, None)

    def add_steps(self, steps: Steps[None]) -> None:
        """Put work at the end of the line, and what a slice of it leaves at the end again."""
        self.add(partial(self._run_slice, steps))

    def _run_slice(self, steps: Steps[None]) -> None:
        if run_slice(steps) is None:
            self.add_steps(steps)

    def run(self) -> None:
        """Run as many pieces as one turn has time for, at least one."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        end = self.clock() + self.seconds
        while self._line:
            work, _ = self._line.popitem(last=False)
            work()
            if self.clock() >= end:
                break
        pause = self.pause if len(self._line) <= _LONG_LINE else 0.0
        self._pauses_until = self.clock() + pause
        if self._line:
            self._set_next(pause)

    def _set_next(self, delay: float) -> None:
        if self._next is not None:
            self._next.cancel()
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(delay, self.run) if delay > 0 else loop.call_soon(self.run)


def run_slice(steps: Generator[T | None, None, None]) -> T | Literal[True] | None:
    """Run some of `steps`. Returns True where none is left, and what a step has said where one has said something."""
    said: T | Literal[True] | None = next(steps, True)
    if said is None:  # most work has one step, and is not worth a look at the time
        end = time.perf_counter() + SLICE_SECONDS
        while said is None and time.perf_counter() < end:
            said = next(steps, True)
    return said
