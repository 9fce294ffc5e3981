"""What one side counts for the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from quota.broker_ids import MOST_IDS, NO_BROKER
from quota.counters import IntervalCounts

MOST_TOPICS = 100_000
"""Topics whose bytes are counted one by one."""

NO_TOPIC = b""
"""What is counted together of all further topics."""


@dataclass(slots=True)
class ThrottleStats:
    """Plain counters for the metrics; bytes are record bytes, topics UTF-8."""

    replication_bytes: dict[tuple[int, bool], int] = field(default_factory=lambda: defaultdict(int))
    """By peer, and whether the partition is throttled."""
    partition_bytes: dict[bytes, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """By topic and partition; a topic that no replica has fetched for long is forgotten. NO_TOPIC is all beyond
    MOST_TOPICS."""
    cut_bytes: int = 0
    partitions_left_out: int = 0
    offset_probes: int = 0
    full_fetches_received: int = 0
    """From v7 on: fetches of followers that list all that they want. In the steady state there are none."""
    full_fetches_sent: int = 0
    """The same, of our own to leaders."""
    sessions_evicted: int = 0
    """Fetch sessions of followers that gave way to another's, as KIP-227 says."""
    interval: IntervalCounts | None = None
    """What is counted for the next sample; None while nobody takes samples."""

    def sizes(self, topic: bytes) -> Counter[int]:
        """What the bytes of a topic are counted in, by partition."""
        if topic not in self.partition_bytes and len(self.partition_bytes) >= MOST_TOPICS:
            topic = NO_TOPIC
        return self.partition_bytes[topic]

    def count_replication(self, peer: int, is_throttled: bool, size: int) -> None:
        """Count bytes of a peer's links."""
        key = peer, is_throttled
        if key not in self.replication_bytes and len(self.replication_bytes) >= 2 * MOST_IDS:
            key = NO_BROKER, is_throttled
        self.replication_bytes[key] += size
