"""A request that waits until its time is up, until something changes, or until its link is closed."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from weir.protocol.framing import ReplicaFetch, RequestBegins
from weir.proxy.relay.outcomes import Hold
from weir.proxy.relay.side import Holder, Side

_SHORTEST_HOLD_SECONDS: Final = 0.001  # a loop's timers are no finer; a shorter hold would spin

Holdable = ReplicaFetch | RequestBegins


class HeldRequest:
    """The one request of `link` that is held. When its time is up, the relay's line calls `link.replan`."""

    __slots__ = ("_line", "_link", "_now", "_timer", "again", "request")

    def __init__(self, link: Holder, relay: Side, request: Holdable, hold: Hold) -> None:
        self.request = request
        self.again = hold.again
        """Plans the request again, and returns what becomes of it."""
        self._link = link
        self._line = relay.held
        self._now = relay.clock
        self._timer: asyncio.TimerHandle | None = None
        if hold.waits_for_budget is not None:
            self._line.add(link, hold.waits_for_budget)
        self.wait(hold)

    @property
    def size(self) -> int:
        """The bytes of it that are kept. A request that is streamed waits in its client's socket."""
        return len(self.request.frame) if isinstance(self.request, ReplicaFetch) else 0

    def wait(self, hold: Hold) -> None:
        """Wait as `hold` says; earlier holds no longer count."""
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
