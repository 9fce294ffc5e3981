"""The `kip73` policy: KIP-73's optimistic quota, as Kafka's ReplicationQuotaManager keeps it.

Bytes are recorded after they have passed. Throttled partitions wait while the measured rate is above the quota, so a
whole response can slip through each time the rate falls below. That is the KIP's own behaviour, for those who want it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from weir.quota.budget.simple_rate import SimpleRate

RETRY_MIN_SECONDS: Final = 0.1
"""The shortest wait before a held fetch is looked at again: at most ten looks a second, however slowly the rate falls.
"""

RETRY_MAX_SECONDS: Final = 1.0
"""The longest wait: a sample leaves the window about once a second. At rate 0 nothing else would wake a fetch."""


class InvalidQuota(ValueError):
    """A quota that is not a number of bytes per second; `rate` is what was given."""

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
        """The bytes of one sample's time at the quota: the most that one fetch is worth. It is inf without a quota."""
        return math.inf if self._upper_bound is None else self._upper_bound * self._window_size_seconds

    def set_rate(self, rate: float | None) -> None:
        """Change the quota. What was recorded stays recorded."""
        if rate is not None and not (math.isfinite(rate) and rate >= 0):
            raise InvalidQuota(rate)
        self._upper_bound = rate

    def is_quota_exceeded(self) -> bool:
        """Return whether the measured rate is above the quota; a rate equal to it is not.

        At a quota of 0 it is always true. Kafka lets a response through at 0 whenever its samples have run empty, but a
        user who sets 0 asked for none.
        """
        if self._upper_bound is None:
            return False
        # Measured in any case: Kafka's samples begin at the first look, and a quota that is set later must find them
        # begun.
        return self._measured.rate() > self._upper_bound or self._upper_bound == 0

    def retry_at(self, now: float) -> float:
        """Return when to ask again (clock seconds): `now`, or 0.1 to 1.0 s later while the quota is exceeded.

        Between these limits it is the earliest time at which the quota may no longer be exceeded.
        """
        if not self.is_quota_exceeded():
            return now
        if not self._upper_bound:
            return now + RETRY_MAX_SECONDS
        falls_at = self._measured.falls_to(self._upper_bound)
        return min(max(falls_at, now + RETRY_MIN_SECONDS), now + RETRY_MAX_SECONDS)
