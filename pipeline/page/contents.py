# SPDX-License-Identifier: Apache-2.0
"""The contents of a page, as read from the tables. Times are UTC, rates bytes/s.

A series has a value for each column of the time line; None is a column without samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from weir.pipeline.page.replica import Replica
from weir.pipeline.page.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Columns:
    """The range from `since` up to but without `until`, cut from `first` on into `count` columns of `seconds` each.

    `first` is a multiple of `seconds` in UTC, so the first and the last column may lie partly outside the range.
    """

    since: datetime
    until: datetime
    first: datetime
    seconds: int
    count: int


@dataclass(frozen=True, slots=True)
class Replication:
    """Replication of a broker on one side, of throttled replicas or of the others: as a whole and by column."""

    size: int
    mean: float
    highest: float
    means: tuple[float | None, ...]
    peaks: tuple[float | None, ...]  # the highest sample of each column


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """One broker on one side. `quotas` has the last quota in force in each column."""

    broker_id: int
    side: str
    throttled: Replication
    unthrottled: Replication
    quotas: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class BrokerClients:
    """What clients read and wrote through a broker's sidecar, by column."""

    broker_id: int
    read: tuple[float | None, ...]
    written: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class PartitionBytes:
    """Bytes in of a partition, on the side that saw more of them. Bytes for several followers count several times."""

    topic: str
    partition: int
    side: str
    size: int
    highest: float
    means: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class QuotaAccuracy:
    """What one quota did on a broker and side in the range, over the `spans` in which it stayed the same.

    Ratios are None at rate 0.
    """

    broker_id: int
    side: str
    quota_id: str
    rate: int
    policy: str
    spans: int
    start: datetime
    end: datetime
    seconds: float
    worst_1s: float | None
    worst_10s: float | None
    seconds_over: float
    seconds_left_out: float
    bytes_left_out: int

    @property
    def mean_left_out(self) -> float | None:
        """The mean rate over the quota while partitions were left out; None where none were."""
        allowed = self.rate * self.seconds_left_out
        return 1 - self.bytes_left_out / allowed if allowed else None


@dataclass(frozen=True, slots=True)
class Move:
    """A span in which a replica was behind.

    `end` is None where it has not caught up; `seen_until` is then the last sample.
    """

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
        """The seconds during which it was seen out of sync."""
        return (self.seen_until - self.start).total_seconds()


@dataclass(frozen=True, slots=True)
class Brokers:
    """Brokers, of `count`: those held back longest, then those with the most bytes.

    `size` is that of all brokers, on the side that saw more bytes, and `throttled_size` that of throttled replicas. A
    quota on one side leaves the other side's bytes unthrottled. `clients` are of those shown that any client passed.
    """

    count: int = 0
    size: int = 0
    throttled_size: int = 0
    shown: tuple[BrokerSide, ...] = ()
    clients: tuple[BrokerClients, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions with the most bytes in, of `count` partitions with `size` bytes in together."""

    count: int = 0
    size: int = 0
    shown: tuple[PartitionBytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The quotas with the worst seconds, of `count`. The figures of `reaching_out` are also of other times."""

    count: int = 0
    worst_1s: float | None = None
    shown: tuple[QuotaAccuracy, ...] = ()
    reaching_out: int = 0


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of the replicas with the most bytes, ordered by their begin; of `replicas` and `count` moves.

    The figures of `reaching_out` are of whole days that the range touches.
    """

    replicas: int = 0
    count: int = 0
    unfinished: int = 0
    shown: tuple[Move, ...] = ()
    reaching_out: int = 0


@dataclass(frozen=True, slots=True)
class Away:
    """A span in which a follower had no connection. `end` is None where it was not seen to come back."""

    broker_id: int
    start: datetime
    end: datetime | None
    seen_until: datetime

    @property
    def seconds(self) -> float:
        """The seconds for which it was seen to be away."""
        return (self.seen_until - self.start).total_seconds()


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the page was made of: samples that are `missing` or `quarantined` in the range, and of which clusters.

    `made_at` is when the newest of its tables were built, `until` when the last sample ended.
    """

    clusters: tuple[str, ...] = ()
    made_at: str | None = None
    until: str | None = None
    missing: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class SlowReplicas:
    """The longest of `count` spans. No replica was stuck for longer than `most_stuck_seconds` in one of them.

    The figures of `reaching_out` are of whole days that the range touches.
    """

    count: int = 0
    most_stuck_seconds: float = 0.0
    shown: tuple[SlowReplica, ...] = ()
    reaching_out: int = 0


@dataclass(frozen=True, slots=True)
class LimitedClient:
    """A client with a limit by records. `highest_mean` is that of a window, in records/s over all brokers."""

    client_id: str
    role: str
    connector: str | None
    task: int | None
    limit: float | None
    records: int
    highest_mean: float
    highest_second: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class LimitedClients:
    """Those of `count` that waited longest."""

    count: int = 0
    shown: tuple[LimitedClient, ...] = ()


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything on a page.

    `columns` is None where neither the tables nor the caller give a range: the page is then empty, and there is no
    `verdict`. Those of partitions are a minute wide at least.
    """

    columns: Columns | None = None
    brokers: Brokers = Brokers()
    partitions: Partitions = Partitions()
    accuracy: Accuracy = Accuracy()
    moves: Moves = Moves()
    slow: SlowReplicas = SlowReplicas()
    away: tuple[Away, ...] = ()
    coverage: Coverage = Coverage()
    limited: LimitedClients = LimitedClients()
    partition_columns: Columns | None = None
    verdict: Verdict | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no table has a row in the range."""
        counts = (self.brokers.count, self.partitions.count, self.accuracy.count, self.moves.count, self.slow.count)
        return not any(counts) and not self.limited.count
