"""Keeps a move's throttle at the lowest rate that ends it by a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from control.errors import MoveError
from control.move_admin import MoveAdmin
from control.move_journal import JournalFile
from control.move_look import Look
from control.move_throttling import MoveThrottling
from planning.assignment import Partition, Replica
from planning.finish_by import Limits, Moving, Pace, next_pace, taken_up
from planning.move_status import Copy
from planning.move_throttle import DISK_RATE


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a move is to end, in seconds of the clock that is used with it, and the rates that are allowed."""

    at: float
    limits: Limits


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


class Pacer:
    """Plans the rate again at each look, and sets it where it changes.

    Only one may be at work on a move: the plan's lock is held by whoever has it. Without `pace` it takes up a move that
    runs, at the rate that was written down.
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
        """Take in a look, and set another rate where one is needed. An error leaves the rate to the next look."""
        now = self._clock()
        moving = moving_of(seen, copies)
        limits = self._deadline.limits
        if self._pace is None:
            self._set = self._rate_in_force(admin)
            self._pace = taken_up(self._set, now, moving, limits)
        else:
            self._pace = next_pace(self._pace, now, self._deadline.at - now, moving, limits)
        if self._pace.rate != self._set:
            MoveThrottling(admin, self._file, self._sleep).change_rate(self._pace.rate)
            self._set = self._pace.rate
        return self._pace

    def _rate_in_force(self, admin: MoveAdmin) -> int:
        journal = self._file.read(admin.cluster_id())
        rates = [claim for claim in journal.claims.rates if claim.setting != DISK_RATE] if journal is not None else []
        if not rates:
            raise MoveError(
                "it is not written down here that this move has set a throttle, so there is none to change for"
                " --finish-by: give it to `weir move execute`"
            )
        return max(int(claim.value) for claim in rates)
