"""Which replicas a quota covers that needs no list of topics: by what the cluster says of them, or by their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, NamedTuple

from weir.quota.throttled_replicas import EVERY_PARTITION, NO_PARTITION


class Ends(NamedTuple):
    """The brokers of a link: the one that follows, and the other one as this sidecar sees it."""

    follower: int
    other: int


@dataclass(slots=True)
class ClusterFacts:
    """What the cluster said last, as far as scopes need it. Topics are names (UTF-8)."""

    adding: Mapping[bytes, Mapping[int, frozenset[int]]]
    """The brokers to which a reassignment adds a replica, by topic and partition."""
    racks: Mapping[int, str | None] | None
    """The rack of each broker; None while it is not known."""
    under_min_isr: Mapping[bytes, frozenset[int]]
    """The partitions that have fewer replicas in sync than `min.insync.replicas`."""


class AllBut:
    """Every partition but some."""

    __slots__ = ("_excluded",)

    def __init__(self, excluded: Container[int]) -> None:
        self._excluded = excluded

    def __contains__(self, partition: object) -> bool:
        return partition not in self._excluded


class Scope(ABC):
    """The replicas that a quota covers. It is never asked about the cluster's metadata log: no quota covers that."""

    counts_in_sync: ClassVar[bool]
    """Whether bytes of replicas in sync count in the quota. They are never held back."""

    @property
    def needs_names(self) -> bool:
        """Whether a topic whose name is not known yet counts as covered for a moment."""
        return False

    @abstractmethod
    def partitions(self, facts: ClusterFacts, topic: bytes | None, ends: Ends) -> Container[int]:
        """Return the partitions of a topic that are covered on a link; None is a name not known yet."""


@dataclass(frozen=True, slots=True)
class Reassigned(Scope):
    """The replicas that a reassignment is adding."""

    counts_in_sync: ClassVar[bool] = False
    spares_under_min_isr: bool = True

    def partitions(self, facts: ClusterFacts, topic: bytes | None, ends: Ends) -> Container[int]:
        if topic is None:
            return NO_PARTITION
        added = _added(facts, topic, ends)
        return added - facts.under_min_isr.get(topic, NO_PARTITION) if self.spares_under_min_isr else added


@dataclass(frozen=True, slots=True)
class Recovering(Scope):
    """The replicas behind that no reassignment is adding, as those of a broker that returns.

    While it is not known what a reassignment adds, every replica behind counts as one of these.
    """

    counts_in_sync: ClassVar[bool] = False
    spares_under_min_isr: bool = True

    def partitions(self, facts: ClusterFacts, topic: bytes | None, ends: Ends) -> Container[int]:
        if topic is None:
            return EVERY_PARTITION
        excluded = _added(facts, topic, ends)
        if self.spares_under_min_isr:
            excluded |= facts.under_min_isr.get(topic, NO_PARTITION)
        return AllBut(excluded) if excluded else EVERY_PARTITION


@dataclass(frozen=True, slots=True)
class Matching(Scope):
    """The replicas on links with some brokers, or of some topics; None is any.

    `racks` are those of the other broker. While racks are not known, every broker counts as being in one of them.
    `topics` are patterns as of a shell: `orders*`.
    """

    counts_in_sync: ClassVar[bool] = True
    peers: frozenset[int] | None = None
    racks: frozenset[str] | None = None
    topics: tuple[str, ...] | None = None

    @property
    def needs_names(self) -> bool:
        return self.topics is not None

    def partitions(self, facts: ClusterFacts, topic: bytes | None, ends: Ends) -> Container[int]:
        if self.peers is not None and ends.other not in self.peers:
            return NO_PARTITION
        if self.racks is not None and facts.racks is not None and facts.racks.get(ends.other) not in self.racks:
            return NO_PARTITION
        if self.topics is not None:
            name = "" if topic is None else topic.decode("utf-8", "replace")
            if not any(fnmatchcase(name, pattern) for pattern in self.topics):
                return NO_PARTITION
        return EVERY_PARTITION


def _added(facts: ClusterFacts, topic: bytes, ends: Ends) -> frozenset[int]:
    """Return the partitions of a topic of which a reassignment adds a replica on the link's follower."""
    moves = facts.adding.get(topic)
    if not moves:
        return NO_PARTITION
    return frozenset([partition for partition, brokers in moves.items() if ends.follower in brokers])
