"""Puts the layer below in force when a change of the throttle with a lease ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from weir.proxy.admin.metrics import ProcessStats
from weir.proxy.log import EventLog
from weir.proxy.throttle.table import LayeredThrottle


class Expiry:
    """Ends the leases of `throttle`, and counts and logs each. `clock` gives monotonic seconds."""

    def __init__(
        self, throttle: LayeredThrottle, stats: ProcessStats, log: EventLog, clock: Callable[[], float]
    ) -> None:
        self._throttle = throttle
        self._stats = stats
        self._log = log
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Await the next end, as the leases are now."""
        self.close()
        seconds = self._throttle.next_expiry() - self._clock()
        if seconds != math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._expire)

    def close(self) -> None:
        """Await nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        for lease in self._throttle.expire():
            self._stats.throttles_expired += 1
            effect = "the file's throttle and Kafka's are in force again where it was"
            self._log.info("throttle_expired", owner=lease.owner or "nobody", reason=lease.reason, effect=effect)
