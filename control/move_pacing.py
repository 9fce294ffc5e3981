# SPDX-License-Identifier: Apache-2.0
"""Keeps a move's throttle: at the lowest rate that ends it by a deadline, or at what is free of each broker's link."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from weir.control.errors import MoveError
from weir.control.move_admin import MoveAdmin
from weir.control.move_journal import JournalFile, Pacing
from weir.control.move_throttling import MoveThrottling
from weir.control.plan_state import INFLOW_SECONDS, PlanState, growth, leader_sizes, moving_of
from weir.planning.assignment import Partition
from weir.planning.carried import Key
from weir.planning.finish_by import Moving, Pace, first_pace, next_pace, taken_up
from weir.planning.headroom import INTERVAL_SECONDS, Allowance, Held, Passed, Reading, first_allowance, next_allowance
from weir.planning.headroom import taken_up as taken_up_allowance
from weir.planning.move_throttle import DISK_RATE, Rates, wanted_throttle
from weir.planning.units import show_rate


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rates to begin a move with. `never`: why it would not end under them."""

    rates: Rates
    never: str | None = None


class Pacer(Protocol):
    """Keeps the rate of a move. Only one may be at work on it: the plan's lock is held by whoever has it.

    One that has not begun the move takes it up, at the rates that were written down.
    """

    pacing: Pacing

    def begin(self, admin: MoveAdmin, seen: PlanState) -> Chosen:
        """Choose the rates to begin with. Watches for INFLOW_SECONDS what passes."""

    def step(self, admin: MoveAdmin, moving: Mapping[Partition, Moving]) -> Pace | Allowance:
        """Set other rates where the move, as read just now, needs them. An error leaves them to the next call."""


class DeadlinePacer:
    """Keeps the lowest rate that ends a move by `at`, in seconds of the cluster's clock."""

    def __init__(self, file: JournalFile, pacing: Pacing, at: float) -> None:
        self.pacing = pacing
        self._file = file
        self.at = at
        self._pace: Pace | None = None
        self._set = 0

    def begin(self, admin: MoveAdmin, seen: PlanState) -> Chosen:
        """Choose the throttle that ends the move in time."""
        grown = growth(admin, seen.receiving, INFLOW_SECONDS)
        now = admin.clock()
        pace = first_pace(now, self.at - now, moving_of(admin, seen), grown, self.pacing.limits)
        self._pace, self._set = pace, pace.rate
        if pace.late is not None:
            return Chosen(pace.rate)
        return Chosen(
            pace.rate,
            never=f"under {show_rate(pace.rate)}, the most that is allowed, the move would never end beside what"
            " producers write: allow more, or --force",
        )

    def step(self, admin: MoveAdmin, moving: Mapping[Partition, Moving]) -> Pace:
        """Plan the rate again where it is time to, and set it where it changes."""
        now, limits = admin.clock(), self.pacing.limits
        if self._pace is None:
            throttling = MoveThrottling(admin, self._file)
            self._set = max(_rates_of(throttling, "--finish-by").values())
            throttling.keep(self.pacing)
            self._pace = taken_up(self._set, now, moving, limits)
        else:
            self._pace = next_pace(self._pace, now, self.at - now, moving, limits)
        if self._pace.rate != self._set:
            MoveThrottling(admin, self._file).change_rates(self._pace.rate)
            self._set = self._pace.rate
        return self._pace


class LinkPacer:
    """Keeps each rate of a move at what others leave free of a broker's link.

    `passed` asks the sidecars what has passed besides the throttled replicas of some topics.
    """

    def __init__(
        self, file: JournalFile, pacing: Pacing, passed: Callable[[frozenset[str]], Mapping[int, Passed]]
    ) -> None:
        self.pacing = pacing
        self._capacity = pacing.link_capacity or 0
        self._file = file
        self._passed = passed
        self._allowance: Allowance | None = None
        self._set: dict[Key, int] = {}

    def begin(self, admin: MoveAdmin, seen: PlanState) -> Chosen:
        """Choose the rates that others leave free of each broker's link."""
        keys = wanted_throttle(seen.moves, 1).rates.keys()
        moving, begun = moving_of(admin, seen), admin.clock()
        before = self._read(admin, moving, keys, frozenset())
        if keys:
            admin.sleep(INFLOW_SECONDS)
        after = self._read(admin, moving_of(admin, seen), keys, frozenset())
        now = admin.clock()
        seconds = max(now - begun, 1e-3)
        found = first_allowance(keys, before, now, after, seconds, self._capacity, self.pacing.limits)
        # Until the sidecars follow this throttle, they count the move with all else.
        self._allowance = replace(found, seen=replace(after, passed={}))
        self._set = dict(found.rates)
        never = None
        if found.too_low:
            broker, setting = min(found.too_low)
            never = (
                f"{setting} of broker {broker} may be {show_rate(found.rates[broker, setting])} at most, and beside"
                " what producers write the move would then never end: allow more, or --force"
            )
        return Chosen(found.rates, never)

    def step(self, admin: MoveAdmin, moving: Mapping[Partition, Moving]) -> Allowance:
        """Plan the rates again where it is time to, and set those that change."""
        now, topics = admin.clock(), frozenset(partition.topic for partition in moving)
        if self._allowance is None:
            self._set = _rates_of(MoveThrottling(admin, self._file), "--auto")
            self._allowance = taken_up_allowance(self._set, now, self._read(admin, moving, self._set, topics))
        elif now - self._allowance.planned_at >= INTERVAL_SECONDS:
            seen = self._read(admin, moving, self._allowance.rates, topics)
            self._allowance = next_allowance(self._allowance, now, seen, self._capacity, self.pacing.limits)
        changed = {key: rate for key, rate in self._allowance.rates.items() if rate != self._set.get(key)}
        if changed:
            MoveThrottling(admin, self._file).change_rates(changed)
            self._set |= changed
        return self._allowance

    def _read(
        self, admin: MoveAdmin, moving: Mapping[Partition, Moving], rates: Collection[Key], topics: frozenset[str]
    ) -> Reading:
        """Read all that the brokers of these rates hold."""
        passed = self._passed(topics)
        brokers = frozenset(broker for broker, _ in rates)
        states = {p: state for p, state in admin.partitions().items() if not brokers.isdisjoint(state.replicas)}
        held = {
            partition: Held(states[partition].leader, states[partition].replicas, size)
            for partition, size in leader_sizes(admin, states).items()
        }
        return Reading(moving, held, passed)


def _rates_of(throttling: MoveThrottling, option: str) -> dict[Key, int]:
    """Return the rates that were written down of a move that runs. MoveError where none was."""
    claims = (claim for claim in throttling.claims.rates if claim.setting != DISK_RATE)
    rates = {(claim.broker, claim.setting): int(claim.value) for claim in claims}
    if not rates:
        raise MoveError(
            f"it is not written down here that this move has set a throttle, so there is none to change for {option}:"
            " give it to `weir move execute`"
        )
    return rates
