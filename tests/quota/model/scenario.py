# SPDX-License-Identifier: Apache-2.0
"""What an operator may configure and what may happen: a scenario is all that a run depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol, TypeVar

from weir.quota.settings import Order, Policy, QuotaSettings

T = TypeVar("T")
MB = 1_000_000
RACKS = ("north", "south")  # of the leaders, and of the followers: by turns

Happening = Literal[
    "break",
    "fail",
    "elect",
    "delete",
    "quota",
    "lists",
    "evict",
    "burst",
    "reassign",
    "under min ISR",
    "scoped quota",
    "pause",
    "stop",
    "anew",
    "order",
    "away",
]
Rogue = Literal[
    "negative",
    "never reads",
    "long wait",
    "high watermark",
    "many connections",
    "versions",
    "twice",
    "made up",
    "several in flight",
]
ROGUES: tuple[Rogue, ...] = (
    "negative",
    "never reads",
    "long wait",
    "high watermark",
    "many connections",
    "versions",
    "twice",
    "made up",
)


Hops = Literal["leader", "follower", "both"]


class Chooser(Protocol):
    """Where choices come from: a seed, or hypothesis."""

    def integer(self, least: int, most: int) -> int:
        """Any of these, both ends included."""

    def pick(self, options: Sequence[T]) -> T:
        """Any of these; the first is the simplest."""

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""

    def apart(self, name: str = "apart") -> Chooser:
        """Choices of what was thought of later: all else of a seed stays as it was."""


class Seeded:
    """Choices by a seed."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._random = Random(seed)

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random.random() * len(options))]

    def chance(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def apart(self, name: str = "apart") -> Seeded:
        return Seeded(f"{self._seed} {name}")


@dataclass(frozen=True)
class Partition:
    """One partition: who leads it, who follows it on which fetcher, and what is in it."""

    topic: int
    number: int
    leader: int
    follower: int
    fetcher: int
    is_behind: bool
    pattern: tuple[int, ...] = (10_000,)  # sizes of batches, again and again
    count: int = 0  # of batches
    last: tuple[int, ...] = ()  # after those
    live_every: float = 0.0  # seconds; 0 is no live traffic
    live_size: int = 1_000


@dataclass(frozen=True)
class Side:
    """The settings of all sidecars on one side; `topics` are those throttled."""

    rate: int | None
    topics: tuple[int, ...]
    policy: Policy = "strict"
    order: Order = "urgent-first"
    one_in: int = 1  # of the partitions of each topic one in so many is throttled, by its number; 1 is all of them
    response_max_bytes: int | None = None
    quotas: tuple[QuotaSettings, ...] = ()  # beside that of the listed replicas
    is_observed: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happens at `at` seconds. What `index` and `value` mean is the happening's."""

    at: float
    what: Happening
    index: int = 0
    value: int | None = 0
    side: int = 0  # 0 is the leaders'


TopicPartition = tuple[int, int]


@dataclass(frozen=True)
class Scenario:
    """One run's configuration."""

    version: int
    hops: Hops
    leader: Side
    follower: Side
    partitions: tuple[Partition, ...]
    events: tuple[Event, ...] = ()
    rogues: tuple[Rogue, ...] = ()
    bandwidth: int = 100 * MB  # of one connection, in bytes/s
    latency: float = 0.0005  # of one stretch, in seconds
    leader_slots: int = 1_000  # fetch sessions
    names_known_after: float | None = 0.0  # seconds until a sidecar knows a topic's name by its id; None: never
    adding: tuple[TopicPartition, ...] = ()  # what reassignments add to their followers at the start
    under_min_isr: tuple[TopicPartition, ...] = ()  # at the start
    has_racks: bool = True  # whether the sidecars know the brokers' racks
    told_after: float = 0.0  # seconds until the followers' sidecars know what the leaders' know at once
    slow: tuple[float, ...] = ()  # bytes/s of followers' ends, which go round; 0 is `bandwidth`
    late: tuple[float, ...] = ()  # by how many seconds leaders' answers come late at most; they go round, too
    reads: tuple[float, ...] = ()  # seconds that leaders read for each follower; they go round; 0 is no time
    closers: tuple[int, ...] = ()  # followers that close their connection after each answer
    scales: tuple[float, ...] = (1.0,)  # of the rates of brokers; they go round
    drift: float = 0.0  # the part by which each broker's rate changes all the time
    is_without_observed: bool = False  # quotas that only observe are left out, to compare
    walks_all: bool = False  # batches of every topic are seen, whichever quotas there are
    seconds: float = 15.0
    most_exchanges: int = 250

    @property
    def has_troubles(self) -> bool:
        """Whether something else than quotas holds links up."""
        return bool(self.slow or self.late or self.reads) or any(
            event.what in ("pause", "stop", "away") for event in self.events
        )
