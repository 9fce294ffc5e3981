"""Work in steps: what could take long pauses now and then, so that others can be served in between.

A step is a generator's `yield`; its result is what it returns.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Take all steps, and return what comes of them."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
