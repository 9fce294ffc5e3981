# SPDX-License-Identifier: Apache-2.0
"""The limiters that are always there: KIP-731's two, and the one for bytes from its future work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from weir.limits.rate_limiter import Batch, Option, RateLimiter
from weir.limits.slowed_clock import SlowedClock

LATE_SECONDS: Final = 0.05
"""How late the next batch may come after the end of a pause and still count as on time.

Without this, each way to the broker and back would be lost, as the pause begins only when the answer has come. What is
gained by it never is more than the limit allows in this time, so any second has at most the limit x (1 + LATE_SECONDS)
and one batch.
"""

IDLE_SECONDS: Final = 0.25
"""How late a batch is late no more: its client had nothing to do, and gains nothing. Up to then LATE_SECONDS count."""


class PacedLimiter:
    """Spreads units evenly: each takes 1 / limit seconds, and the pause is what they have not taken yet.

    So the pause is the shortest that keeps to the limit. What was not used in the past is not made up for.
    """

    option: ClassVar[Option]
    units: ClassVar[tuple[int, int, int]]
    """What a record, a byte, and an answer or request with records takes, in units."""

    def __init__(self) -> None:
        self._limit: float | None = None
        self._free_at = float("-inf")  # when all units so far have had their time
        self._clock = SlowedClock(lambda: 0.0)

    def config(self) -> Sequence[Option]:
        """One option: the limit. Without it there is no pause."""
        return (self.option,)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the limit. In the middle of a pause, what is still owed is spread anew."""
        limit = settings.get(self.option.name)
        owed = 0.0 if self._limit is None else self.throttle_time() * self._limit
        self._limit = limit if isinstance(limit, (int, float)) else None
        if owed:
            self._free_at = self._clock.read() + (owed / self._limit if self._limit is not None else 0.0)

    def start(self, clock: Callable[[], float]) -> None:
        """Begin without a debt."""
        self._clock = clock if isinstance(clock, SlowedClock) else SlowedClock(clock)

    def accumulate(self, batches: Sequence[Batch]) -> None:
        """Add the time that these batches take."""
        self.take(batches, sum([batch.records for batch in batches]), sum([batch.size for batch in batches]))

    def take(self, batches: Sequence[Batch], records: int, size: int) -> float:
        """Add the time that these batches take, which have so many records and bytes; returns it."""
        of_record, of_byte, of_answer = self.units
        units = of_record * records + of_byte * size + of_answer * (records > 0)
        if self._limit is None or not units:
            return 0.0
        now, seconds = self._clock.read(), units / self._limit
        late = now - self._free_at
        if late > IDLE_SECONDS:
            late = 0.0
        elif late > 0:
            speed = self._clock.speed
            late = min(late, LATE_SECONDS * speed) if late <= IDLE_SECONDS * speed else 0.0
        self._free_at = now - late + seconds
        return seconds

    def owe(self, seconds: float) -> None:
        """Make `throttle_time` at least `seconds`, which another process has counted, if there is a limit."""
        if self._limit is not None:
            self._free_at = max(self._free_at, self._clock.read() + seconds)

    def throttle_time(self) -> float:
        """Return the time that is still to be taken."""
        left = self._free_at - self._clock.read()
        return left if left > 0 else 0.0

    def close(self) -> None:
        """Nothing to do."""


class RecordRateLimiter(PacedLimiter):
    """At most `record.rate.limit` records a second."""

    option = Option("record.rate.limit", float, "the most records a second", least=0.001)
    units = 1, 0, 0


class RecordBatchRateLimiter(PacedLimiter):
    """At most `record.batch.rate.limit` Fetch answers or Produce requests with records a second."""

    option = Option(
        "record.batch.rate.limit",
        float,
        "the most Fetch answers or Produce requests with records a second",
        least=0.001,
    )
    units = 0, 0, 1


class ByteRateLimiter(PacedLimiter):
    """At most `byte.rate.limit` bytes of records a second, as on the wire."""

    option = Option("byte.rate.limit", float, "the most bytes of records a second, as on the wire", least=0.001)
    units = 0, 1, 0


BUILT_IN: Final[Mapping[str, Callable[[], RateLimiter]]] = {
    limiter.__name__: limiter for limiter in (RecordRateLimiter, RecordBatchRateLimiter, ByteRateLimiter)
}
