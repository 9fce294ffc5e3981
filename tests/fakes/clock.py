# SPDX-License-Identifier: Apache-2.0
"""A clock that only tests move."""


class MovedClock:
    """Monotonic seconds, as the classes under test take them: call it to read it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        """Let `seconds` pass; stands for a sleep as well."""
        self.now += seconds
