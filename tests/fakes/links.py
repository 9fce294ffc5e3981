# SPDX-License-Identifier: Apache-2.0
"""A link that only remembers what it was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from weir.proxy.relay.open_link import OpenLink, Relayed, Sender, Why
from weir.proxy.relay.outcomes import Wait
from weir.proxy.relay.side import HeldFetches


@dataclass(eq=False)
class FakeLink:
    """An OpenLink that does nothing by itself."""

    client_host: str = "10.0.0.1"
    relayed: Relayed = field(default_factory=Relayed)
    is_reading: bool = True
    session_end: float = float("inf")
    why: str = ""
    """Why it was evicted."""

    def behind(self, most: int) -> bytes:
        """Nothing has come."""
        return b""

    def carry_out(self) -> None:
        """Nothing is asked for."""

    def failed(self, error: Exception, sender: Sender) -> None:
        """Fail the test."""
        raise error

    def replan(self) -> None:
        """Nothing is held."""

    def look_at_client(self) -> None:
        """It is there."""

    def evict(self, why: Why, kept_bytes: int = 0) -> None:
        """Remember why."""
        self.why = why


def waits_for_budget(held: HeldFetches, link: OpenLink, name: object | None = None) -> None:
    """Have a link wait for budget alone, by this name in the throttle's line."""
    held.wait(link, Wait(inf, object() if name is None else name))
