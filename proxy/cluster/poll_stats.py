"""What the polls of the cluster cost, as counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class PollStats:
    """Counters by what is polled: `polls` also by result (`ok`, `failed`), `seconds` of the last one, `bytes` of all.

    `confirmed_at` is when the view was last confirmed, `throttle_read_at` when Kafka's throttle was last read whole
    (clock seconds); None before the first time.
    """

    polls: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: Counter[str] = field(default_factory=Counter)
    confirmed_at: float | None = None
    throttle_read_at: float | None = None

    def known(self, what: str) -> None:
        """Show `what` as 0 from the start: Prometheus's rate() needs a sample before the first event."""
        for result in ("ok", "failed"):
            self.polls[what, result] += 0
        self.bytes[what] += 0

    def count(self, what: str, result: str, seconds: float, size: int) -> None:
        """Count one poll: its result, its seconds, and the bytes sent and received for it."""
        self.polls[what, result] += 1
        self.seconds[what] = seconds
        self.bytes[what] += size
