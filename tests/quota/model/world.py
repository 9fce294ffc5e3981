# SPDX-License-Identifier: Apache-2.0
"""One clock and what happens on it, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

START = 1_000.0


@dataclass(frozen=True)
class Violation:
    """A promise that was broken: `promise` names which, `text` says by what."""

    at: float
    promise: str
    text: str

    def __str__(self) -> str:
        return f"{self.at - START:.3f} s: {self.promise}: {self.text}"


class World:
    """An event heap. Calling it reads the clock."""

    __slots__ = ("_heap", "_is_over", "_number", "answers", "exchanges", "now", "trace", "violations")

    def __init__(self) -> None:
        self.now = START
        self.exchanges = 0  # requests that followers sent
        self.answers: list[tuple[float, int, int]] = []  # that followers received: when, who, bytes of records
        self.violations: list[Violation] = []
        self.trace: Callable[[str], None] | None = None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        self._is_over = False

    def __call__(self) -> float:
        return self.now

    def after(self, delay: float, call: Callable[..., None], *args: object) -> None:
        """Have `call` called in `delay` seconds."""
        self._number = number = self._number + 1
        heapq.heappush(self._heap, (self.now + delay, number, call, args))

    def run(self, until: float, most_exchanges: int) -> bool:
        """Go on until that time, the first violation, or so many exchanges; returns whether the time was reached."""
        heap, pop, violations = self._heap, heapq.heappop, self.violations
        while heap and heap[0][0] <= until:
            self.now, _, call, args = pop(heap)
            call(*args)
            if violations or self.exchanges >= most_exchanges:
                return False
            if self._is_over:
                return True
        self.now = until
        return True

    def stop(self) -> None:
        """Nothing more of interest happens."""
        self._is_over = True

    def violate(self, promise: str, text: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(Violation(self.now, promise, text))

    def number(self) -> int:
        """A number that nothing else has."""
        self._number += 1
        return self._number

    def say(self, line: str) -> None:
        """Tell what happens, where somebody listens."""
        if self.trace is not None:
            self.trace(f"{self.now - START:9.4f} {line}")
