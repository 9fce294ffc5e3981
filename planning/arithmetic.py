# SPDX-License-Identifier: Apache-2.0
"""How long a move takes under a quota, and which quota moves it in time: the arithmetic of KIP-73's Q&A.

Rates are bytes/s, sizes bytes, times seconds. Names are the KIP's: IN is what comes into a broker, T the throttle, N
the network, R the replication factor.

Two factors are not in the KIP. They come from past throttles, and are 1 where nothing is known: `delivered` is a
throttle's mean rate / quota, `worst_second` its worst second / quota.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from weir.quota.settings import SideName

DAY: Final = 86_400
GROWTH_PERIODS: Final = (7 * DAY, DAY)
"""The periods compared to see growth, in seconds: week against week where two weeks are known, else day against day.

Whole weeks are better as they compare weekdays with weekdays.
"""

COVERAGE: Final = 0.9
"""The part of a period's windows (0 to 1) that must have been seen for the period to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move and its brokers: bytes to move (> 0), IN, N (None: not known), R, and the two factors."""

    to_move: float
    bytes_in: float
    network: float | None = None
    replication_factor: int = 3
    delivered: float = 1.0
    worst_second: float = 1.0


@dataclass(frozen=True, slots=True)
class QuotaBounds:
    """A quota must be above the first and below the second (None where the network is not known), both in bytes/s."""

    above: float
    below: float | None


@dataclass(frozen=True, slots=True)
class TimedQuota:
    """A quota in whole bytes/s, and the seconds that the move takes under it."""

    quota: int
    seconds: float


class ImpossibleMove(Exception):
    """The move asked for is not possible. The subclass says why; its fields say what would be possible."""


class NoQuota(ImpossibleMove):
    """No quota lies within the bounds, as the network is too slow.

    One of more than `network` bytes/s would be enough.
    """

    def __init__(self, network: float) -> None:
        super().__init__(network)
        self.network = network


class QuotaTooLow(ImpossibleMove):
    """Bytes in take all that the quota lets through. More than `above` bytes/s would do; `needed` would do in time."""

    def __init__(self, above: float, needed: int | None = None) -> None:
        super().__init__(above, needed)
        self.above = above
        self.needed = needed


class QuotaTooHigh(ImpossibleMove):
    """The network has no room for the quota beside the clients.

    Less than `below` would do; `needed` would do in time.
    """

    def __init__(self, below: float, needed: int | None = None) -> None:
        super().__init__(below, needed)
        self.below = below
        self.needed = needed


class TooSlow(ImpossibleMove):
    """Under the quota asked for the move takes `seconds`, longer than allowed; `needed` bytes/s would do."""

    def __init__(self, seconds: float, needed: int) -> None:
        super().__init__(seconds, needed)
        self.seconds = seconds
        self.needed = needed


class TooSoon(ImpossibleMove):
    """The time asked for takes a quota of `needed` bytes/s, for which the network has no room.

    Possible instead: `seconds` at `quota` bytes/s, the largest with room on the network; or only `movable` bytes in
    time.
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

    It assumes that one broker receives, or sends, every byte of the move. Where several share them it ends sooner.
    """
    progress = move.delivered * quota - move.bytes_in
    if progress <= 0:
        raise QuotaTooLow(quota_bounds(move).above)
    return move.to_move / progress


def quota_for(move: Move, seconds: float) -> float:
    """Return the quota (bytes/s) that moves everything in `seconds` (> 0): MoveTime solved for the quota."""
    return (move.to_move / seconds + move.bytes_in) / move.delivered


def quota_bounds(move: Move) -> QuotaBounds:
    """IN < T < N - IN/R (KIP-73, Q&A 4).

    Above IN the replicas can catch up and keep up. Below the other bound clients have room even on a broker with all
    leaders.
    """
    above = move.bytes_in / move.delivered
    if move.network is None:
        return QuotaBounds(above, None)
    return QuotaBounds(above, (move.network - move.bytes_in / move.replication_factor) / move.worst_second)


def response_max_bytes_bound(
    leader_quota: float, window_seconds: float, brokers: int = 1, network: float | None = None
) -> float:
    """Return the bound in bytes that `replica.fetch.response.max.bytes` must stay below (KIP-73, Q&A 5).

    #brokers x response.max.bytes / min(QuotaLeader x #brokers, NetworkSpeed) < window. In words: the first responses,
    one from each broker, return within the window of `replication.quota.window.num` x `.size.seconds`.
    """
    together = leader_quota * brokers
    return window_seconds * (together if network is None else min(together, network)) / brokers


def time_under(move: Move, quota: int) -> TimedQuota:
    """Return how long the move takes under a quota (bytes/s).

    NoQuota, QuotaTooLow or QuotaTooHigh where that is impossible.
    """
    highest = _highest_quota(move)
    seconds = move_seconds(move, quota)
    if highest is not None and quota > highest:
        raise QuotaTooHigh(quota_bounds(move).below or 0)
    return TimedQuota(quota, seconds)


def quota_within(move: Move, seconds: float) -> TimedQuota:
    """Return the least quota that moves everything within `seconds`. NoQuota or TooSoon where none can."""
    quota = _least_quota(move, seconds, _highest_quota(move))
    return TimedQuota(quota, move_seconds(move, quota))


def time_under_within(move: Move, quota: int, seconds: float) -> TimedQuota:
    """Return how long the move takes under a quota, which has to be at most `seconds`.

    NoQuota or TooSoon where no quota can do that. Else the errors of `time_under`, or TooSlow; they name a quota that
    can.
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


def fastest(move: Move) -> TimedQuota | None:
    """Return the largest quota that the network has room for.

    None where the network is not known; NoQuota where it has none.
    """
    highest = _highest_quota(move)
    return None if highest is None else TimedQuota(highest, move_seconds(move, highest))


def _highest_quota(move: Move) -> int | None:
    """Return the largest quota below the upper bound.

    None where the network is not known; NoQuota where there is none.
    """
    bounds = quota_bounds(move)
    if bounds.below is None:
        return None
    highest = math.ceil(bounds.below) - 1
    if move.delivered * highest <= move.bytes_in:
        least = math.floor(bounds.above) + 1
        raise NoQuota(least * move.worst_second + move.bytes_in / move.replication_factor)
    return highest


def _least_quota(move: Move, seconds: float, highest: int | None) -> int:
    """Return the least quota that moves everything within `seconds`; TooSoon where it is more than `highest`."""
    needed = math.ceil(quota_for(move, seconds))
    if move.delivered * needed <= move.bytes_in:  # only by rounding, where there is next to nothing to move
        needed += 1
    if highest is None or needed <= highest:
        return needed
    progress = move.delivered * highest - move.bytes_in
    possible = math.ceil(move.to_move / progress)
    if math.ceil(quota_for(move, possible)) > highest:  # only by rounding
        possible += math.ceil(possible * 1e-12)
    raise TooSoon(needed, highest, possible, progress * seconds)


def bytes_in_weights(sides: Collection[str], replication_factor: int) -> Mapping[SideName, float]:
    """Return the weights that turn bytes of replication, as seen on each side of a broker, into IN.

    Bytes that came in as a follower are the bytes replicated to the broker. Bytes that came in as a leader were sent R
    - 1 times. Where only one side was measured, the KIP's proportion fills in the other: IN/R of what comes in is for
    leaders (Q&A 4).
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
    """The mean of the last period / the mean of the period before, of the same brokers; `period` in seconds."""

    ratio: float
    period: int


def growth_ratio(earlier: Mapping[int, float], later: Mapping[int, float]) -> float | None:
    """Return by how much bytes in grew, from mean rates by broker id in two periods.

    Only brokers seen in both periods count: a broker seen in one of them came or went, or its sidecar did, and has not
    grown. None where there are none, or where they were idle.
    """
    both = earlier.keys() & later.keys()
    before = sum(earlier[broker] for broker in both)
    return sum(later[broker] for broker in both) / before if before > 0 else None
