"""A request that waits: until its time, until something changes, or until its link is closed."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from protocol.framing import ReplicaFetch, RequestBegins
from proxy.outcomes import Hold
from proxy.relay import Holder, Relay

_SHORTEST_HOLD_SECONDS: Final = 0.001  # a loop's timers are this coarse; less would spin

Holdable = ReplicaFetch | RequestBegins


class HeldRequest:
    """The one request of `link` that is held. When it is time, the relay's line calls `link.replan`."""

    __slots__ = ("_line", "_link", "_now", "_timer", "again", "request")

    def __init__(self, link: Holder, relay: Relay, request: Holdable, hold: Hold) -> None:
        self.request = request
        self.again = hold.again
        """Tells what becomes of it now."""
        self._link = link
        self._line = relay.held
        self._now = relay.clock
        self._timer: asyncio.TimerHandle | None = None
        if hold.waits_for_budget is not None:
            self._line.add(link, hold.waits_for_budget)
        self.wait(hold)

    @property
    def size(self) -> int:
        """Bytes that are kept of it. A request that streams waits in its client's socket."""
        return len(self.request.frame) if isinstance(self.request, ReplicaFetch) else 0

    def wait(self, hold: Hold) -> None:
        """Wait as `hold` says, and no longer as was said before."""
        self.again = hold.again
        self._stop_timer()
        if math.isfinite(hold.until):
            delay = max(hold.until - self._now(), _SHORTEST_HOLD_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(delay, self._line.wake, (self._link,))

    def end(self) -> None:
        """Wait no more."""
        self._line.remove(self._link)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
