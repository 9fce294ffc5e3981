"""The line of links that want the same budget: urgent ones first, then each replica in turn.

Turns go by bytes and by replica (start-time fair queueing), however many connections a follower has.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from weir.quota.figures import FLOOR, LAPSE_SECONDS, MOST_FINISHED, STUCK_SECONDS


@dataclass(slots=True, eq=False)
class Claim:
    """One link's place in a line."""

    link: Hashable
    replica: Hashable
    place: tuple[float, int]
    """Where its turn begins, in bytes (the scale on which every replica gets the same), and when it came."""
    size: float = 0.0  # bytes of credit that it waits for
    share: float = 0.0  # bytes that its turn takes
    until: float = math.inf  # clock seconds
    is_urgent: bool = False


class BudgetQueue:
    """Links that found too little budget, in the order of their turns, each with the bytes that it waits for.

    A link may take only what those ahead of it leave. Urgent links stand ahead, but for FLOOR's part of the bytes. A
    claim lapses when its link does not come back for it; its place is kept a while longer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.claims: dict[Hashable, Claim] = {}  # by link, also those that have lapsed
        self._claims_of: dict[Hashable, list[Claim]] = {}  # the same by replica
        self._finished: dict[Hashable, float] = {}  # by replica: where its last turn ended, in bytes
        self._reached = 0.0  # where the last turn began, in bytes
        self._number = 0
        self._owed = 0.0  # bytes that FLOOR has given to links that are not urgent and they have not had yet
        self._line: list[Claim] = []  # all claims, the next one first
        # Every plan of every link asks for the bytes ahead of it, and claims change less often: they are summed up
        # once. Claims that have lapsed are in the sums with 0 bytes.
        self._is_summed = True
        self._lapses_at = math.inf  # when the next claim lapses, or one that has lapsed is removed
        self._sums: list[float] = [0.0]  # the bytes ahead of each place in the line, and last the total
        self._urgent_sums: list[float] = [0.0]  # the same of the urgent claims
        self._has_urgent = False
        self._least_other = math.inf  # the smallest claim that is not urgent

    def ahead_of(
        self, link: Hashable, *, replica: Hashable = None, is_urgent: bool = False, turn: float = math.inf
    ) -> float:
        """Return the bytes claimed by the links ahead of `link`, or of where it would stand. `turn`: as in `wait`."""
        self._sum_up(link)
        own = self.claims.get(link)
        if own is None:
            place = self._index((self._start_of(link if replica is None else replica, turn), self._number))
        else:
            place = self._index(own.place)
        if not (self._has_urgent or is_urgent) or self._is_floor_due():
            return self._sums[place]
        urgent = self._urgent_sums
        if is_urgent:
            return urgent[place]
        return self._sums[place] + urgent[-1] - urgent[place if own is None else place + 1]

    def first(self) -> Hashable | None:
        """Return the link whose turn is next; None when nobody waits."""
        now = self._sum_up(None)
        has_ranks = self._has_urgent and not self._is_floor_due()
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
        share: float | None = None,
    ) -> None:
        """Keep `link`'s place until `until` (clock), or give it one after what its replica waits for already.

        `share` is what its turn takes in bytes, where that is not `size`. `turn` is what one turn of the link takes
        now: what a replica had in earlier, larger shares counts against it as one turn of that size.
        """
        claim = self.claims.get(link)
        if claim is None:
            replica = link if replica is None else replica
            claim = Claim(link, replica, (self._start_of(replica, turn), self._number))
            self._number += 1
            self._enter(claim)
        elif claim.place[0] > self._reached + turn and len(self._claims_of[claim.replica]) == 1:
            self.leave(link)
            claim.place = self._reached + turn, claim.place[1]
            self._enter(claim)
        elif (claim.size, claim.is_urgent) != (size, is_urgent) or claim.until < self._clock():
            self._is_summed = False
        claim.size, claim.share, claim.until = size, size if share is None else share, until
        claim.is_urgent = is_urgent
        self._lapses_at = min(self._lapses_at, until)

    def served(self, link: Hashable, size: float, *, is_urgent: bool, replica: Hashable = None) -> None:
        """Note that `link` had its turn, with `size` bytes."""
        replica = link if replica is None else replica
        claim = self.claims.get(link)
        # Counted from where its own turn began: it loses nothing to a link that went first while it was away.
        start = max(self._reached, self._finished.get(replica, 0.0)) if claim is None else claim.place[0]
        if claim is not None:
            self._reached = max(self._reached, start)
        self.leave(link)
        if not self.claims or len(self._finished) > MOST_FINISHED:
            self._finished = {}  # nobody waits: nothing had so far counts (or ids are made up)
        else:
            self._finished[replica] = max(start + size, self._finished.get(replica, 0.0))
        if not is_urgent:
            self._owed = max(0.0, self._owed - size)
        elif any([not other.is_urgent for other in self.claims.values()]):
            self._owed += size * FLOOR / (1 - FLOOR)

    def settle(self, replica: Hashable, more: int) -> None:
        """Note that a turn brought `more` bytes than it was given, or less where that is negative."""
        if replica in self._finished:
            self._finished[replica] += more

    def leave(self, link: Hashable) -> None:
        """Take `link` out of the line."""
        claim = self.claims.pop(link, None)
        if claim is not None:
            self._is_summed = False
            del self._line[self._index(claim.place)]
            others = self._claims_of[claim.replica]
            others.remove(claim)
            if not others:
                del self._claims_of[claim.replica]

    def __len__(self) -> int:
        return len(self.claims)

    def _start_of(self, replica: Hashable, turn: float) -> float:
        """Return where a replica's next turn begins: after its last one, and after all that it waits for."""
        start = min(max(self._reached, self._finished.get(replica, 0.0)), self._reached + turn)
        return start + sum([claim.share for claim in self._claims_of.get(replica, ())])

    def _is_floor_due(self) -> bool:
        """Whether links that are not urgent are owed a whole turn: then all links are treated alike for one turn."""
        return self._owed >= self._least_other

    def _index(self, place: tuple[float, int]) -> int:
        return bisect_left(self._line, place, key=attrgetter("place"))

    def _enter(self, claim: Claim) -> None:
        self._is_summed = False
        self._line.insert(self._index(claim.place), claim)
        self.claims[claim.link] = claim
        self._claims_of.setdefault(claim.replica, []).append(claim)

    def _sum_up(self, asking: Hashable) -> float:
        """Bring the sums up to date, without places whose links have not come back for long. Returns the time."""
        now, line = self._clock(), self._line
        if now > self._lapses_at:
            self._is_summed = False
            for claim in [claim for claim in line if claim.until + STUCK_SECONDS < now and claim.link != asking]:
                self.leave(claim.link)
            lapses = min([one.until + (STUCK_SECONDS if one.until < now else 0.0) for one in line], default=math.inf)
            self._lapses_at = max(lapses, now + LAPSE_SECONDS)
        if self._is_summed:
            return now
        self._is_summed = True
        sizes = [claim.size if claim.until >= now else 0.0 for claim in line]
        self._sums = [0.0, *accumulate(sizes)]
        self._urgent_sums, self._least_other = [0.0] * len(self._sums), math.inf
        self._has_urgent = any([claim.is_urgent for claim in line])
        if self._has_urgent:
            urgent = [size if claim.is_urgent else 0.0 for claim, size in zip(line, sizes, strict=True)]
            self._urgent_sums = [0.0, *accumulate(urgent)]
            others = [claim.size for claim in line if not claim.is_urgent and claim.until >= now]
            self._least_other = min(others, default=math.inf)
        return now
