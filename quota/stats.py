"""What one side counts for the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from weir.lag.broker_ids import MOST_IDS, NO_BROKER
from weir.quota.counters import IntervalCounts

MOST_TOPICS = 100_000  # topics whose bytes are counted one by one
NO_TOPIC = b""  # the key under which all further topics are counted together


@dataclass(slots=True)
class ThrottleStats:
    """Plain counters for the metrics; bytes are record bytes, topics UTF-8."""

    replication_bytes: dict[tuple[int, bool], int] = field(default_factory=lambda: defaultdict(int))
    """By peer, and by whether the partition is throttled."""
    partition_bytes: dict[bytes, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """By topic and partition. A topic that no replica has fetched for long is dropped; NO_TOPIC has those beyond
    MOST_TOPICS."""
    cut_bytes: int = 0
    catch_up_beside_throttle: int = 0
    """Bytes of replicas behind that no quota may hold back, while some quota may hold back others."""
    partitions_left_out: int = 0
    offset_probes: int = 0
    taken_out_bytes: int = 0  # records that stayed on the leader's machine
    full_fetches_received: int = 0
    """From v7 on: followers' fetches that list every partition. In the steady state there are none."""
    full_fetches_sent: int = 0  # fetches that weir sends to leaders and that list every partition
    sessions_evicted: int = 0  # followers' fetch sessions that gave way to another one (KIP-227)
    would_leave_out: Counter[str] = field(default_factory=Counter)
    """By quota, of those that only observe: partitions with records that it would have left out."""
    interval: IntervalCounts | None = None  # what is counted for the next sample; None while no samples are taken

    def sizes(self, topic: bytes) -> Counter[int]:
        """Return the counter of a topic's bytes, by partition."""
        if topic not in self.partition_bytes and len(self.partition_bytes) >= MOST_TOPICS:
            topic = NO_TOPIC
        return self.partition_bytes[topic]

    def count_replication(self, peer: int, is_throttled: bool, size: int) -> None:
        """Count bytes of a peer's links."""
        key = peer, is_throttled
        if key not in self.replication_bytes and len(self.replication_bytes) >= 2 * MOST_IDS:
            key = NO_BROKER, is_throttled
        self.replication_bytes[key] += size
