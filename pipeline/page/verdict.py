# SPDX-License-Identifier: Apache-2.0
"""What a range of the tables says to an operator: the figures of the five answers, as `answers` puts them in words.

Times are UTC, rates bytes/s, and times on the way whole minutes since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from weir.pipeline.page.replica import Replica

NIGHT: frozenset[int] = frozenset({22, 23, 0, 1, 2, 3, 4, 5})
"""The hours of the night, by the clock of the reader."""

BINDING = 0.05
"""The part of the time from which a quota counts as what holds moves up."""


@dataclass(frozen=True, slots=True)
class ClientRates:
    """What the clients of a broker read and wrote, in bytes/s, in minutes with throttled bytes there.

    `read_before` and `written_before` are of the minutes without, up to an hour before one with; None: not sampled.
    """

    broker_id: int
    read: float
    written: float
    read_before: float | None
    written_before: float | None

    @property
    def lost(self) -> float | None:
        """By how much clients moved less, in bytes/s; below 0 where they moved more."""
        if self.read_before is None or self.written_before is None:
            return None
        return self.read_before + self.written_before - self.read - self.written


@dataclass(frozen=True, slots=True)
class Impact:
    """Which replicas were out of sync, and what others moved meanwhile.

    - `throttled_size`: bytes of throttled replicas, on the side that saw more of them.
    - `movers` were moved themselves. `hurt` were not, and were out of sync in a minute in which throttled bytes passed
      on a broker of theirs. `away` are on a broker that was away. `others` were out of sync at other times.
    - `during` and `apart`: mean rate of replicas that were not throttled, over all brokers, in minutes with throttled
      bytes and in those without; None where there was no such minute.
    - `clients` were limited by records, and waited for `waited_seconds` together. `records_during` and `records_apart`
      are their mean records/s in such minutes, over all of them.
    - `of_clients`: what clients moved, with limits or without; the broker whose clients lost most comes first.
    """

    throttled_size: int
    movers: int
    hurt: int
    away: int
    others: int
    worst_hurt: tuple[tuple[Replica, float], ...]
    during: float | None
    apart: float | None
    clients: int
    waited_seconds: float
    records_during: float | None
    records_apart: float | None
    of_clients: tuple[ClientRates, ...]


@dataclass(frozen=True, slots=True)
class MoveCost:
    """What the moves of a replica cost in the range.

    - `hurt_minutes`: minutes out of sync of replicas that were `hurt`, while it moved, on that one of its brokers where
      they are more. Each replica's count.
    - `bound_seconds`: for how long the quota held replicas back on that one of its sides where that was longer.
    """

    replica: Replica
    size: int
    hurt_minutes: int
    bound_seconds: float
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class OpenMove:
    """A move that has not ended, `lag_messages` behind at `seen_at`.

    It ends at `end` by the pace of the last half hour. The paces of the last 10 minutes, half hour and hour give
    `earliest` and `latest`: None where one of them does not come closer. All are None where no pace is known.
    """

    replica: Replica
    seen_at: datetime
    lag_messages: int
    end: datetime | None
    earliest: datetime | None
    latest: datetime | None


@dataclass(frozen=True, slots=True)
class Ends:
    """The `count` moves of the range: those that are `open`, and `unseen` ones, open when they were last seen.

    `last_end` is when the last one ended that did.
    """

    count: int
    open: tuple[OpenMove, ...]
    unseen: int
    last_end: datetime | None

    @property
    def end(self) -> datetime | None:
        """When the last open move ends; None where that is not known of each."""
        return _last([move.end for move in self.open])

    @property
    def earliest(self) -> datetime | None:
        """The earliest time at which all may have ended."""
        return _last([move.earliest for move in self.open])

    @property
    def latest(self) -> datetime | None:
        """The latest time, by the paces that were seen."""
        return _last([move.latest for move in self.open])


@dataclass(frozen=True, slots=True)
class Bound:
    """For how long a quota held replicas back on a broker's side, of the `moving_seconds` with throttled replicas."""

    broker_id: int
    side: str
    seconds: float
    moving_seconds: float

    @property
    def share(self) -> float:
        """The part of the time in which it moved throttled replicas, 0 to 1."""
        return self.seconds / self.moving_seconds if self.moving_seconds else 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """What a higher rate would meet.

    - `rates`: the least and the most bytes/s of the quotas that were in force last.
    - `bound`, `bound_by_night`, `bound_last_hour`: the part of the time with throttled replicas in which a quota held
      them back; None where there was no such time.
    - `others`, `others_by_night`: the highest mean of a minute of replicas that are not throttled, on one broker's
      side; None where no such minute was sampled.
    - `most_seen`: the same of all replicas.
    """

    rates: tuple[int, int] | None
    bound: float | None
    bound_by_night: float | None
    bound_last_hour: float | None
    others: float | None
    others_by_night: float | None
    most_seen: float | None

    @property
    def room(self) -> float | None:
        """The highest rate that is known to fit beside the others: by night where nights were sampled."""
        others = self.others if self.others_by_night is None else self.others_by_night
        return None if others is None or self.most_seen is None else max(0.0, self.most_seen - others)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of the five answers. `sampled_until` is the end of the last sampled minute, None without any."""

    sampled_until: datetime | None
    impact: Impact
    costs: tuple[MoveCost, ...]
    ends: Ends
    bound: tuple[Bound, ...]
    room: Room

    def cost_of(self, replica: Replica) -> MoveCost | None:
        """Return what a replica's moves cost, where that was read."""
        return next((cost for cost in self.costs if cost.replica == replica), None)


def _last(times: list[datetime | None]) -> datetime | None:
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None
