# SPDX-License-Identifier: Apache-2.0
"""Finds out why a move stands still."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from weir.control.errors import ControlError
from weir.control.move_admin import MoveAdmin
from weir.control.move_journal import JournalFile
from weir.control.move_throttling import MoveThrottling
from weir.planning.assignment import Partition
from weir.planning.finish_by import Moving
from weir.planning.move_throttle import DISK_RATE
from weir.planning.stuck import Circumstances, Still, StillMeter, Stuck, why_stuck

ASKED_SECONDS: Final = 10.0
"""The cluster is asked for causes no more often."""


class StuckWatch:
    """Names the brokers that stand still in a move, each time the move is read, and says why.

    `file` has the rates that the move itself has set. `sentences` asks the sidecars who holds replicas up.
    """

    def __init__(
        self, file: JournalFile | None = None, sentences: Callable[[], Mapping[int, str]] = lambda: {}
    ) -> None:
        self._file = file
        self._sentences = sentences
        self._meter = StillMeter()
        self._asked_at: float | None = None
        self._found: tuple[Stuck, ...] = ()

    def stuck(self, admin: MoveAdmin, now: float, moving: Mapping[Partition, Moving]) -> tuple[Stuck, ...]:
        """Return the brokers that have got no nearer for STILL_SECONDS, with the cause of each.

        `moving` was read at `now` (s); call it each time that the move was read. Between two questions to the cluster
        the causes are those found last.
        """
        still = self._meter.measure(now, moving)
        if not still:
            self._found, self._asked_at = (), None
        elif self._asked_at is None or now - self._asked_at >= ASKED_SECONDS:
            self._asked_at = now
            found = self._circumstances(admin, still, moving)
            self._found = tuple(why_stuck(one, now, self._meter.moving, found) for one in still)
        return self._found

    def _circumstances(self, admin: MoveAdmin, still: list[Still], moving: Mapping[Partition, Moving]) -> Circumstances:
        alive = frozenset(admin.brokers())
        asked = {one.broker for one in still} | {one.leader for one in moving.values()}
        rates: dict[tuple[int, str], int] = {}
        for broker in sorted(asked & alive):
            try:
                own = admin.own_throttles([broker])[0]
            except ControlError:  # it has gone down meanwhile, which the next question shows
                continue
            rates |= {(broker, setting): int(value) for setting, value in own[broker].items() if setting != DISK_RATE}
        claims = MoveThrottling(admin, self._file).claims.rates if self._file is not None else ()
        own_rates = {(claim.broker, claim.setting): frozenset(map(int, claim.values)) for claim in claims}
        return Circumstances(alive, rates, own_rates, self._sentences())
