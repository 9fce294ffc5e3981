"""Work in steps: long work pauses from time to time, so that other work can be done in between.

Each `yield` of the generator ends a step; the generator returns the result.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Run all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
