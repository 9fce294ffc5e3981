# SPDX-License-Identifier: Apache-2.0
"""What one side counts, for the metrics and between two samples: record bytes and clock seconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from weir.lag.broker_ids import MOST_IDS, NO_BROKER
from weir.protocol.records import RecordsSeen
from weir.quota.figures import MOST_TOPICS


class PartitionCounts(NamedTuple):
    """Some partitions of a topic on all links with one peer: bytes, and whole batches."""

    unthrottled: list[int]
    throttled: list[int]
    cut: list[int]
    batches: list[int]


NO_TOPIC: Final = b""  # the key under which all further topics are counted together
MOST_QUOTAS: Final = 10_000  # of one interval, with those changed in it: further ones are not counted
_FIELDS = len(PartitionCounts._fields)
_CUT, _BATCHES = map(PartitionCounts._fields.index, ("cut", "batches"))


class TopicCounts(dict[int, int]):
    """The partitions of one topic that changed in the interval: one number for each field of each, by partition x
    _FIELDS + field.

    An object per partition would set off garbage collections.
    """

    __slots__ = ()

    def __missing__(self, key: int) -> int:
        return 0

    def count(self, seen: RecordsSeen, is_throttled: bool) -> None:
        """Count the records that an answer had of a partition."""
        first = seen.partition * _FIELDS
        self[first + is_throttled] += seen.size
        if seen.batches:
            self[first + _BATCHES] += seen.batches
        if seen.cut_bytes:
            self[first + _CUT] += seen.cut_bytes

    def touch(self, partition: int) -> None:
        """Count nothing, but make sure that a partition gets a line in the sample: it is behind, or its lag changed."""
        self[partition * _FIELDS] += 0

    def partitions(self) -> Iterator[int]:
        """Yield the partition of each number that was counted, so each partition several times."""
        return (key // _FIELDS for key in self)

    def columns(self, partitions: Sequence[int]) -> PartitionCounts:
        """Return the counts of `partitions`, in their order."""
        get = self.get
        return PartitionCounts(
            *[[get(partition * _FIELDS + field, 0) for partition in partitions] for field in range(_FIELDS)]
        )


@dataclass(slots=True)
class LinkCounts:
    """Counts of all links with one peer."""

    throttled: int = 0
    unthrottled: int = 0
    cut: int = 0
    fetches: int = 0  # answers that passed whole
    fetches_held: int = 0
    left_out: int = 0
    topics: dict[bytes, TopicCounts] = field(default_factory=lambda: defaultdict(TopicCounts))
    """Topics that changed; only those whose names are known."""


class CountedQuota(NamedTuple):
    """What a sample tells of a quota beside its bytes. `mode` is None where it holds back what is too much."""

    name: str
    rate: int
    policy: str
    mode: Literal["observe", "shared"] | None = None


@dataclass(slots=True)
class QuotaCounts:
    """A quota while its settings stayed the same; `end` is None while it is in force."""

    settings: CountedQuota
    begin: float
    end: float | None = None
    seconds: dict[int, int] = field(default_factory=dict)
    """Throttled bytes that passed, by whole second of the clock: second n is from n to n + 1."""


@dataclass(slots=True)
class IntervalCounts:
    """One side's counts since `begin`."""

    begin: float
    links: dict[int, LinkCounts] = field(default_factory=dict)  # by the other broker's id
    quotas: list[QuotaCounts] = field(default_factory=list)
    in_force: dict[str, QuotaCounts] = field(default_factory=dict)  # those of `quotas` that are in force, by name

    def link(self, peer: int) -> LinkCounts:
        """Return the counts of the links with `peer`; they are made at the first use."""
        counts = self.links.get(peer)
        if counts is None:
            counts = self.links[peer] = LinkCounts()
        return counts

    def set_quotas(self, wanted: Iterable[CountedQuota], now: float) -> None:
        """Begin quotas, and end those that are not among `wanted` any more."""
        by_name = {quota.name: quota for quota in wanted}
        for name, quota in list(self.in_force.items()):
            if by_name.get(name) != quota.settings:
                quota.end = now
                del self.in_force[name]
        for name, settings in by_name.items():
            if name not in self.in_force and len(self.quotas) < MOST_QUOTAS:
                self.in_force[name] = QuotaCounts(settings, now)
                self.quotas.append(self.in_force[name])

    def record(self, name: str, now: float, size: int) -> None:
        """Count bytes of a quota that passed, where it is in force."""
        quota = self.in_force.get(name)
        if quota is not None:
            quota.seconds[int(now)] = quota.seconds.get(int(now), 0) + size


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
