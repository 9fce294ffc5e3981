"""Closes connections that never send a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.relay.open_link import OpenLink

FIRST_REQUEST_SECONDS: Final = 600.0
"""As Kafka's connections.max.idle.ms."""

_SMALLEST_REQUEST: Final = 12  # bytes: its size, kind, version and correlation id
_SWEEP_SECONDS: Final = 1.0


@dataclass(eq=False, slots=True)
class FirstRequests:
    """The links whose first request is due, the oldest first. `clock` gives monotonic seconds.

    Each has `seconds`. One timer serves all: with thousands of links one for each would cost more than the links.
    """

    clock: Callable[[], float]
    seconds: float = FIRST_REQUEST_SECONDS
    """How long a link may send nothing. It may be changed at any time, and counts for all links."""
    _since: dict[OpenLink, float] = field(default_factory=dict)
    _sweep: asyncio.TimerHandle | None = None

    def expect(self, link: OpenLink) -> None:
        """Await a link's first request from now on."""
        self._since[link] = self.clock()
        self._watch()

    def drop(self, link: OpenLink) -> None:
        """Forget a link, which is closed."""
        self._since.pop(link, None)

    def expire(self) -> None:
        """Close the links whose time is over."""
        before = self.clock() - self.seconds
        due = []
        for link, since in self._since.items():
            if since > before:
                break
            due.append(link)
        for link in due:
            del self._since[link]
            if link.relayed.requests < _SMALLEST_REQUEST:
                link.evict("no_request_came")

    def _watch(self) -> None:
        if self._sweep is None and self._since:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._expire_and_watch)

    def _expire_and_watch(self) -> None:
        self._sweep = None
        self.expire()
        self._watch()
