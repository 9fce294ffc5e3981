# SPDX-License-Identifier: Apache-2.0
"""The lowest rate that ends a move by a deadline, planned again and again from what really arrives.

Rates are bytes/s, times seconds. One rate is set on all brokers of a move, so the broker with the most to receive or to
send decides: it has to pass what its new replicas are behind, and meanwhile all that producers write to them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from weir.planning.assignment import Partition
from weir.quota.settings import FOLLOWER_RATE, LEADER_RATE

INTERVAL_SECONDS: Final = 10.0
"""The least seconds between two changes of the rate. Kafka's own throttle measures over about as long."""

TAKE_UP_SECONDS: Final = 3.0
"""The seconds for which a move that is taken up is watched before its rate is planned, to learn of its producers."""

LEAST_CHANGE: Final = 0.02
"""The least change of the rate, as part of it: 2 MB/s at 100 MB/s. Smaller ones are left out."""

INFLOW_MARGIN: Final = 1.05
"""The least rate, as multiple of what producers write: at 10 MB/s it is 10.5 MB/s, so that new replicas catch up."""

ENDING_SECONDS: Final = 1.0
"""The seconds between the last byte and the deadline, in which the replica joins the ISR and the move is ended."""

LEAST_PART: Final = 0.7
"""Something else than the rate holds a move up where less than this part of the rate arrives: 70 of 100 MB/s.

A higher rate would not help then, so nothing is learned of the rate from it.
"""

_MOST_PART: Final = 1.1

TOLERANCE: Final = 0.03
"""The part of the seconds left by which a move may miss its deadline and count as in time: 30 of 1,000 s."""


@dataclass(frozen=True, slots=True)
class RateBounds:
    """The lowest and the highest rate that may be set; `highest` None: no bound."""

    lowest: int = 1
    highest: int | None = None

    def clamp(self, rate: float) -> int:
        """Return the nearest rate within the limits, in whole bytes/s."""
        rate = max(math.ceil(rate), self.lowest, 1)
        return rate if self.highest is None else min(rate, self.highest)


@dataclass(frozen=True, slots=True)
class Moving:
    """A moving partition: its leader, bytes there, number of followers, and bytes that each new replica is behind."""

    leader: int
    size: int
    followers: int
    left: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Load:
    """What one throttled rate of one broker has to let through: bytes now, and bytes/s that producers add."""

    left: float
    inflow: float

    def rate_within(self, seconds: float) -> float:
        """Return the rate that lets all of it through in so long."""
        return self.left / seconds + self.inflow


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate in force, and what led to it.

    `late`: seconds by which the deadline is missed at this rate, 0 where it is met, None where the move never ends.
    `part`: how much of the rate arrives. `is_held_up`: lately something else than the rate decided what arrived.
    `seen` is the move for which it was planned, `busiest` the rate (broker and setting) that decided. It stays for
    `interval` seconds.
    """

    rate: int
    planned_at: float
    seen: Mapping[Partition, Moving]
    busiest: tuple[int, str] | None = None
    late: float | None = 0.0
    part: float = 1.0
    is_held_up: bool = False
    interval: float = INTERVAL_SECONDS


def first_pace(
    now: float,
    seconds_left: float,
    moving: Mapping[Partition, Moving],
    growth: Mapping[Partition, float],
    limits: RateBounds,
) -> Pace:
    """Return the pace to begin a move with; `growth` is what producers write to each partition, in bytes/s."""
    return _planned(Pace(limits.clamp(0), now, moving), seconds_left, loads_of(moving, growth), limits)


def taken_up(rate: int, now: float, moving: Mapping[Partition, Moving], limits: RateBounds) -> Pace:
    """Return the pace of a move that runs at `rate`: that rate, as far as it is allowed, until more is known."""
    return Pace(limits.clamp(rate), now, moving, interval=TAKE_UP_SECONDS)


def next_pace(
    pace: Pace, now: float, seconds_left: float, moving: Mapping[Partition, Moving], limits: RateBounds
) -> Pace:
    """Plan again when the pace's interval is over; before that it stays as it is.

    It stays too while a partition's size is not known. Seconds left are below 0 when the deadline has passed.
    """
    seconds = now - pace.planned_at
    unknown = any(
        not one.size and pace.seen[partition].size for partition, one in moving.items() if partition in pace.seen
    )
    if seconds < pace.interval or unknown:
        return pace
    loads = loads_of(moving, growth_between(pace.seen, moving, seconds))
    learned = replace(_learned(pace, loads, seconds), planned_at=now, seen=moving, interval=INTERVAL_SECONDS)
    planned = _planned(learned, seconds_left, loads, limits)
    if abs(planned.rate - pace.rate) < LEAST_CHANGE * pace.rate:
        return replace(planned, rate=pace.rate, late=_late(pace.rate * planned.part, seconds_left, loads))
    return planned


def loads_of(moving: Mapping[Partition, Moving], growth: Mapping[Partition, float]) -> dict[tuple[int, str], Load]:
    """Return what each rate has to let through, by broker and setting.

    A leader sends what producers write to all followers of a partition, and under its rate all of that counts. A
    partition that has moved already counts too: its replicas are throttled until the whole move has ended.
    """
    left: dict[tuple[int, str], float] = defaultdict(float)
    inflow: dict[tuple[int, str], float] = defaultdict(float)
    for partition, one in moving.items():
        grown = growth.get(partition, 0.0)
        left[one.leader, LEADER_RATE] += sum(one.left.values())
        inflow[one.leader, LEADER_RATE] += grown * one.followers
        for broker, behind in one.left.items():
            left[broker, FOLLOWER_RATE] += behind
            inflow[broker, FOLLOWER_RATE] += grown
    return {key: Load(left[key], inflow[key]) for key in left if left[key]}


def growth_between(
    before: Mapping[Partition, Moving], now: Mapping[Partition, Moving], seconds: float
) -> dict[Partition, float]:
    """Return what producers wrote to each partition, in bytes/s. A log that became shorter tells nothing: 0."""
    return {
        partition: max(0, one.size - before[partition].size) / seconds
        for partition, one in now.items()
        if partition in before
    }


def _learned(pace: Pace, loads: Mapping[tuple[int, str], Load], seconds: float) -> Pace:
    """Compare what has arrived since the last plan with the rate, at the broker that decided it."""
    after = loads.get(pace.busiest) if pace.busiest is not None else None
    if after is None or pace.busiest is None:
        return replace(pace, is_held_up=False)
    before = loads_of(pace.seen, {}).get(pace.busiest, Load(0.0, 0.0))
    part = (before.left - after.left + after.inflow * seconds) / seconds / pace.rate
    if part < LEAST_PART:
        return replace(pace, is_held_up=True)
    return replace(pace, part=(pace.part + min(part, _MOST_PART)) / 2, is_held_up=False)


def _planned(pace: Pace, seconds_left: float, loads: Mapping[tuple[int, str], Load], limits: RateBounds) -> Pace:
    """Return the pace with the lowest rate that ends it all in time; the highest allowed where none does."""
    if not loads:
        return replace(pace, busiest=None, late=0.0)
    seconds = max(seconds_left - ENDING_SECONDS, ENDING_SECONDS)
    busiest = max(loads, key=lambda key: loads[key].rate_within(seconds))
    needed = loads[busiest].rate_within(seconds) / pace.part
    if seconds_left <= 0:
        # No rate is enough any more. Without a limit, all that is left is to come within one more interval.
        in_one_interval = loads[busiest].rate_within(INTERVAL_SECONDS) / pace.part
        needed = max(in_one_interval, pace.rate) if limits.highest is None else limits.highest
    elif seconds_left < INTERVAL_SECONDS:
        needed = max(needed, pace.rate)  # What is learned from the last bytes comes too late to go slower.
    rate = limits.clamp(max(needed, _least(loads, limits)))
    return replace(pace, rate=rate, busiest=busiest, late=_late(rate * pace.part, seconds_left, loads))


def _least(loads: Mapping[tuple[int, str], Load], limits: RateBounds) -> int:
    return limits.clamp(INFLOW_MARGIN * max((load.inflow for load in loads.values()), default=0.0))


def _late(arriving: float, seconds_left: float, loads: Mapping[tuple[int, str], Load]) -> float | None:
    """Return by how many seconds the deadline is missed where so many bytes/s arrive. None: it never ends."""
    if any(load.inflow >= arriving for load in loads.values()):
        return None
    needed = max((load.left / (arriving - load.inflow) for load in loads.values()), default=0.0)
    late = needed - max(seconds_left - ENDING_SECONDS, 0.0)
    return late if late > TOLERANCE * max(seconds_left, INTERVAL_SECONDS) else 0.0
