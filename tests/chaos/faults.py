# SPDX-License-Identifier: Apache-2.0
"""What a chaos run does to a cluster, and when: drawn from a seed alone, so that a run can be had again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final

from weir.quota.settings import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS

MOVED: Final = "orders"
"""The topic that moves."""
LIVE: Final = ("live-a", "live-b")
"""The topics with a replica on every broker."""
MOVED_PARTITIONS: Final = 6
LIVE_PARTITIONS: Final = 3

EVERYWHERE: Final = 0
"""A fault's target: every sidecar."""


class Kind(StrEnum):
    """What is done, in the words that are printed."""

    KILL_SIDECAR = "sidecar killed"
    STOP_SIDECAR = "sidecar stopped"
    RELOAD = "file reloaded"
    RELOAD_CHANGED = "changed file reloaded"
    RELOAD_BROKEN = "broken file reloaded"
    PUT = "throttle set"
    PUT_EVERYWHERE = "throttle set everywhere"
    PATCH = "throttle patched"
    DELETE = "throttle removed"
    KILL_BROKER = "broker killed"
    STOP_BROKER = "broker stopped in order"


BROKER_KINDS: Final = frozenset({Kind.KILL_BROKER, Kind.STOP_BROKER})
_WEIGHTS: Final = dict(zip(Kind, (18, 14, 6, 8, 6, 22, 8, 10, 8), strict=False))  # of those of sidecars
_LASTS: Final = {Kind.KILL_SIDECAR: (0.0, 3.0), Kind.STOP_SIDECAR: (1.0, 8.0)}  # seconds
_BROKER_DOWN_SECONDS: Final = (0.0, 6.0)
_BROKER_GAP_SECONDS: Final = (40.0, 80.0)  # a start and a catch-up take 10 to 30 s
_FIRST_BROKER_SECONDS: Final = (8.0, 20.0)
_GAP_SPREAD: Final = (0.3, 1.7)  # x the mean gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is done: `at` seconds after the beginning, to broker `target` or its sidecar.

    `seconds` is how long it lasts; `table` is a throttle table, or what is merged into one.
    """

    at: float
    kind: Kind
    target: int
    seconds: float = 0.0
    table: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        hit = "broker" if self.kind in BROKER_KINDS else "sidecar"
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{hit} {self.target or 'of each'}: {self.kind}{lasts} {self.table or ''}".rstrip()


def schedule(
    seed: int, seconds: float, *, sidecars: Sequence[int], brokers: Sequence[int], mean_gap: float = 5.0
) -> tuple[Fault, ...]:
    """Return the faults of a run of `seconds`, by time: about one in `mean_gap` seconds, those of brokers included.

    `sidecars` and `brokers` are the ids of those that may be hit.
    """
    random = Random(seed)
    found = []
    at = random.uniform(*_FIRST_BROKER_SECONDS)
    while brokers and at < seconds:
        kind = random.choices([Kind.KILL_BROKER, Kind.STOP_BROKER], [2, 1])[0]
        down = random.uniform(*_BROKER_DOWN_SECONDS)
        found.append(Fault(at=at, kind=kind, target=random.choice(list(brokers)), seconds=down))
        at += random.uniform(*_BROKER_GAP_SECONDS)
    others = 1 / mean_gap - (1 / (sum(_BROKER_GAP_SECONDS) / 2) if brokers else 0.0)
    at = 0.0
    while (at := at + random.uniform(*_GAP_SPREAD) / others) < seconds:
        found.append(_sidecar_fault(random, at, random.choice(list(sidecars))))
    return tuple(sorted(found, key=lambda fault: fault.at))


def _sidecar_fault(random: Random, at: float, target: int) -> Fault:
    kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    seconds, table = random.uniform(*_LASTS[kind]) if kind in _LASTS else 0.0, {}
    if kind in {Kind.PUT, Kind.RELOAD_CHANGED}:
        table = draw_table(random, target)
    elif kind is Kind.PUT_EVERYWHERE:
        rate = draw_rate(random)
        target, table = EVERYWHERE, alike(rate, rate)
    elif kind is Kind.PATCH:
        table = _draw_patch(random)
    return Fault(at=at, kind=kind, target=target, seconds=seconds, table=table)


def alike(leader: int | None, follower: int | None, topics: Sequence[str] = (MOVED,)) -> dict[str, Any]:
    """Return a table that throttles every replica of `topics` on each side that has a rate (bytes/s)."""
    sides = ((LEADER_RATE, LEADER_REPLICAS, leader), (FOLLOWER_RATE, FOLLOWER_REPLICAS, follower))
    given = [(name, replicas, rate) for name, replicas, rate in sides if rate is not None]
    lists = {replicas: "*" for _, replicas, _ in given}
    return {**{name: rate for name, _, rate in given}, "topics": {topic: lists for topic in topics}}


def draw_rate(random: Random) -> int:
    """Return a quota in bytes/s: seldom 0, seldom next to nothing, mostly 0.4 to 6 MB/s, at times beyond the link."""
    ranges = [(0, 0), (20e3, 200e3), (400e3, 6e6), (6e6, 50e6), (50e6, 1e9)]
    lowest, highest = random.choices(ranges, [5, 6, 64, 15, 10])[0]
    return round(math.exp(random.uniform(math.log(lowest), math.log(highest)))) if lowest else 0


def draw_table(random: Random, broker: int) -> dict[str, Any]:
    """Return a throttle table for one sidecar: one side or both, lists that are alike or not, at times live topics."""
    leader, follower = draw_rate(random), draw_rate(random)
    match random.choices(["both", "leader", "follower", "pairs", "live"], [34, 12, 12, 24, 18])[0]:
        case "both":
            return alike(leader, follower)
        case "leader":
            return alike(leader, None)
        case "follower":
            return alike(None, follower)
        case "live":
            return alike(leader, follower, (MOVED, *LIVE))
        case _:
            lists = {name: _draw_pairs(random, broker) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)}
            return {LEADER_RATE: leader, FOLLOWER_RATE: follower, "topics": {MOVED: lists}}


def _draw_pairs(random: Random, broker: int) -> str:
    chosen = random.sample(range(MOVED_PARTITIONS), random.randint(1, MOVED_PARTITIONS - 1))
    return ",".join(f"{partition}:{broker}" for partition in sorted(chosen))


def _draw_patch(random: Random) -> dict[str, Any]:
    changes: list[dict[str, Any]] = [
        {LEADER_RATE: draw_rate(random)},
        {FOLLOWER_RATE: draw_rate(random)},
        {LEADER_RATE: None},
        {FOLLOWER_RATE: None},
        {"topics": {MOVED: None}},
        {"topics": {MOVED: {LEADER_REPLICAS: "*"}}},
    ]
    return random.choices(changes, [4, 4, 1, 1, 1, 2])[0]
