# SPDX-License-Identifier: Apache-2.0
"""Whether a capture is paused: connections pass beside the sidecar until somebody resumes it, or the lease ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from weir.proxy.config.reader import ConfigError
from weir.proxy.expiry import LEASE_KEY, Expiry, read_lease
from weir.proxy.layers import Lease
from weir.proxy.log import EventLog


class Pause:
    """The pause of one capture. `changed` is called when it begins and ends; `clock` gives monotonic seconds."""

    def __init__(self, changed: Callable[[], None], log: EventLog, clock: Callable[[], float]) -> None:
        self.lease: Lease | None = None
        """Until when it is paused; None: it is not."""
        self._changed = changed
        self._clock = clock
        self._ends = Expiry("capture_pause_expired", self, Counter(), log, clock, "it captures again")

    def begin(self, asked: object) -> None:
        """Pause, in place of a pause that is there. `asked` may have a `lease`; else ConfigError."""
        if not isinstance(asked, Mapping) or asked.keys() - {LEASE_KEY}:
            raise ConfigError("body", 'must be empty, or {"lease": {"seconds": 600}}')
        self._set(read_lease(asked, self._clock()))

    def end(self) -> None:
        """Capture again, whatever is left of the lease."""
        self._set(None)

    def close(self) -> None:
        """Await no lease's end any more."""
        self._ends.close()

    def next_expiry(self) -> float:
        """Return when the pause ends by itself (clock seconds); inf where it does not."""
        return math.inf if self.lease is None else self.lease.expires_at

    def expire(self) -> list[Lease]:
        """End a pause whose lease has ended. Returns the lease."""
        lease = self.lease
        if lease is None or lease.expires_at > self._clock():
            return []
        self.end()
        return [lease]

    def as_plain(self) -> dict[str, Any]:
        """Return whether it is paused, and what is left of the lease."""
        lease = self.lease
        if lease is None or lease.expires_at == math.inf:
            return {"paused": lease is not None}
        seconds = round(max(0.0, lease.expires_at - self._clock()), 1)
        return {"paused": True, "expires_in_seconds": seconds, "owner": lease.owner, "reason": lease.reason}

    def handed_over(self) -> dict[str, Any] | None:
        """Return what `begin` is to be called with in a process that takes over; None where it is not paused."""
        if self.lease is None or self.lease.expires_at == math.inf:
            return None if self.lease is None else {}
        seconds = max(1.0, self.lease.expires_at - self._clock())
        return {LEASE_KEY: {"seconds": seconds, "owner": self.lease.owner, "reason": self.lease.reason}}

    def sentence(self) -> str | None:
        """Return that it is paused, and until when, without a full stop; None where it is not."""
        if self.lease is None:
            return None
        told = self.as_plain()
        left = f" for {told['expires_in_seconds']:.0f} s more" if "expires_in_seconds" in told else ""
        said = ": ".join(text for text in (self.lease.owner, self.lease.reason) if text)
        who = f" ({said})" if said else ""
        way = "connections pass beside weir, unthrottled; `weir capture resume` ends this"
        return f"the capture is paused{left}{who}: {way}"

    def _set(self, lease: Lease | None) -> None:
        self.lease = lease
        self._ends.watch()
        self._changed()
