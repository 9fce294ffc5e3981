"""The line of links that want the same budget: urgent ones first, then each replica in turn.

Turns go by bytes and by replica (start-time fair queueing): the replica that had fewer bytes goes first. A follower
with twenty connections gets no more than one with a single connection.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final

FLOOR = 0.05
"""The part of the granted bytes that goes to what is not the most urgent, so that nothing starves."""

CLAIM_SECONDS: Final = 1.0
"""How long a claim keeps others waiting if its link does not plan again."""

PLACE_SECONDS: Final = 5.0
"""How long a lapsed claim still keeps its place in the line, without keeping others waiting."""

# how late a lapse may be noticed: with hundreds of claims one lapses, or is kept a little longer, each millisecond
_LAPSE_SECONDS: Final = 0.02

# replicas whose last turn is remembered while others wait; or twice as many as still count, where that is more
_MOST_FINISHED = 256


_Place = tuple[float, int]


@dataclass(slots=True, eq=False)
class _Claim:
    link: Hashable
    replica: Hashable
    size: float  # bytes of credit that it waits for
    share: float  # bytes that its turn takes
    until: float  # clock seconds
    is_urgent: bool
    start: float  # where its turn begins, in bytes: the scale on which every replica gets the same
    number: int

    @property
    def place(self) -> _Place:
        """Its sort key in the line: where its turn begins (bytes), then when it came."""
        return self.start, self.number


class BudgetQueue:
    """Links that found too little budget, in the order of their turns, each with the bytes that it waits for.

    A link may take only what those ahead of it leave, so one that polls often cannot starve one that polls seldom.
    Urgent links stand ahead of all others, but for FLOOR's part of the bytes.

    A claim lapses when its link does not come back for it, so a stuck peer blocks no one. Its place is kept a while
    longer: links that come back seldom would otherwise be overtaken each time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claims: dict[Hashable, _Claim] = {}
        self._line: list[_Claim] = []  # the claims, in their order
        # Of each place in the line: with hundreds of claims it costs too much to look them up one by one.
        self._places: list[_Place] = []
        self._sizes: list[float] = []
        self._untils: list[float] = []
        self._waiting: dict[Hashable, list[_Claim]] = {}  # the claims by replica
        self._finished: dict[Hashable, float] = {}  # by replica: where its last turn ended, in bytes
        self._reached = 0.0  # where the last turn began, in bytes
        self._number = 0
        self._most_finished = _MOST_FINISHED
        self._urgent_count = 0
        self._owed = 0.0  # bytes that FLOOR has given to links that are not urgent and they have not had yet
        # Every plan of every link asks for the bytes ahead of it, and the line changes less often: they are summed up
        # once. Claims that have lapsed are in the sums with 0 bytes.
        self._is_summed = False
        self._summed_until = -math.inf  # when the first of these claims lapses
        self._sums: list[float] = [0.0]  # the bytes ahead of each place in the line, and last the total
        self._urgent_sums: list[float] = [0.0]  # the same of the urgent claims
        self._least_other = math.inf  # the smallest claim that is not urgent

    def ahead_of(
        self, link: Hashable, *, replica: Hashable = None, is_urgent: bool = False, turn: float = math.inf
    ) -> float:
        """Return the bytes claimed by the links ahead of `link`, or ahead of the place that it would get.

        `turn` is as in `wait`.
        """
        self._sum(self._drop_lapsed(link))
        own = self._claims.get(link)
        if own is None:
            start = self._start_of(link if replica is None else replica, turn)
            place = bisect_left(self._places, (start, self._number + 1))
        else:
            place = bisect_left(self._places, own.place)
        if not (self._urgent_count or is_urgent) or self._is_floor_due():
            return self._sums[place]
        urgent = self._urgent_sums
        if is_urgent:
            return urgent[place]
        return self._sums[place] + urgent[-1] - urgent[place if own is None else place + 1]

    def claim_of(self, link: Hashable) -> tuple[float, float] | None:
        """Return the bytes of credit that `link` waits for, and what its turn takes; None where it has no place."""
        claim = self._claims.get(link)
        return None if claim is None else (claim.size, claim.share)

    def first(self) -> Hashable | None:
        """Return the link whose turn is next; None when nobody waits."""
        now = self._drop_lapsed(None)
        self._sum(now)
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
        share: float | None = None,
    ) -> None:
        """Keep `link`'s place, or give it one after what its replica waits for already.

        The claim lapses at `until` (clock). `share` is what its turn takes in bytes, where that is not `size`: a large
        batch goes when there is credit for a part of it.

        `turn` is what one turn of the link takes now, in bytes. Shares shrink as the line grows. What a replica had in
        earlier, larger shares counts against it as one turn of `turn` bytes; counted in full, it would cost several
        rounds.
        """
        claim = self._claims.get(link)
        share = size if share is None else share
        if claim is not None:
            if claim.size != size or claim.is_urgent != is_urgent or claim.until < self._clock():
                self._is_summed = False
            self._summed_until = min(self._summed_until, until)
            self._urgent_count += is_urgent - claim.is_urgent
            claim.size, claim.share, claim.until, claim.is_urgent = size, share, until, is_urgent
            if claim.start > self._reached + turn and len(self._waiting[claim.replica]) == 1:
                self._is_summed = False
                claim.start = self._reached + turn
                self._rebuild()
            else:
                place = bisect_left(self._places, claim.place)
                self._sizes[place], self._untils[place] = size, until
            return
        replica = link if replica is None else replica
        start = self._start_of(replica, turn)
        self._number += 1
        self._is_summed = False
        claim = self._claims[link] = _Claim(link, replica, size, share, until, is_urgent, start, self._number)
        self._waiting.setdefault(replica, []).append(claim)
        place = bisect_left(self._places, claim.place)
        self._line.insert(place, claim)
        self._places.insert(place, claim.place)
        self._sizes.insert(place, size)
        self._untils.insert(place, until)
        self._urgent_count += is_urgent

    def served(self, link: Hashable, size: float, *, is_urgent: bool, replica: Hashable = None) -> None:
        """Note that `link` had its turn, with `size` bytes."""
        replica = link if replica is None else replica
        claim = self._claims.get(link)
        # Counted from where its own turn began: it loses nothing to a link that went first while it was away.
        start = max(self._reached, self._finished.get(replica, 0.0)) if claim is None else claim.start
        if claim is not None:
            self._reached = max(self._reached, claim.start)
        self.leave(link)
        if self._line:
            self._finished[replica] = max(start + size, self._finished.get(replica, 0.0))
            if len(self._finished) > self._most_finished:
                self._finished = {one: end for one, end in self._finished.items() if end > self._reached}
                # grows with the dictionary, so that not all of it is searched each time
                self._most_finished = max(_MOST_FINISHED, 2 * len(self._finished))
        else:
            self._finished = {}  # nobody waited, so nothing had so far counts against anyone
        if not is_urgent:
            self._owed = max(0.0, self._owed - size)
        elif len(self._line) > self._urgent_count:
            self._owed += size * FLOOR / (1 - FLOOR)

    def settle(self, replica: Hashable, more: int) -> None:
        """Note that a turn brought `more` bytes than it was given, or less where that is negative.

        A batch comes whole for a smaller turn, where there is room for it. Where there is none nothing comes.
        """
        if replica in self._finished:
            self._finished[replica] += more

    def leave(self, link: Hashable) -> None:
        """Take `link` out of the line."""
        claim = self._claims.pop(link, None)
        if claim is not None:
            self._is_summed = False
            place = bisect_left(self._places, claim.place)
            if self._line[place : place + 1] == [claim] and self._is_in_order():
                del self._line[place], self._places[place], self._sizes[place], self._untils[place]
            else:
                self._rebuild()
            waiting = [other for other in self._waiting.pop(claim.replica, ()) if other is not claim]
            if waiting:
                self._waiting[claim.replica] = waiting
            self._urgent_count = sum([other.is_urgent for other in self._line]) if self._urgent_count else 0

    def __len__(self) -> int:
        return len(self._claims)

    def _start_of(self, replica: Hashable, turn: float) -> float:
        """Return where a replica's next turn begins: after its last one, and after all that it waits for."""
        start = min(max(self._reached, self._finished.get(replica, 0.0)), self._reached + turn)
        return start + sum([claim.share for claim in self._waiting.get(replica, ())])

    def _is_in_order(self) -> bool:
        """Whether no change was left half done."""
        return len(self._line) == len(self._places) == len(self._sizes) == len(self._untils)

    def _rebuild(self) -> None:
        """Make the line anew: an exception half way through a change may have left it in disorder."""
        self._line = sorted(self._claims.values(), key=attrgetter("place"))
        self._places = [claim.place for claim in self._line]
        self._sizes = [claim.size for claim in self._line]
        self._untils = [claim.until for claim in self._line]

    def _sum(self, now: float) -> None:
        """Sum up the bytes in line, unless the sums are still right."""
        if self._is_summed and now <= self._summed_until:
            return
        if not (len(self._claims) == len(self._line) and self._is_in_order()):
            self._rebuild()
        line, sizes, untils = self._line, self._sizes, self._untils
        if untils and min(untils) < now:
            sizes = [size if until >= now else 0.0 for size, until in zip(sizes, untils, strict=True)]
            untils = [until for until in untils if until >= now]
        self._sums = [0.0, *accumulate(sizes)]
        self._summed_until = max(min(untils, default=math.inf), now + _LAPSE_SECONDS)
        if self._urgent_count:
            urgent = [size if claim.is_urgent else 0.0 for claim, size in zip(line, sizes, strict=True)]
            self._urgent_sums = [0.0, *accumulate(urgent)]
            others = [claim.size for claim in line if not claim.is_urgent and claim.until >= now]
            self._least_other = min(others, default=math.inf)
        else:
            self._urgent_sums = [0.0] * len(self._sums)
            self._least_other = math.inf  # asked for only where a claim is urgent
        self._is_summed = True

    def _is_floor_due(self) -> bool:
        """Whether links that are not urgent are owed a whole turn: then all links are treated alike for one turn."""
        return self._owed >= self._least_other

    def _drop_lapsed(self, asking: Hashable) -> float:
        """Drop places whose links have not come back for long, from the front on. Returns the time."""
        now = self._clock()
        while self._line and self._line[0].until + PLACE_SECONDS < now and self._line[0].link != asking:
            self.leave(self._line[0].link)
        return now
