# SPDX-License-Identifier: Apache-2.0
"""A clock that runs slower while only a part of a limit is to be used here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class SlowedClock:
    """Seconds that pass at `speed` (above 0, at most 1) of those of `clock`.

    A limiter that goes by it keeps to `speed` times its limit, whatever it limits. `read` returns its own seconds. As
    long as it has always run at full speed, that is `clock` itself.
    """

    __slots__ = ("_clock", "read", "speed")

    def __init__(self, clock: Callable[[], float], speed: float = 1.0) -> None:
        self._clock = clock
        self.read = clock
        self.speed = 1.0
        """How many of its seconds pass in a real one."""
        if speed != self.speed:
            self.set_speed(speed)

    def __call__(self) -> float:
        """Return its own seconds."""
        return self.read()

    def set_speed(self, speed: float) -> None:
        """Run at another speed from now on."""
        self.read = partial(_slowed, self._clock, self.read(), self._clock(), speed)
        self.speed = speed


def _slowed(clock: Callable[[], float], passed: float, since: float, speed: float) -> float:
    return passed + (clock() - since) * speed
