# SPDX-License-Identifier: Apache-2.0
"""The rates that leave a move as much of each broker's link as nobody else uses, planned again and again.

Rates are bytes/s, times seconds. A link carries so much in each direction. A broker's follower rate takes from what
comes in, its leader rate from what goes out, so each rate is planned by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from weir.planning.assignment import Brokers, Partition
from weir.planning.carried import Carried, Key, are_short, arrived, carried_next
from weir.planning.finish_by import INFLOW_MARGIN, LEAST_CHANGE, Moving, RateBounds, loads_of
from weir.quota.settings import FOLLOWER_RATE, LEADER_RATE

INTERVAL_SECONDS: Final = 5.0
"""The least seconds between two changes of the rates."""

PART: Final = 0.92
"""The part of what others leave that a move uses. The rest is for bursts, and for what wraps the records."""

CALM_INTERVALS: Final = 3
"""The intervals that a rise has to wait for: a rate follows the least that others left in them. It falls at once."""

LEAST_RISE: Final = 0.05
"""The least rise of a rate, as part of it: 5 MB/s at 100 MB/s. Smaller ones are left out."""

MOST_RISE: Final = 0.5
"""The most by which a rate rises in one interval, as part of it; LEAST_STEP of the link where that is more."""

LEAST_STEP: Final = 0.1


@dataclass(frozen=True, slots=True)
class Passed:
    """All bytes that passed a broker's sidecar until now, but for those of throttled replicas.

    `of_link`: whether the link's own counters told of each direction, and so of those who pass no sidecar.
    """

    incoming: float
    outgoing: float
    of_link: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True)
class Held:
    """A partition at one moment: its leader, its replicas, and its bytes at the leader."""

    leader: int
    replicas: Brokers
    size: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of the links at one moment. `moving` are the plan's partitions, `held` all that the brokers hold.

    `passed` has the brokers whose sidecar answered.
    """

    moving: Mapping[Partition, Moving]
    held: Mapping[Partition, Held]
    passed: Mapping[int, Passed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rates in force, and what led to them.

    `others` has what else passed in the last intervals by rate, the newest last; `by_sidecars` what sidecars
    told of it last.
    `carried` are the links that carry less than was stated, by the rate of that direction. `short` are the rates of
    which too little came in the last interval, and `last_rates` those in force before.
    `too_low` are the rates at which the move cannot end, as the limits allow no more.
    """

    rates: Mapping[Key, int]
    planned_at: float
    seen: Reading
    others: tuple[Mapping[Key, float], ...] = ()
    by_sidecars: Mapping[Key, float] = field(default_factory=dict)
    carried: Mapping[Key, Carried] = field(default_factory=dict)
    short: frozenset[Key] = frozenset()
    last_rates: Mapping[Key, int] = field(default_factory=dict)
    too_low: frozenset[Key] = frozenset()


def first_allowance(
    keys: Iterable[Key], before: Reading, now: float, seen: Reading, seconds: float, capacity: float, limits: RateBounds
) -> Allowance:
    """Return the rates to begin a move with, by two readings that lie `seconds` apart."""
    begun = Allowance(dict.fromkeys(keys, 0), now, before)
    return _planned(begun, now, seen, seconds, capacity, limits, at_once=True)


def taken_up(rates: Mapping[Key, int], now: float, seen: Reading) -> Allowance:
    """Return the rates of a move that runs, as they are, until more is known."""
    return Allowance(dict(rates), now, seen, last_rates=dict(rates))


def next_allowance(allowance: Allowance, now: float, seen: Reading, capacity: float, limits: RateBounds) -> Allowance:
    """Plan again, INTERVAL_SECONDS after the last time at the earliest; before that all stays as it is.

    It stays too while a moving partition's size is not known.
    """
    seconds = now - allowance.planned_at
    before = allowance.seen.moving
    unknown = any(not one.size and p in before and before[p].size for p, one in seen.moving.items())
    if seconds < INTERVAL_SECONDS or unknown:
        return allowance
    return _planned(allowance, now, seen, seconds, capacity, limits, at_once=False)


def others_by_sidecars(
    keys: Iterable[Key], before: Reading, now: Reading, seconds: float, last: Mapping[Key, float]
) -> dict[Key, float]:
    """Return what passes in the direction of each rate besides what it bounds, in bytes/s, as sidecars count it.

    One that did not answer, or that counts anew or otherwise, tells nothing of the interval: what it told last stands.
    """
    found = dict(last)
    for broker, setting in keys:
        then, since = before.passed.get(broker), now.passed.get(broker)
        if then is None or since is None or then.of_link != since.of_link:
            continue
        is_leader = setting == LEADER_RATE
        passed = since.outgoing - then.outgoing if is_leader else since.incoming - then.incoming
        if passed >= 0:
            found[broker, setting] = passed / seconds
    return found


def others_by_logs(before: Reading, now: Reading, seconds: float) -> dict[Key, float]:
    """Return the bytes/s of producers' records in the direction of each rate, as logs tell them.

    What the move's own replicas receive is not among them.
    """
    rates: dict[Key, float] = defaultdict(float)
    for partition, held in now.held.items():
        then = before.held.get(partition)
        grown = max(0, held.size - then.size) / seconds if then is not None and then.size else 0.0
        moving = now.moving.get(partition)
        for broker in held.replicas:
            if moving is None or broker not in moving.left:
                rates[broker, FOLLOWER_RATE] += grown
        if moving is None:  # else its followers' bytes are bounded by the leader's rate
            rates[held.leader, LEADER_RATE] += grown * (len(held.replicas) - 1)
    return rates


def _planned(
    allowance: Allowance,
    now: float,
    seen: Reading,
    seconds: float,
    capacity: float,
    limits: RateBounds,
    *,
    at_once: bool,
) -> Allowance:
    keys = allowance.rates
    by_sidecars = others_by_sidecars(keys, allowance.seen, seen, seconds, allowance.by_sidecars)
    by_logs = others_by_logs(allowance.seen, seen, seconds)
    others = {key: max(by_sidecars.get(key, 0.0), by_logs.get(key, 0.0)) for key in keys}
    known = (*allowance.others[1 - CALM_INTERVALS :], others)
    came = arrived(allowance.seen.moving, seen.moving, seconds)
    short = are_short(came, keys, allowance.last_rates, seconds)
    carried: dict[Key, Carried] = {}
    inflow = _inflow(allowance.seen.moving, seen.moving, seconds)
    rates, too_low = {}, set()
    for key, rate in keys.items():
        most = max(one.get(key, 0.0) for one in known)
        learned = carried_next(
            allowance.carried.get(key),
            key in short & allowance.short,  # twice in a row, as one interval may miss a burst
            came[key].rate if key in came else 0.0,
            rate,
            others[key],
            capacity,
        )
        if learned is not None:
            carried[key] = learned
        carries = min(capacity, learned.capacity) if learned is not None else capacity
        before = max((one.get(key, 0.0) for one in allowance.others), default=others[key])
        growing = max(0.0, others[key] - before)
        # What has just grown may be held up by a full link, and want more than it gets: leave it as much again.
        room = carries - max(most, others[key] + growing)
        least = limits.clamp(INFLOW_MARGIN * inflow.get(key, 0.0))
        wanted = limits.clamp(max(PART * room, least))
        rates[key] = wanted if at_once else _toward(rate, wanted, least, capacity, limits)
        if inflow.get(key, 0.0) >= rates[key]:
            too_low.add(key)
    return Allowance(rates, now, seen, known, by_sidecars, carried, short, keys, frozenset(too_low))


def _toward(rate: int, wanted: int, least: int, capacity: float, limits: RateBounds) -> int:
    """Return the next rate on the way: down at once, up in steps, and never left below the least there may be."""
    if wanted < rate:
        small = rate - wanted < LEAST_CHANGE * rate
    else:
        small = wanted - rate < LEAST_RISE * rate
        wanted = min(wanted, int(rate + max(MOST_RISE * rate, LEAST_STEP * capacity)))
    return limits.clamp(max(rate if small else wanted, least))


def _inflow(before: Mapping[Partition, Moving], now: Mapping[Partition, Moving], seconds: float) -> dict[Key, float]:
    """Return what producers write that passes under each rate, in bytes/s."""
    grown = {
        partition: max(0, one.size - before[partition].size) / seconds
        for partition, one in now.items()
        if partition in before and before[partition].size
    }
    return {key: load.inflow for key, load in loads_of(now, grown).items()}
