"""A clock that runs slower while only a part of a limit is to be used here."""

from __future__ import annotations

from collections.abc import Callable


class SlowedClock:
    """Seconds that pass at `speed` (above 0, at most 1) of those of `clock`.

    A limiter that goes by it keeps to `speed` times its limit, whatever it limits.
    """

    __slots__ = ("_clock", "_passed", "_since", "speed")

    def __init__(self, clock: Callable[[], float], speed: float = 1.0) -> None:
        self._clock = clock
        self.speed = speed
        """How many of its seconds pass in a real one."""
        self._passed = 0.0  # of its own seconds, until `_since`
        self._since = clock()

    def __call__(self) -> float:
        """Return its own seconds."""
        return self._passed + (self._clock() - self._since) * self.speed

    def set_speed(self, speed: float) -> None:
        """Run at another speed from now on."""
        self._passed = self()
        self._since = self._clock()
        self.speed = speed


def speed_of(clock: Callable[[], float]) -> float:
    """Return how many of a limiter's seconds pass in a real one."""
    return clock.speed if isinstance(clock, SlowedClock) else 1.0
