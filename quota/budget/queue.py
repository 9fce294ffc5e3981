"""Whose turn it is when several links want the same budget: urgent ones first, then each replica its share in turn.

Turns go by bytes and by replica (start-time fair queueing): whoever had less goes first, and a follower that opens
twenty connections gets no more than one with a single connection.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

FLOOR = 0.05
"""Of the bytes granted: what is not the most urgent gets at least so much, so that none starves."""

CLAIM_SECONDS: Final = 1.0
"""How long a claim keeps others behind it when its link does not plan again."""

PLACE_SECONDS: Final = 5.0
"""How long its place in the line is kept after that, without keeping others behind it."""

_MOST_FINISHED = 256  # replicas whose last turn is remembered while others wait, or twice as many as still count


@dataclass(slots=True, eq=False)
class _Claim:
    link: Hashable
    replica: Hashable
    size: float  # bytes
    until: float  # clock seconds
    is_urgent: bool
    start: float  # in bytes: where its turn begins, on a scale on which every replica gets the same
    number: int

    def __lt__(self, other: _Claim) -> bool:
        return (self.start, self.number) < (other.start, other.number)


class BudgetQueue:
    """Links that found too little budget, in the order of their turns, each with the bytes that it waits for.

    A link further back may only take what those ahead leave, so a link that polls often cannot starve one that polls
    seldom. Urgent links stand ahead of all others, but for the floor's share. A claim lapses when its link does not
    come back for it: a stuck peer blocks no one. Its place is kept a while longer, or links that come back seldom would
    stand behind each other's claims for ever.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claims: dict[Hashable, _Claim] = {}
        self._line: list[_Claim] = []  # the same in their order
        self._finished: dict[Hashable, float] = {}  # by replica: where its last turn ended
        self._reached = 0.0  # where the turn served last began
        self._number = 0
        self._most_finished = _MOST_FINISHED
        self._urgent_count = 0
        # Every plan of every link asks what is ahead of it, and the line changes more seldom: it is summed up for all.
        self._is_summed = False
        self._places: list[tuple[float, int]] = []  # of the claims that have not lapsed, as in _Claim.__lt__
        self._sums: list[float] = [0.0]  # the bytes of all those before each of these places, and at last of all
        self._summed_until = -math.inf  # when the first of them lapses
        self._summed_most = math.inf  # bytes: what is behind so many is not summed up
        self._owed = 0.0  # bytes of the floor to come

    def ahead_of(
        self,
        link: Hashable,
        *,
        replica: Hashable = None,
        is_urgent: bool = False,
        turn: float = math.inf,
        most: float = math.inf,
    ) -> float:
        """Bytes claimed by the links in front of `link`, or of the place that it would get.

        `turn` is as in `wait`. More than `most` bytes may be told as any number that is not less.
        """
        now = self._drop_lapsed(link)
        own = self._claims.get(link)
        start = self._start_of(link if replica is None else replica, turn) if own is None else own.start
        number = self._number + 1 if own is None else own.number
        if not (self._urgent_count or is_urgent):
            if not self._is_summed or self._summed_until < now or self._summed_most < most:
                self._sum(now, most)
            return self._sums[bisect_left(self._places, (start, number))]
        has_ranks = not self._is_floor_due()
        ahead = 0.0
        for claim in self._line:
            # Read by every plan for hundreds of claims: no tuples, no method calls.
            is_passed = claim.start > start or (claim.start == start and claim.number >= number)
            if is_passed and not has_ranks:
                break
            if claim.until < now or claim is own:
                continue
            is_in_front = not is_passed if claim.is_urgent == is_urgent or not has_ranks else claim.is_urgent
            if is_in_front:
                ahead += claim.size
                if ahead >= most:
                    break
        return ahead

    def first(self) -> Hashable | None:
        """The link whose turn is next; None when nobody waits."""
        now = self._drop_lapsed(None)
        has_ranks = self._urgent_count > 0 and not self._is_floor_due()
        for claim in self._line:
            if claim.until >= now and (claim.is_urgent or not has_ranks):
                return claim.link
        return None

    def wait(
        self,
        link: Hashable,
        size: float,
        until: float,
        *,
        replica: Hashable = None,
        is_urgent: bool = False,
        turn: float = math.inf,
    ) -> None:
        """Keep `link`'s place, or give it one behind what its replica waits for; it lapses after `until` (clock).

        `turn` is what one turn of the link takes now, in bytes. Shares shrink as the line grows: what a replica had in
        larger ones counts as one turn against it, or it would wait for as many rounds as it had turns' worth.
        """
        claim = self._claims.get(link)
        if claim is not None:
            self._urgent_count += is_urgent - claim.is_urgent
            if claim.size != size or claim.until < self._clock():
                self._is_summed = False
            self._summed_until = min(self._summed_until, until)
            claim.size, claim.until, claim.is_urgent = size, until, is_urgent
            if claim.start > self._reached + turn and self._is_only_claim(claim):
                self._is_summed = False
                self._line = [other for other in self._line if other is not claim]
                claim.start = self._reached + turn
                insort(self._line, claim)
            return
        replica = link if replica is None else replica
        start = self._start_of(replica, turn)
        self._number += 1
        self._is_summed = False
        claim = self._claims[link] = _Claim(link, replica, size, until, is_urgent, start, self._number)
        insort(self._line, claim)
        self._urgent_count += is_urgent

    def served(self, link: Hashable, size: float, *, is_urgent: bool, replica: Hashable = None) -> None:
        """`link` had its turn, with `size` bytes."""
        replica = link if replica is None else replica
        claim = self._claims.get(link)
        # From where its turn began: another that went first, while this one was not there, costs it nothing.
        start = max(self._reached, self._finished.get(replica, 0.0)) if claim is None else claim.start
        if claim is not None:
            self._reached = max(self._reached, claim.start)
        self.leave(link)
        if self._line:
            self._finished[replica] = max(start + size, self._finished.get(replica, 0.0))
            if len(self._finished) > self._most_finished:
                self._finished = {one: end for one, end in self._finished.items() if end > self._reached}
                self._most_finished = max(_MOST_FINISHED, 2 * len(self._finished))  # not to look at all each time
        else:
            self._finished = {}  # nobody waited: what was had so far counts against no one
        if not is_urgent:
            self._owed = max(0.0, self._owed - size)
        elif len(self._line) > self._urgent_count:
            self._owed += size * FLOOR / (1 - FLOOR)

    def owe(self, replica: Hashable, size: float) -> None:
        """`replica` had `size` bytes without a turn: its next one is later by so much."""
        if self._line:
            self._finished[replica] = max(self._reached, self._finished.get(replica, 0.0)) + size

    def leave(self, link: Hashable) -> None:
        """`link` needs no turn."""
        claim = self._claims.pop(link, None)
        if claim is not None:
            self._is_summed = False
            # Not by `remove` and by counting down: an exception half way through `wait` leaves these apart.
            self._line = [other for other in self._line if other is not claim]
            self._urgent_count = sum([other.is_urgent for other in self._line]) if self._urgent_count else 0

    def __len__(self) -> int:
        return len(self._claims)

    def _start_of(self, replica: Hashable, turn: float) -> float:
        """Where the next turn of a replica begins: behind its last one, and behind all that it waits for."""
        start = min(max(self._reached, self._finished.get(replica, 0.0)), self._reached + turn)
        return start + sum([claim.size for claim in self._line if claim.replica == replica])

    def _sum(self, now: float, most: float) -> None:
        """Sum up what is in line, as far as somebody asks for it."""
        places, sums, total, lapses = [], [0.0], 0.0, math.inf
        for claim in self._line:
            if claim.until < now:
                continue
            places.append((claim.start, claim.number))
            total += claim.size
            sums.append(total)
            lapses = min(lapses, claim.until)
            if total >= most:
                break
        self._places, self._sums, self._summed_until = places, sums, lapses
        self._summed_most = most if total >= most else math.inf
        self._is_summed = True

    def _is_only_claim(self, claim: _Claim) -> bool:
        """Whether its replica waits for nothing else."""
        return not any(other.replica == claim.replica and other is not claim for other in self._line)

    def _is_floor_due(self) -> bool:
        """Whether those that are not urgent have waited for enough bytes: then all are alike for one turn."""
        now = self._clock()
        sizes = [claim.size for claim in self._line if not claim.is_urgent and claim.until >= now]
        return bool(sizes) and self._owed >= min(sizes)

    def _drop_lapsed(self, asking: Hashable) -> float:
        """Give up places that nobody came back to for long, from the front on; returns the time."""
        now = self._clock()
        while self._line and self._line[0].until + PLACE_SECONDS < now and self._line[0].link != asking:
            self.leave(self._line[0].link)
        return now
