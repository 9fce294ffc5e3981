# SPDX-License-Identifier: Apache-2.0
"""A rate limiter of one's own for weir: fewer records a second by day than by night."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from weir.limits.rate_limiter import Batch, Option


class OfficeHours:
    """`office.record.rate.limit` from 8 to 18 o'clock UTC, and no limit outside."""

    def __init__(self, hour: Callable[[], int] = lambda: time.gmtime().tm_hour) -> None:
        self._hour = hour
        self._limit = 0.0
        self._clock: Callable[[], float] = lambda: 0.0
        self._free_at = 0.0

    def config(self) -> Sequence[Option]:
        """Declare the settings, which then are keys in [[limits.client]]."""
        return [Option("office.record.rate.limit", float, "the most records a second by day", default=100.0, least=1)]

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the settings; again, whenever they change."""
        self._limit = float(str(settings["office.record.rate.limit"]))

    def start(self, clock: Callable[[], float]) -> None:
        """Begin: `clock` is the only one to measure pauses with."""
        self._clock = clock
        self._free_at = clock()

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Give each record its time."""
        if 8 <= self._hour() < 18:
            records = sum(batch.records for batch in batches)
            self._free_at = max(self._free_at, self._clock()) + records / self._limit

    def throttle_time(self) -> float:
        """Return what is left of that."""
        return max(0.0, self._free_at - self._clock())

    def close(self) -> None:
        """Nothing to let go of."""
