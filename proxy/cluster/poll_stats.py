# SPDX-License-Identifier: Apache-2.0
"""What the polls of the cluster cost, as counters and as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from weir.proxy.admin.exposition import Family, counter, gauge


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


def poll_families(polled: PollStats, now: float) -> Iterator[Family]:
    """Yield every metric family of the polls; `now` is in clock seconds."""
    yield counter(
        "weir_cluster_polls",
        "Questions to the cluster, by what was asked for and the result.",
        sorted(polled.polls.items()),
        "what result",
    )
    seconds = {what: round(seconds, 6) for what, seconds in sorted(polled.seconds.items())}
    yield gauge("weir_cluster_poll_seconds", "How long the last question took.", seconds, "what")
    sizes = dict(sorted(polled.bytes.items()))
    yield counter("weir_cluster_poll_bytes", "Bytes sent and received for questions.", sizes, "what")
    yield gauge("weir_cluster_view_age_seconds", "How old what is known of topics is.", _age(polled.confirmed_at, now))
    yield gauge(
        "weir_kafka_throttle_age_seconds",
        "How old what is known of Kafka's own throttle is; the last that was read stays in force.",
        _age(polled.throttle_read_at, now),
    )


def _age(at: float | None, now: float) -> list[tuple[tuple[()], float]]:
    return [] if at is None else [((), round(now - at, 3))]
