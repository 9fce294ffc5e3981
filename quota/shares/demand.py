# SPDX-License-Identifier: Apache-2.0
"""How much of a shared rate a member wants, from what it used and whether something waited."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

SECONDS: Final = 5  # use is the mean of so many seconds: traffic is not even
LATEST: Final = 3  # of so many the one with most use counts where that is less: what ended is free sooner
FULL: Final = 0.97  # who uses this part of its share or more would use more
HEADROOM: Final = 1.06  # asked for above what is used; above 1 / FULL, so that a met demand does not grow by itself
LEAST_MORE: Final = 0.03  # twice this part more than is used is asked for, when a large enough share is used up


class DemandMeter:
    """Measures one member's demand. `update` is called some times a second.

    Who uses its share wants all. Who has left a part of it unused asks for a little more when it uses its share again,
    and for twice as much more in each further second. So members that wait for each other need not give back again and
    again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second_at = clock()
        self._used_before: float | None = None
        self._used: deque[float] = deque(maxlen=SECONDS)  # in the last seconds
        self._least_share = math.inf  # of this second
        self._waited: list[bool] = []
        self._wants_more = False
        self._more = math.inf  # what is asked for above what is used, as a part of it

    def update(self, used_bytes: float, share: float, rate: float, *, waits: bool) -> float:
        """Return the demand in bytes/s: `rate` where there is no saying how much more would be used.

        `used_bytes` is all so far, `share` what may be used now; `waits`: whether something waits for it.
        """
        now = self._clock()
        if self._used_before is None:
            self._used_before = used_bytes
        self._least_share = min(self._least_share, share)
        self._waited.append(waits)
        seconds = now - self._second_at
        if seconds >= 1:
            self._look((used_bytes - self._used_before) / seconds)
            self._used_before, self._second_at = used_bytes, now
            self._least_share, self._waited = math.inf, []
        most = max(list(self._used)[-LATEST:], default=0.0)
        if waits and not most:
            return rate
        more = self._more if self._wants_more else HEADROOM - 1
        mean = sum(self._used) / max(1, len(self._used))
        return rate if more >= 1 else min(rate, (1 + more) * min(most, mean))

    def _look(self, used: float) -> None:
        """Take what was used in a second."""
        self._used.append(used)
        # who wanted more goes on to, unless nothing waits half of the time: a look may fall between two turns
        enough = len(self._waited) / 2 if self._wants_more else len(self._waited) - 1
        self._wants_more = sum(self._waited) > enough or 0 < FULL * self._least_share <= used
        if not any(self._used):
            self._more = math.inf
        elif self._wants_more:
            self._more *= 2
        elif sum([one > 0 for one in self._used]) > 1:  # it may have begun in the middle of its first second
            self._more = LEAST_MORE
