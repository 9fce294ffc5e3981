# SPDX-License-Identifier: Apache-2.0
"""Which replicas a quota covers that needs no list of topics: by what the cluster says of them, or by their names."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from weir.lag.broker_ids import NO_BROKER
from weir.quota.throttled_replicas import EVERY_PARTITION, NO_PARTITION, AnyOf, Partitions


class Ends(NamedTuple):
    """The brokers of a link: the one that follows, and the other one as this sidecar sees it."""

    follower: int
    other: int


@dataclass(slots=True)
class Appeared:
    """Partitions of a topic that a follower began to ask for, the last of them at `at` (clock seconds)."""

    partitions: set[int]
    at: float


@dataclass(slots=True)
class ClusterFacts:
    """What the cluster said last, as far as scopes need it. Topics are names (UTF-8)."""

    adding: Mapping[bytes, Mapping[int, frozenset[int]]] | None = None
    """The brokers to which a reassignment adds a replica, by topic and partition; None while it is not known."""
    racks: Mapping[int, str | None] = field(default_factory=dict)
    """The rack of each broker that is known; None where one has no rack."""
    under_min_isr: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    """The partitions that have fewer replicas in sync than `min.insync.replicas`."""
    told_lists: frozenset[bytes] | None = None
    """The topics whose lists of throttled replicas were told; None where lists do not come from elsewhere."""
    asked_at: float = math.inf
    """When the cluster was asked for `adding` (clock seconds)."""
    appeared: dict[tuple[bytes, int], Appeared] = field(default_factory=dict)
    """What is asked for since then, by topic (as on the wire) and follower: nobody has told yet whether it is added."""
    appeared_count: int = 0  # partitions of them
    _added_anywhere: dict[int, frozenset[int]] = field(default_factory=dict)

    def forget_appeared(self, before: float) -> bool:
        """Forget what appeared before this time. Returns whether there was anything."""
        told = [key for key, one in self.appeared.items() if one.at < before]
        for key in told:
            self.appeared_count -= len(self.appeared.pop(key).partitions)
        return bool(told)

    def take_adding(self, adding: Mapping[bytes, Mapping[int, frozenset[int]]]) -> None:
        """Take what reassignments add."""
        anywhere: dict[int, set[int]] = {}
        for moves in adding.values():
            for partition, brokers in moves.items():
                for broker in brokers:
                    anywhere.setdefault(broker, set()).add(partition)
        self.adding = adding
        self._added_anywhere = {broker: frozenset(partitions) for broker, partitions in anywhere.items()}

    def surely_added(self, topic: bytes | None, follower: int) -> frozenset[int]:
        """Return the partitions of a topic of which a reassignment is known to add a replica on `follower`."""
        moves = None if topic is None or self.adding is None else self.adding.get(topic)
        if not moves:
            return NO_PARTITION
        return frozenset([partition for partition, brokers in moves.items() if follower in brokers])

    def perhaps_added(self, topic: bytes | None, follower: int) -> Partitions:
        """Return those of which one may be added, as far as it is known."""
        if self.adding is None:
            return EVERY_PARTITION
        return self._added_anywhere.get(follower, NO_PARTITION) if topic is None else self.surely_added(topic, follower)


class Scope(ABC):
    """The replicas that a quota covers. What cannot be told yet counts as covered as far as it may be."""

    counts_in_sync: ClassVar[bool]  # whether bytes of replicas in sync count in the quota. They are never held back

    @property
    def topics(self) -> tuple[str, ...] | None:
        """Patterns of the topics that have covered replicas, as of a shell (`orders*`); None: topics of any name."""
        return None

    def is_on(self, ends: Ends, racks: Mapping[int, str | None]) -> bool:
        """Whether it covers replicas on a link."""
        return True

    @abstractmethod
    def partitions(self, facts: ClusterFacts, topic: bytes | None, follower: int, key: bytes) -> Container[int]:
        """Return which partitions of a topic are covered. `topics` and `is_on` have said that some may be.

        `topic` is None while its name is not known; `key` is the topic as on the wire.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Listed(Scope):
    """The replicas in lists, by topic; `anywhere` are those of all topics. `is_rated`: the lists have a rate."""

    counts_in_sync: ClassVar[bool] = True
    lists: Mapping[bytes, Partitions] = field(default_factory=dict)
    anywhere: Partitions = NO_PARTITION
    is_rated: bool = False

    def partitions(self, facts: ClusterFacts, topic: bytes | None, follower: int, key: bytes) -> Container[int]:
        told = facts.told_lists
        if topic is not None and (told is None or topic in told or topic in self.lists):
            return self.lists.get(topic, NO_PARTITION)
        if not self.is_rated:
            return NO_PARTITION
        return self.anywhere if told is None else EVERY_PARTITION


@dataclass(frozen=True, slots=True)
class Reassigned(Scope):
    """The replicas that a reassignment is adding."""

    counts_in_sync: ClassVar[bool] = False
    spares_under_min_isr: bool = True

    def partitions(self, facts: ClusterFacts, topic: bytes | None, follower: int, key: bytes) -> Container[int]:
        added: Container[int] = facts.perhaps_added(topic, follower)
        if (appeared := facts.appeared.get((key, follower))) is not None:
            added = AnyOf((added, appeared.partitions))
        spared = _spared(self.spares_under_min_isr, facts, topic)
        return AnyOf((added,), spared) if spared else added


@dataclass(frozen=True, slots=True)
class Recovering(Scope):
    """The replicas behind that no reassignment is adding, as those of a broker that returns."""

    counts_in_sync: ClassVar[bool] = False
    spares_under_min_isr: bool = True

    def partitions(self, facts: ClusterFacts, topic: bytes | None, follower: int, key: bytes) -> Container[int]:
        excluded = facts.surely_added(topic, follower) | _spared(self.spares_under_min_isr, facts, topic)
        return AnyOf((EVERY_PARTITION,), excluded) if excluded else EVERY_PARTITION


@dataclass(frozen=True, slots=True)
class Matching(Scope):
    """The replicas on links with some brokers, or of some topics; None is any.

    `racks` are those of the other broker. One whose rack nobody has told counts as being in one of them.
    """

    counts_in_sync: ClassVar[bool] = True
    peers: frozenset[int] | None = None
    racks: frozenset[str] | None = None
    topics: tuple[str, ...] | None = None

    def is_on(self, ends: Ends, racks: Mapping[int, str | None]) -> bool:
        if self.peers is not None and ends.other not in self.peers and ends.other != NO_BROKER:
            return False
        return self.racks is None or ends.other not in racks or racks[ends.other] in self.racks

    def partitions(self, facts: ClusterFacts, topic: bytes | None, follower: int, key: bytes) -> Container[int]:
        return EVERY_PARTITION


def _spared(spares: bool, facts: ClusterFacts, topic: bytes | None) -> frozenset[int]:
    """Return the partitions of a topic that are known to be under their min ISR, where these are to be spared."""
    return facts.under_min_isr.get(topic, NO_PARTITION) if spares and topic is not None else NO_PARTITION
