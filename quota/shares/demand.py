"""How much of a shared rate a member wants, from what it used and whether something waited."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

SECONDS: Final = 3
"""Of so many seconds the one with the most use counts: traffic is not even."""

FULL: Final = 0.95
"""Who uses this part of its share or more would use more."""

HEADROOM: Final = 1.1
"""What is asked for above what is used. More than 1 / FULL, so that a demand that is met does not grow by itself."""


class DemandMeter:
    """Measures one member's demand. `update` is called some times a second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second_at = clock()
        self._used_before: float | None = None
        self._used: deque[float] = deque(maxlen=SECONDS)  # in the last seconds
        self._least_share = math.inf  # of this second
        self._waited: list[bool] = []
        self._wants_all = False

    def update(self, used_bytes: float, share: float, rate: float, *, waits: bool) -> float:
        """Return the demand in bytes/s: `rate` where there is no saying how much more would be used.

        `used_bytes` is all that was used so far, `share` what may be used now; `waits`: whether something waits for it.
        """
        now = self._clock()
        if self._used_before is None:
            self._used_before = used_bytes
        self._least_share = min(self._least_share, share)
        self._waited.append(waits)
        seconds = now - self._second_at
        if seconds >= 1:
            used = (used_bytes - self._used_before) / seconds
            self._used.append(used)
            waits_mostly = 2 * sum(self._waited) > len(self._waited)
            self._wants_all = waits_mostly or 0 < FULL * self._least_share <= used
            self._used_before, self._second_at = used_bytes, now
            self._least_share, self._waited = math.inf, []
        most = max(self._used, default=0.0)
        if self._wants_all or (waits and not most):
            return rate
        return min(rate, HEADROOM * most)
