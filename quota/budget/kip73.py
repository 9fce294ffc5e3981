"""The `kip73` policy: KIP-73's optimistic quota, as Kafka's ReplicationQuotaManager keeps it.

Bytes are recorded when they have passed; what is throttled waits while the measured rate is above the quota. A whole
response can slip through each time the rate dips below: that is the KIP's own behaviour, for those who want it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from quota.budget.simple_rate import SimpleRate

RETRY_MIN_SECONDS: Final = 0.1
"""Shortest wait before a held fetch is looked at again: at most ten looks a second, however slowly the rate sinks."""

RETRY_MAX_SECONDS: Final = 1.0
"""Longest wait: a sample leaves the window about once a second, and at rate 0 nothing else would ever wake a fetch."""


class InvalidQuota(ValueError):
    """A quota that is not a number of bytes a second; `rate` is what was given."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.rate = rate

    def __str__(self) -> str:
        return f"A replication quota must be 0 or more bytes a second, not {self.rate}."


class Kip73Budget:
    """The bytes that all throttled replicas of one side may share, by the rate measured over a window of samples.

    `clock` gives monotonic seconds; `rate` is the quota in bytes a second, None for no quota. `measured` is what the
    bytes of throttled replicas are sampled in, also while there is no quota; `window_size_seconds` is how long one of
    its samples is (`replication.quota.window.size.seconds`). InvalidQuota when the rate is negative or not a finite
    number.
    """

    __slots__ = ("_clock", "_measured", "_upper_bound", "_window_size_seconds")

    def __init__(
        self,
        clock: Callable[[], float],
        rate: float | None,
        measured: SimpleRate,
        window_size_seconds: float = 1.0,
    ) -> None:
        self._clock = clock
        self._measured = measured
        self._window_size_seconds = window_size_seconds
        self.set_rate(rate)

    @property
    def one_window(self) -> float:
        """The bytes of one sample's span at the quota: the most that one fetch is worth; inf when there is none."""
        return math.inf if self._upper_bound is None else self._upper_bound * self._window_size_seconds

    def set_rate(self, rate: float | None) -> None:
        """Change the quota from now on; what was recorded stays recorded."""
        if rate is not None and not (math.isfinite(rate) and rate >= 0):
            raise InvalidQuota(rate)
        self._upper_bound = rate

    def is_quota_exceeded(self) -> bool:
        """Tell whether the measured rate is above the quota; exactly at the quota is not above it.

        At a quota of 0 this is always true. Kafka lets one response through whenever its samples have run empty; a
        user who sets 0 asked for none.
        """
        if self._upper_bound is None:
            return False
        # Measured first: Kafka's samples begin with the first look, so a later quota must find them begun.
        return self._measured.rate() > self._upper_bound or self._upper_bound == 0

    def retry_at(self, now: float) -> float:
        """Return when to ask again, in the clock's seconds: `now` itself, or 0.1 to 1.0 s later while it is exceeded.

        Between those limits it is the earliest moment at which the quota may no longer be exceeded.
        """
        if not self.is_quota_exceeded():
            return now
        if not self._upper_bound:
            return now + RETRY_MAX_SECONDS
        falls_at = self._measured.falls_to(self._upper_bound)
        return min(max(falls_at, now + RETRY_MIN_SECONDS), now + RETRY_MAX_SECONDS)
