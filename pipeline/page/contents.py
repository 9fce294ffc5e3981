"""What a page shows, as the tables tell it. Times are UTC, rates bytes/s.

Series have a value for each column of the time line; None is a column without samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Columns:
    """The range from `since` to before `until`, cut into `count` columns of `seconds` each, from `first` on.

    `first` is a multiple of `seconds` in UTC, so the first and last column may lie partly outside the range.
    """

    since: datetime
    until: datetime
    first: datetime
    seconds: int
    count: int


@dataclass(frozen=True, slots=True)
class Replication:
    """Replication of a broker on a side, of throttled replicas or of the others: in all, and by column."""

    size: int
    mean: float
    highest: float
    means: tuple[float | None, ...]
    peaks: tuple[float | None, ...]  # the highest sample of each column


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """`quotas` is the last quota in force in each column."""

    broker_id: int
    side: str
    throttled: Replication
    unthrottled: Replication
    quotas: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class PartitionBytes:
    """Bytes in of a partition on the side that saw more of it, once for each follower."""

    topic: str
    partition: int
    side: str
    size: int
    highest: float
    means: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class QuotaAccuracy:
    """What one quota did on a broker and side, over `spans` in which it stayed the same; ratios are None at rate 0."""

    broker_id: int
    side: str
    quota_id: str
    rate: int
    policy: str
    spans: int
    start: datetime
    end: datetime
    seconds: float
    mean: float | None
    worst_1s: float | None
    worst_10s: float | None
    seconds_over: float
    bytes_left_out: int


@dataclass(frozen=True, slots=True)
class Replica:
    topic: str
    partition: int
    broker_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on {self.broker_id}"


@dataclass(frozen=True, slots=True)
class Move:
    """A span in which a replica was behind; `seen_until` is `end` where it has caught up (`end` is else None)."""

    replica: Replica
    start: datetime
    end: datetime | None
    seen_until: datetime
    size: int
    throttled_size: int
    rate: float | None
    quota: int | None
    longest_stall: float


@dataclass(frozen=True, slots=True)
class SlowReplica:
    """A span in which a replica was out of sync."""

    replica: Replica
    start: datetime
    end: datetime | None
    seen_until: datetime
    max_lag_messages: int
    stuck_spans: int
    stuck_seconds: float

    @property
    def seconds(self) -> float:
        """How long it was seen out of sync."""
        return (self.seen_until - self.start).total_seconds()


@dataclass(frozen=True, slots=True)
class Brokers:
    """Those with the most bytes, of `count`. `size` is what the side that saw more tells of, over all of them.

    `throttled_size` is the same of throttled replicas: a quota on one side leaves the other side's bytes unthrottled.
    """

    count: int = 0
    size: int = 0
    throttled_size: int = 0
    shown: tuple[BrokerSide, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitions:
    """Those with the most bytes in, of `count` with `size` bytes in together."""

    count: int = 0
    size: int = 0
    shown: tuple[PartitionBytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The quotas with the worst second, of `count`."""

    count: int = 0
    worst_1s: float | None = None
    shown: tuple[QuotaAccuracy, ...] = ()


@dataclass(frozen=True, slots=True)
class Moves:
    """Moves of the replicas with the most bytes, in the order in which those began, of `replicas` and `count`."""

    replicas: int = 0
    count: int = 0
    unfinished: int = 0
    shown: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class SlowReplicas:
    """The longest spans of `count`, which have been stuck for `stuck_seconds` together."""

    count: int = 0
    stuck_seconds: float = 0.0
    shown: tuple[SlowReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """All of a page. Without `columns` neither the tables nor whoever asked names a range, and there is nothing."""

    columns: Columns | None = None
    brokers: Brokers = Brokers()
    partitions: Partitions = Partitions()
    accuracy: Accuracy = Accuracy()
    moves: Moves = Moves()
    slow: SlowReplicas = SlowReplicas()

    @property
    def is_empty(self) -> bool:
        counts = (self.brokers.count, self.partitions.count, self.accuracy.count, self.moves.count, self.slow.count)
        return not any(counts)
