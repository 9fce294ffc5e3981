# SPDX-License-Identifier: Apache-2.0
"""Leases of changes over HTTP: reads them, and puts the layer below in force when they end."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from weir.proxy.config.reader import read_table
from weir.proxy.config.tables import LeaseTable
from weir.proxy.layers import FOREVER, Entry, Lease, Path
from weir.proxy.log import EventLog

LEASE_KEY: Final = "lease"


def read_lease(body: Mapping[str, Any], now: float) -> Lease:
    """Return the lease that a body asks for at `now` (clock seconds), or one that never ends; else ConfigError."""
    if (wanted := body.get(LEASE_KEY)) is None:
        return FOREVER
    asked = read_table(LeaseTable, wanted, LEASE_KEY)
    return Lease(now + asked.seconds, asked.owner, asked.reason)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of HTTP's layer on its way to a process that takes over. Without a `value` it removes what is below.

    Both processes read the same clock.
    """

    path: tuple[str, ...]
    value: Any = None
    expires_at: float = math.inf
    owner: str = ""
    reason: str = ""

    @property
    def lease(self) -> Lease:
        """How long it holds."""
        return Lease(self.expires_at, self.owner, self.reason)


def handed_over(path: Path, entry: Entry, plain: Callable[[Any], object]) -> Setting:
    """Return an entry of HTTP's layer as another process takes it. `plain` makes its value one of JSON."""
    value = None if entry.value is None else plain(entry.value)
    expires_at, owner, reason = entry.lease
    return Setting(path=path, value=value, expires_at=expires_at, owner=owner, reason=reason)


class Leased(Protocol):
    """Settings of which some end by themselves."""

    def next_expiry(self) -> float:
        """Return when the next lease ends (clock seconds); inf where none does."""

    def expire(self) -> list[Lease]:
        """Drop what has ended. Returns the leases."""


@dataclass(eq=False)
class Expiry:
    """Ends the leases of `settings`. Each is counted and logged as an `event`, with its `effect`.

    `clock` gives monotonic seconds.
    """

    _event: str
    _settings: Leased
    _expired: Counter[str]
    _log: EventLog
    _clock: Callable[[], float]
    _effect: str = "what was set below it, as in the file, is in force again"
    _timer: asyncio.TimerHandle | None = field(init=False, default=None)

    def watch(self) -> None:
        """Await the next end, as the leases are now."""
        self.close()
        seconds = self._settings.next_expiry() - self._clock()
        if seconds != math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._expire)

    def close(self) -> None:
        """Await no lease's end any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        for lease in self._settings.expire():
            self._expired[self._event] += 1
            self._log.info(self._event, owner=lease.owner or "nobody", reason=lease.reason, effect=self._effect)
