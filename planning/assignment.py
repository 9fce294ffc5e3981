# SPDX-License-Identifier: Apache-2.0
"""Which brokers hold a partition, and what a move of partitions changes in that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Brokers = tuple[int, ...]
"""The brokers of a partition's replicas, in order: the first is the preferred leader."""


class Partition(NamedTuple):
    """A partition by name and number, as in KIP-73's `topic` and `[partition]`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Replica(NamedTuple):
    """One broker's copy of a partition."""

    topic: str
    partition: int
    broker: int

    @property
    def of(self) -> Partition:
        """The partition that it is a copy of."""
        return Partition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker}"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move under way, as in ListPartitionReassignments (KIP-455). `replicas` are those to be removed too."""

    replicas: Brokers
    adding_replicas: Brokers
    removing_replicas: Brokers

    @property
    def target(self) -> Brokers:
        """The brokers that have the partition when the move has ended."""
        return tuple(broker for broker in self.replicas if broker not in self.removing_replicas)


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The brokers that have a partition now, and those that are to get it."""

    sources: frozenset[int]
    destinations: frozenset[int]

    @property
    def brokers(self) -> frozenset[int]:
        """All brokers that take part."""
        return self.sources | self.destinations


def planned_moves(
    proposed: Mapping[Partition, Brokers],
    current: Mapping[Partition, Brokers],
    under_way: Mapping[Partition, Reassignment],
) -> dict[Partition, PartitionMove]:
    """Return what has to be copied from where to where, for each partition of a plan.

    `current` has the replicas by the cluster's metadata. Of a partition that is moving already these include what is
    still being added, which is no source yet.
    """
    moves = {}
    for partition, brokers in proposed.items():
        adding = under_way[partition].adding_replicas if partition in under_way else ()
        sources = frozenset(current[partition]) - frozenset(adding)
        moves[partition] = PartitionMove(sources, frozenset(brokers) - sources)
    return moves
