# SPDX-License-Identifier: Apache-2.0
"""What KIP-731's task metrics tell of a client: its record rate, and the part of the time that it was throttled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 30
"""Whole seconds that the figures are taken over; the one under way is not among them."""


class IntervalRates(NamedTuple):
    """What one client did in an interval."""

    records: int
    most: int
    """The records of the greatest second. One that the interval cuts in two has all of its records so far."""
    throttled_seconds: float


class TaskRates:
    """Counts of one client by second of `clock`. It keeps at most WINDOW_SECONDS + 1 of them."""

    __slots__ = (
        *("_begin", "_clock", "_cut", "_most", "_newest", "_records", "_throttled", "_throttled_until", "_waits"),
        *("records", "throttled_seconds"),
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = clock()
        self._records: dict[int, int] = {}
        self._throttled: dict[int, float] = {}
        self._throttled_until = self._begin
        self._waits: dict[object, float] = {}  # who waits now, and since when
        self._newest = -1  # the last second with records, if it is of the interval under way
        self._most = 0  # records of a second before that one in this interval
        self._cut = 0, 0.0  # records and seconds throttled until then
        self.records = 0
        """All records so far."""
        self.throttled_seconds = 0.0
        """The time throttled so far."""

    def add(self, records: int) -> None:
        """Count records that have passed."""
        self.records += records
        second = int(self._clock())
        if second in self._records:
            self._records[second] += records
        else:
            self._most = max(self._most, self._records.get(self._newest, 0))
            self._newest = second
            self._forget(second)
            self._records[second] = records

    def waits(self, who: object, since: float) -> None:
        """Note that a request of `who` has been kept waiting since then, and still is."""
        self._waits[who] = since

    def waited(self, who: object) -> None:
        """Note that `who` waits no more, if it did."""
        since = self._waits.pop(who, None)
        if since is not None:
            self.throttled(since, self._clock())

    def throttled(self, begin: float, end: float) -> None:
        """Note that the client was kept waiting from `begin` to `end`. What overlaps earlier times counts once."""
        begin = max(begin, self._throttled_until)
        if end <= begin:
            return
        self._throttled_until = end
        self.throttled_seconds += end - begin
        self._forget(int(self._clock()))
        begin = max(begin, int(end) - WINDOW_SECONDS)
        while begin < end:
            second = int(begin)
            stop = min(second + 1, end)
            self._throttled[second] = self._throttled.get(second, 0.0) + stop - begin
            begin = stop

    def average(self) -> float:
        """Return records/s over the window, or over the client's life where that is shorter."""
        return sum(self._in_window(self._records).values()) / self._window_length()

    def most(self) -> float:
        """Return the records of the greatest second in the window."""
        return max(self._in_window(self._records).values(), default=0)

    def throttled_ratio(self) -> float:
        """Return the part of the window in which the client was kept waiting: 0 to 1."""
        self._count_waits()
        return min(1.0, sum(self._in_window(self._throttled).values()) / self._window_length())

    def cut_interval(self) -> IntervalRates:
        """Return what there was since the last cut. What a client was told to wait from now on is of the next one."""
        self._count_waits()
        now = self._clock()
        throttled = self.throttled_seconds - max(0.0, self._throttled_until - now)
        most = max(self._most, self._records.get(self._newest, 0))
        records = self.records - self._cut[0]
        cut = IntervalRates(records, most if records else 0, max(0.0, throttled - self._cut[1]))
        self._cut = self.records, throttled
        self._most = 0
        if self._newest < int(now):
            self._newest = -1
        return cut

    def _count_waits(self) -> None:
        """Count the time so far of those that still wait."""
        for since in list(self._waits.values()):
            self.throttled(since, self._clock())

    def _in_window(self, by_second: dict[int, int] | dict[int, float]) -> dict[int, float]:
        now = int(self._clock())
        return {second: value for second, value in by_second.items() if now - WINDOW_SECONDS <= second < now}

    def _window_length(self) -> float:
        now = int(self._clock())
        return max(1.0, now - max(now - WINDOW_SECONDS, self._begin))

    def _forget(self, now: int) -> None:
        for by_second in (self._records, self._throttled):
            for second in list(by_second):
                if second >= now - WINDOW_SECONDS:
                    break
                del by_second[second]
