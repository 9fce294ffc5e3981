# SPDX-License-Identifier: Apache-2.0
"""Work in steps: long work pauses from time to time, so that other work can be done in between.

Each `yield` of the generator ends a step; the generator returns the result.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


PER_STEP = 1_000  # partitions or topics that are looked at in one step of about 2 ms


class StepWork:
    """Counts the work of a step, in whatever unit: `if work.is_enough(1): yield`."""

    __slots__ = ("_done", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._done = 0

    def is_enough(self, more: int) -> bool:
        """Add `more` work. Returns whether the step ends with it."""
        self._done += more
        if self._done < self._most:
            return False
        self._done = 0
        return True


def at_once(steps: Steps[T]) -> T:
    """Run all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
