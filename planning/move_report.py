# SPDX-License-Identifier: Apache-2.0
"""What a plan costs: bytes by broker, the part of the partitions that move, and the time under a throttle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weir.planning.arithmetic import Move, move_ratio, move_seconds
from weir.planning.assignment import Brokers, Partition


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What a plan means for one broker: replicas that come and go, bytes that it receives and sends."""

    broker: int
    replicas: int
    replicas_then: int
    bytes_received: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class MoveReport:
    """What a plan costs. `partitions` are all of the cluster's."""

    loads: tuple[BrokerLoad, ...]
    moving: int
    partitions: int

    @property
    def ratio(self) -> float:
        """MoveRatio (KIP-73)."""
        return move_ratio(self.moving, self.partitions) if self.partitions else 0.0

    @property
    def total(self) -> int:
        """All bytes that are copied."""
        return sum(load.bytes_received for load in self.loads)

    @property
    def busiest(self) -> BrokerLoad | None:
        """The broker that receives or sends most: it is the last to be done. None where nothing is copied."""
        found = max(self.loads, key=lambda load: max(load.bytes_received, load.bytes_sent), default=None)
        return found if found is not None and (found.bytes_received or found.bytes_sent) else None

    def seconds(self, throttle: int, bytes_in: float) -> float:
        """Return how long it takes under a throttle (bytes/s), beside what comes into a broker (KIP-73, Q&A 1).

        QuotaTooLow where it would never end.
        """
        busiest = self.busiest
        if busiest is None:
            return 0.0
        to_move = max(busiest.bytes_received, busiest.bytes_sent)
        return move_seconds(Move(to_move=to_move, bytes_in=bytes_in), throttle)


def report(
    current: Mapping[Partition, Brokers],
    proposed: Mapping[Partition, Brokers],
    leaders: Mapping[Partition, int],
    sizes: Mapping[Partition, int],
    brokers: Collection[int],
    partitions: int,
) -> MoveReport:
    """Work out what a plan costs. `sizes` are each partition's bytes; the leader sends all that is copied of it."""
    received, sent = Counter(dict.fromkeys(brokers, 0)), Counter[int]()
    moving = 0
    for partition, before in current.items():
        added = set(proposed[partition]) - set(before)
        moving += set(proposed[partition]) != set(before)
        size = sizes.get(partition, 0)
        received.update(dict.fromkeys(added, size))
        if added:
            sent[leaders[partition]] += size * len(added)
    loads = tuple(
        BrokerLoad(
            broker,
            sum(broker in replicas for replicas in current.values()),
            sum(broker in replicas for replicas in proposed.values()),
            received[broker],
            sent[broker],
        )
        for broker in sorted({*received, *sent} - {-1})
    )
    return MoveReport(loads, moving, partitions)
