# SPDX-License-Identifier: Apache-2.0
"""Made-up limiters and connections for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from weir.limits.built_in import BUILT_IN
from weir.limits.rate_limiter import Batch, Option
from weir.limits.rules import NamedLimiter, Rule

LIMITS = {
    "RecordRateLimiter": "record.rate.limit",
    "RecordBatchRateLimiter": "record.batch.rate.limit",
    "ByteRateLimiter": "byte.rate.limit",
}


def built_in(name: str, limit: float | None) -> NamedLimiter:
    """One of the built-in limiters."""
    return NamedLimiter(name, BUILT_IN[name], {LIMITS[name]: limit}, is_built_in=True)


def rule(pattern: str = "*", records: float | None = None, **more: object) -> Rule:
    """A rule with a limit of records."""
    return Rule(pattern, (built_in("RecordRateLimiter", records),), **more)  # type: ignore[arg-type]


def batches(records: int, size: int = 0, topic: str = "orders") -> list[Batch]:
    """One answer's batches."""
    return [Batch(topic, records, size or 100 * records)] if records else []


class Scripted:
    """A limiter that asks for the pause that it was made with, or raises."""

    def __init__(self, pause: float | BaseException = 0.0, fails_in: str = "throttle_time") -> None:
        self.pause = pause
        self.fails_in = fails_in
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if isinstance(self.pause, BaseException) and self.fails_in == name:
            raise self.pause

    def config(self) -> Sequence[Option]:
        """Has none."""
        return ()

    def configure(self, settings: Mapping[str, object]) -> None:
        """Remember it."""
        self._called("configure")

    def start(self, clock: Callable[[], float]) -> None:
        """Remember it."""
        self._called("start")

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Remember it."""
        self._called("accumulate")

    def throttle_time(self) -> float:
        """The scripted pause."""
        self._called("throttle_time")
        return math.nan if isinstance(self.pause, BaseException) else self.pause

    def close(self) -> None:
        """Remember it."""
        self._called("close")


class Line:
    """A connection whose request waits."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.woken = 0
        self.is_idle = False

    def wake(self) -> None:
        """Count it."""
        self.woken += 1

    def __repr__(self) -> str:
        return f"Line({self.name})"
