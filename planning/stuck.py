# SPDX-License-Identifier: Apache-2.0
"""Whether a move stands still, which broker holds it up, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from weir.planning.assignment import Partition
from weir.planning.finish_by import Moving, growth_between, loads_of
from weir.planning.units import show_rough_rate
from weir.quota.settings import FOLLOWER_RATE, LEADER_RATE

STILL_SECONDS: Final = 60.0
"""A broker whose bytes behind have not fallen for so long holds its move up."""


@dataclass(frozen=True, slots=True)
class Still:
    """A broker that has got no nearer: since when (s), and what its partitions were then."""

    broker: int
    since: float
    before: Mapping[Partition, Moving]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the cluster says when something stands still.

    `rates` are the brokers' own throttled rates by (broker, setting), `own` the values that the move may have set.
    `sidecars` has a sentence of each sidecar that knows of a cause.
    """

    alive: frozenset[int]
    rates: Mapping[tuple[int, str], int] = field(default_factory=dict)
    own: Mapping[tuple[int, str], frozenset[int]] = field(default_factory=dict)
    sidecars: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A broker that holds a move up: the partitions that it is behind with, and why, as part of a sentence."""

    broker: int
    partitions: tuple[Partition, ...]
    why: str


class StillMeter:
    """Finds the brokers that get no nearer in a move. Give `measure` what was read of the move, now and then."""

    def __init__(self) -> None:
        self._lowest: dict[int, tuple[int, Still]] = {}
        self.moving: Mapping[Partition, Moving] = {}
        """The move as it was last known: without a leader nothing tells how far a partition is."""

    def measure(self, now: float, moving: Mapping[Partition, Moving]) -> list[Still]:
        """Return the brokers whose bytes behind have not fallen for STILL_SECONDS. `moving` was read at `now` (s)."""
        moving = self.moving = {partition: self._known(partition, one) for partition, one in moving.items()}
        left: dict[int, int] = {}
        for one in moving.values():
            for broker, behind in one.left.items():
                left[broker] = left.get(broker, 0) + behind
        for broker, behind in left.items():
            lowest = self._lowest.get(broker)
            if lowest is None or behind < lowest[0] or not behind:
                self._lowest[broker] = behind, Still(broker, now, moving)
        self._lowest = {broker: lowest for broker, lowest in self._lowest.items() if left.get(broker)}
        return [still for _, still in self._lowest.values() if now - still.since >= STILL_SECONDS]

    def _known(self, partition: Partition, one: Moving) -> Moving:
        before = self.moving.get(partition)
        return one if one.size or before is None else replace(before, leader=one.leader)


def why_stuck(still: Still, now: float, moving: Mapping[Partition, Moving], found: Circumstances) -> Stuck:
    """Say why a broker stands still. What no rate can help goes first."""
    behind = tuple(partition for partition, one in sorted(moving.items()) if one.left.get(still.broker))
    return Stuck(still.broker, behind, _why(still, now, moving, behind, found))


def _why(
    still: Still,
    now: float,
    moving: Mapping[Partition, Moving],
    behind: tuple[Partition, ...],
    found: Circumstances,
) -> str:
    if still.broker not in found.alive:
        return f"broker {still.broker} is down"
    leaderless = [partition for partition in behind if moving[partition].leader not in found.alive]
    if leaderless:
        return f"{leaderless[0]} has no leader that is up"
    loads = loads_of(moving, growth_between(still.before, moving, max(now - still.since, 1.0)))
    leaders = sorted({moving[partition].leader for partition in behind})
    for key in ((still.broker, FOLLOWER_RATE), *((leader, LEADER_RATE) for leader in leaders)):
        rate, inflow = found.rates.get(key), loads[key].inflow if key in loads else 0.0
        if rate is None or rate > inflow:
            continue
        broker, setting = key
        whose = "" if rate in found.own.get(key, frozenset()) else ", which is not what this move has set"
        beside = f", and producers write {show_rough_rate(inflow)} that passes under it" if inflow else ""
        return f"{setting} of broker {broker} is {show_rough_rate(rate)}{whose}{beside}"
    for broker in (still.broker, *leaders):
        if broker in found.sidecars:
            return f"the sidecar of broker {broker} says: {found.sidecars[broker].rstrip('.')}"
    return f"no setting of Kafka's explains it: look at the log of broker {still.broker}"
