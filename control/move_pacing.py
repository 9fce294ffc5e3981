"""Keeps a move's throttle: at the lowest rate that ends it by a deadline, or at what is free of each broker's link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from weir.control.errors import MoveError
from weir.control.move_admin import MoveAdmin
from weir.control.move_journal import Journal, JournalFile, Pacing
from weir.control.move_look import Look, leader_sizes
from weir.control.move_throttling import MoveThrottling
from weir.planning.assignment import Partition, Replica
from weir.planning.carried import Key
from weir.planning.finish_by import Limits, Moving, Pace, next_pace, taken_up
from weir.planning.headroom import INTERVAL_SECONDS, Allowance, Held, Passed, Reading, next_allowance
from weir.planning.headroom import taken_up as taken_up_allowance
from weir.planning.move_status import Copy
from weir.planning.move_throttle import DISK_RATE


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a move is to end, in seconds of the clock that is used with it, and the rates that are allowed.

    `pacing` is the same as it is written down, for another process on this machine.
    """

    at: float
    limits: Limits
    pacing: Pacing | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """What each broker's link carries in each direction (bytes/s), and the rates that are allowed.

    `passed` asks the sidecars what has passed besides the throttled replicas of some topics.
    """

    capacity: int
    limits: Limits
    passed: Callable[[frozenset[str]], Mapping[int, Passed]] = lambda topics: {}

    @property
    def pacing(self) -> Pacing:
        """The same as it is written down."""
        return Pacing(link_capacity=self.capacity, lowest=self.limits.lowest, highest=self.limits.highest)


class Pacer(Protocol):
    """Keeps the rate of a move. Only one may be at work on it: the plan's lock is held by whoever has it."""

    def step(self, admin: MoveAdmin, seen: Look, copies: Mapping[Replica, Copy]) -> Pace | Allowance:
        """Take in a look, and set other rates where they are needed. An error leaves them to the next look."""


def moving_of(seen: Look, copies: Mapping[Replica, Copy]) -> dict[Partition, Moving]:
    """Return what one look tells of each partition that has new replicas."""
    left: dict[Partition, dict[int, int]] = {}
    sizes: dict[Partition, int] = {}
    for replica, copy in copies.items():
        left.setdefault(replica.of, {})[replica.broker] = copy.left
        sizes[replica.of] = copy.of
    return {
        partition: Moving(
            seen.states[partition].leader, sizes[partition], len(seen.states[partition].replicas) - 1, behind
        )
        for partition, behind in left.items()
    }


def read_links(
    admin: MoveAdmin,
    seen: Look,
    copies: Mapping[Replica, Copy],
    brokers: frozenset[int],
    passed: Mapping[int, Passed],
) -> Reading:
    """Look at all that these brokers hold."""
    states = {
        partition: state for partition, state in admin.partitions().items() if not brokers.isdisjoint(state.replicas)
    }
    sizes = leader_sizes(admin, states)
    held = {
        partition: Held(state.leader, state.replicas, sizes[partition])
        for partition, state in states.items()
        if partition in sizes
    }
    return Reading(moving_of(seen, copies), held, passed)


class DeadlinePacer:
    """Keeps the lowest rate that ends a move by a deadline.

    Without `pace` it takes up a move that runs, at the rate that was written down.
    """

    def __init__(
        self,
        file: JournalFile,
        deadline: Deadline,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        pace: Pace | None = None,
    ) -> None:
        self._file = file
        self._deadline = deadline
        self._clock = clock
        self._sleep = sleep
        self._pace = pace
        self._set = pace.rate if pace is not None else None

    def step(self, admin: MoveAdmin, seen: Look, copies: Mapping[Replica, Copy]) -> Pace:
        """Plan the rate again where it is time to, and set it where it changes."""
        now = self._clock()
        moving = moving_of(seen, copies)
        limits = self._deadline.limits
        if self._pace is None:
            self._set = max(rates_in_force(admin, self._file, "--finish-by").values())
            if self._deadline.pacing is not None:
                MoveThrottling(admin, self._file, self._sleep).keep(self._deadline.pacing)
            self._pace = taken_up(self._set, now, moving, limits)
        else:
            self._pace = next_pace(self._pace, now, self._deadline.at - now, moving, limits)
        if self._pace.rate != self._set:
            MoveThrottling(admin, self._file, self._sleep).change_rates(self._pace.rate)
            self._set = self._pace.rate
        return self._pace


class LinkPacer:
    """Keeps each rate of a move at what others leave free of a broker's link.

    Without `allowance` it takes up a move that runs, at the rates that were written down.
    """

    def __init__(
        self,
        file: JournalFile,
        link: Link,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        allowance: Allowance | None = None,
    ) -> None:
        self._file = file
        self._link = link
        self._clock = clock
        self._sleep = sleep
        self._allowance = allowance
        self._set = dict(allowance.rates) if allowance is not None else {}

    def step(self, admin: MoveAdmin, seen: Look, copies: Mapping[Replica, Copy]) -> Allowance:
        """Plan the rates again where it is time to, and set those that change."""
        now = self._clock()
        if self._allowance is None:
            self._set = rates_in_force(admin, self._file, "--auto")
            self._allowance = taken_up_allowance(self._set, now, self._read(admin, seen, copies, frozenset(self._set)))
        elif now - self._allowance.planned_at >= INTERVAL_SECONDS:
            reading = self._read(admin, seen, copies, frozenset(self._allowance.rates))
            self._allowance = next_allowance(self._allowance, now, reading, self._link.capacity, self._link.limits)
        changed = {key: rate for key, rate in self._allowance.rates.items() if rate != self._set.get(key)}
        if changed:
            MoveThrottling(admin, self._file, self._sleep).change_rates(changed)
            self._set |= changed
        return self._allowance

    def _read(self, admin: MoveAdmin, seen: Look, copies: Mapping[Replica, Copy], keys: frozenset[Key]) -> Reading:
        topics = frozenset(replica.topic for replica in copies)
        brokers = frozenset(broker for broker, _ in keys)
        return read_links(admin, seen, copies, brokers, self._link.passed(topics))


def rates_in_force(admin: MoveAdmin, file: JournalFile, option: str) -> dict[Key, int]:
    """Return the rates that were written down of a move that runs. MoveError where none was."""
    journal: Journal | None = file.read(admin.cluster_id())
    claims = journal.claims.rates if journal is not None else ()
    rates = {(claim.broker, claim.setting): int(claim.value) for claim in claims if claim.setting != DISK_RATE}
    if not rates:
        raise MoveError(
            f"it is not written down here that this move has set a throttle, so there is none to change for {option}:"
            " give it to `weir move execute`"
        )
    return rates
