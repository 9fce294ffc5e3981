"""How long a move takes under a quota, and which quota moves it in time: the arithmetic of KIP-73's Q&A.

Rates are bytes/s, sizes bytes, times seconds. Names are the KIP's: IN is what comes into a broker, T the throttle, N
the network, R the replication factor. Two factors that the KIP leaves out come from what past throttles did, and are 1
where nothing is known: `delivered`, a throttle's mean rate / quota, and `worst_second`, its worst second / quota.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from quota.settings import SideName

DAY: Final = 86_400
GROWTH_PERIODS: Final = (7 * DAY, DAY)
"""Seconds: week against week where there are two, so that weekdays meet weekdays; else day against day."""

COVERAGE: Final = 0.9
"""Share of a period's windows that must have been seen before it is taken for the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move and the brokers under it: bytes to move (more than 0), IN, N (None: not known), R, and the two factors."""

    to_move: float
    bytes_in: float
    network: float | None = None
    replication_factor: int = 3
    delivered: float = 1.0
    worst_second: float = 1.0


@dataclass(frozen=True, slots=True)
class QuotaBounds:
    """A quota must be above the one and below the other (None where the network is not known), both in bytes/s."""

    above: float
    below: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A quota in whole bytes/s, and the seconds that the move takes under it."""

    quota: int
    seconds: float


class ImpossibleMove(Exception):
    """What was asked cannot be done; the subclass says why, its fields say what would do."""


class NoQuota(ImpossibleMove):
    """No quota lies within the bounds: the network cannot carry it. One of more than `network` bytes/s would do."""

    def __init__(self, network: float) -> None:
        super().__init__(network)
        self.network = network


class QuotaTooLow(ImpossibleMove):
    """Bytes in take all that the quota lets through; more than `above` bytes/s would do, in time `needed`."""

    def __init__(self, above: float, needed: int | None = None) -> None:
        super().__init__(above, needed)
        self.above = above
        self.needed = needed


class QuotaTooHigh(ImpossibleMove):
    """The network has no room for the quota beside what clients send; less than `below` would do, in time `needed`."""

    def __init__(self, below: float, needed: int | None = None) -> None:
        super().__init__(below, needed)
        self.below = below
        self.needed = needed


class TooSlow(ImpossibleMove):
    """Under the quota asked for the move takes `seconds`, more than was allowed; `needed` bytes/s would do."""

    def __init__(self, seconds: float, needed: int) -> None:
        super().__init__(seconds, needed)
        self.seconds = seconds
        self.needed = needed


class TooSoon(ImpossibleMove):
    """The time asked for takes a quota of `needed`, which the network has no room for.

    `seconds` would do, at `quota` bytes/s, the largest there is room for; or to move `movable` bytes only.
    """

    def __init__(self, needed: int, quota: int, seconds: int, movable: float) -> None:
        super().__init__(needed, quota, seconds, movable)
        self.needed = needed
        self.quota = quota
        self.seconds = seconds
        self.movable = movable


def move_ratio(partitions_to_move: int, partitions: int) -> float:
    """MoveRatio = #partitions-to-be-moved / #total-partition-count (KIP-73, Script)."""
    return partitions_to_move / partitions


def bytes_to_move(ratio: float, log_size_per_broker: float, brokers: int) -> float:
    """MoveRatio x TotalLogSizePerBroker x #Brokers (KIP-73, Q&A 1), in bytes."""
    return ratio * log_size_per_broker * brokers


def move_seconds(move: Move, quota: float) -> float:
    """MoveTime = bytes to move / (quota - max(BytesInPerSec)) (KIP-73, Q&A 1); QuotaTooLow where it would never end.

    As if one broker took, or gave, every byte that moves: where several share them it is over sooner.
    """
    progress = move.delivered * quota - move.bytes_in
    if progress <= 0:
        raise QuotaTooLow(quota_bounds(move).above)
    return move.to_move / progress


def quota_for(move: Move, seconds: float) -> float:
    """Return the quota, in bytes/s, that moves everything in `seconds` (more than 0): MoveTime the other way round."""
    return (move.to_move / seconds + move.bytes_in) / move.delivered


def quota_bounds(move: Move) -> QuotaBounds:
    """IN < T < N - IN/R (KIP-73, Q&A 4): room to catch up and keep up, and for clients where all leaders gather."""
    above = move.bytes_in / move.delivered
    if move.network is None:
        return QuotaBounds(above, None)
    return QuotaBounds(above, (move.network - move.bytes_in / move.replication_factor) / move.worst_second)


def response_max_bytes_bound(
    leader_quota: float, window_seconds: float, brokers: int = 1, network: float | None = None
) -> float:
    """Return what `replica.fetch.response.max.bytes` must stay below, in bytes (KIP-73, Q&A 5).

    #brokers x response.max.bytes / min(QuotaLeader x #brokers, NetworkSpeed) < window: the first responses, one from
    each broker, return within the window of `replication.quota.window.num` x `.size.seconds`.
    """
    together = leader_quota * brokers
    return window_seconds * (together if network is None else min(together, network)) / brokers


def time_under(move: Move, quota: int) -> Answer:
    """Return how long the move takes under a quota (bytes/s); NoQuota, QuotaTooLow or QuotaTooHigh where it cannot."""
    highest = _highest_quota(move)
    seconds = move_seconds(move, quota)
    if highest is not None and quota > highest:
        raise QuotaTooHigh(quota_bounds(move).below or 0)
    return Answer(quota, seconds)


def quota_within(move: Move, seconds: float) -> Answer:
    """Return the least quota that moves everything within `seconds`; NoQuota or TooSoon say why none can."""
    quota = _least_quota(move, seconds, _highest_quota(move))
    return Answer(quota, move_seconds(move, quota))


def time_under_within(move: Move, quota: int, seconds: float) -> Answer:
    """Hold a quota to a time: NoQuota or TooSoon where none would do; else as `time_under`, and TooSlow.

    Where this quota would not do, the error names one that would.
    """
    needed = quota_within(move, seconds).quota
    try:
        found = time_under(move, quota)
    except QuotaTooLow as error:
        raise QuotaTooLow(error.above, needed) from None
    except QuotaTooHigh as error:
        raise QuotaTooHigh(error.below, needed) from None
    if needed > quota:
        raise TooSlow(found.seconds, needed)
    return found


def fastest(move: Move) -> Answer | None:
    """Return the largest quota there is room for; None where the network is not known, NoQuota where there is none."""
    highest = _highest_quota(move)
    return None if highest is None else Answer(highest, move_seconds(move, highest))


def _highest_quota(move: Move) -> int | None:
    """Return the largest quota below the upper bound, None where the network is not known; NoQuota where none is."""
    bounds = quota_bounds(move)
    if bounds.below is None:
        return None
    highest = math.ceil(bounds.below) - 1
    if move.delivered * highest <= move.bytes_in:
        least = math.floor(bounds.above) + 1
        raise NoQuota(least * move.worst_second + move.bytes_in / move.replication_factor)
    return highest


def _least_quota(move: Move, seconds: float, highest: int | None) -> int:
    """Return the least quota that is enough; TooSoon when it is more than `highest`."""
    needed = math.ceil(quota_for(move, seconds))
    if move.delivered * needed <= move.bytes_in:  # by rounding alone, where there is next to nothing to move
        needed += 1
    if highest is None or needed <= highest:
        return needed
    progress = move.delivered * highest - move.bytes_in
    possible = math.ceil(move.to_move / progress)
    if math.ceil(quota_for(move, possible)) > highest:  # by rounding alone
        possible += math.ceil(possible * 1e-12)
    raise TooSoon(needed, highest, possible, progress * seconds)


def bytes_in_weights(sides: Collection[str], replication_factor: int) -> Mapping[SideName, float]:
    """Return what a byte of replication, seen on a side of a broker, says of the bytes that came in: IN by side.

    What came in as a follower is what was replicated to it; what came in as a leader went out R - 1 times. Where only
    one side was measured the KIP's proportion stands in: IN/R of what comes in is for leaders (Q&A 4).
    """
    if replication_factor < 2:
        raise ValueError("Without replicas, replication says nothing of what came in.")
    followers = replication_factor - 1
    if "follower" not in sides:
        return {"leader": replication_factor / followers, "follower": 0.0}
    if "leader" not in sides:
        return {"leader": 0.0, "follower": replication_factor / followers}
    return {"leader": 1 / followers, "follower": 1.0}


@dataclass(frozen=True, slots=True)
class Growth:
    """The mean of the last period / that of the period before, of the same brokers; `period` in seconds."""

    ratio: float
    period: int


def growth_ratio(earlier: Mapping[int, float], later: Mapping[int, float]) -> float | None:
    """Return how the bytes in grew of those brokers that were seen in both periods, from their mean rates by id.

    None where there are none, or where they were idle. A broker that was seen in one period alone has not grown: it,
    or its sidecar, came or went.
    """
    both = earlier.keys() & later.keys()
    before = sum(earlier[broker] for broker in both)
    return sum(later[broker] for broker in both) / before if before > 0 else None
