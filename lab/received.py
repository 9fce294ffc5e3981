# SPDX-License-Identifier: Apache-2.0
"""The bytes that a follower received, by the sizes of its segment files, which nothing on the way can fake."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from weir.lab.errors import LabError
from weir.lab.segments import ReplicaSize

INTERVAL_SECONDS = 0.02  # a window is seen too narrow by up to this; a longer interval would hide bytes above a quota

_ROUNDING_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Series:
    """Total bytes over time: `times` in seconds from the start of sampling, `totals` in bytes; oldest first.

    A total is read from many files, which takes a while: `begun` says when each reading began, `times` when it ended.
    Where `begun` is empty, readings took no time.
    """

    times: tuple[float, ...]
    totals: tuple[int, ...]
    begun: tuple[float, ...] = ()

    @property
    def received(self) -> int:
        """Bytes that came while it was sampled."""
        return self.totals[-1] - self.totals[0] if self.totals else 0

    @property
    def span(self) -> tuple[float, float]:
        """(last moment before the first byte came, moment when the last was seen), in seconds; (0, 0) if none came."""
        grown = [index for index in range(1, len(self.totals)) if self.totals[index] > self.totals[index - 1]]
        return (self.times[grown[0] - 1], self.times[grown[-1]]) if grown else (0.0, 0.0)

    def mean_rate(self) -> float:
        """Return bytes/s from the first byte to the last; 0.0 if none came."""
        first, last = self.span
        return self.received / (last - first) if last > first else 0.0

    def total_at(self, moment: float) -> float:
        """Return the total at a moment (s), on a straight line between the samples around it."""
        after = bisect_right(self.times, moment)
        if after == 0:
            return float(self.totals[0])
        if after == len(self.times):
            return float(self.totals[-1])
        before = after - 1
        share = (moment - self.times[before]) / (self.times[after] - self.times[before])
        return self.totals[before] + share * (self.totals[after] - self.totals[before])

    def worst_window(self, seconds: float = 1.0) -> tuple[float, float]:
        """Return (bytes, start) of the window of at most `seconds`, from one reading to another, in which most came.

        So many bytes surely came in that time. A straight line between two readings would say more: bytes come in
        steps, a fetch's worth each, and it would put parts of steps into windows that they did not come in. The first
        second counts as any other.
        """
        begun = self.begun or self.times
        worst, start, first = 0, 0.0, 0
        for last, (moment, total) in enumerate(zip(self.times, self.totals, strict=True)):
            while first < last and moment - begun[first] > seconds + _ROUNDING_SECONDS:
                first += 1
            if total - self.totals[first] > worst:
                worst, start = total - self.totals[first], begun[first]
        return float(worst), start

    def longest_pause(self, since: float, until: float) -> float:
        """Return the longest time in which readings saw no byte more, of those that ended between two moments (s).

        Times before the first byte and after the last do not count.
        """
        longest, grown_at = 0.0, math.inf
        for (before, total), (moment, now) in pairwise(zip(self.times, self.totals, strict=True)):
            if now > total:
                if since <= before <= until:
                    longest = max(longest, before - grown_at)
                grown_at = moment
        return longest

    def per_second(self) -> list[float]:
        """Return the bytes of each whole or begun second from the first byte on (what a chart draws)."""
        first, last = self.span
        edges = [first + number for number in range(int(last - first) + 2)]
        amounts = [self.total_at(b) - self.total_at(a) for a, b in pairwise(edges)]
        while amounts and not amounts[-1]:
            amounts.pop()
        return amounts


class ReceivedBytes:
    """Samples the sizes of replicas' segment files in a thread until it is stopped; a context manager.

    `replicas` are (data folder of the follower, topic, partition). Start it before the move, so that the first second
    is seen.
    """

    def __init__(
        self,
        replicas: Iterable[tuple[Path, str, int]],
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = [ReplicaSize(data, topic, partition) for data, topic, partition in replicas]
        self._interval = interval
        self._clock = clock
        self._samples: list[tuple[float, float, int]] = []  # a reading's beginning and end, and the total
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="received-bytes", daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> ReceivedBytes:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def total(self) -> int:
        """The newest total (bytes)."""
        return self._samples[-1][2]

    def stop(self) -> None:
        """Take the last sample and end the thread; may be called again."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._sample()

    def series(self) -> Series:
        """Return what was sampled up to now. Raises LabError when sampling failed."""
        if self._error is not None:
            raise LabError(f"Reading the follower's segment files failed: {self._error}") from self._error
        samples = tuple(self._samples)
        start = samples[0][1]
        return Series(
            tuple(ended - start for _, ended, _ in samples),
            tuple(total for *_, total in samples),
            tuple(begun - start for begun, *_ in samples),
        )

    def _sample(self) -> None:
        begun = self._clock()
        total = sum(replica.read() for replica in self._replicas)
        self._samples.append((begun, self._clock(), total))

    def _run(self) -> None:
        due = self._clock()
        while True:
            begun, ended, _ = self._samples[-1]
            # with thousands of replicas, reading takes half of the time at most
            due = max(due + self._interval, ended + (ended - begun))
            if self._stop.wait(due - self._clock()):
                return
            try:
                self._sample()
            except OSError as error:
                self._error = error
                return
