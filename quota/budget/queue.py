# SPDX-License-Identifier: Apache-2.0
"""The line of links that want the same budget: urgent ones first, then each broker in turn.

Turns go by bytes and by the broker at the other end (start-time fair queueing), however many connections it has.
Bytes are measured in turns: so who had a large share while few were in line has had one turn, as everybody since.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from weir.quota.figures import FLOOR, MOST_FINISHED, STUCK_SECONDS


@dataclass(slots=True, eq=False)
class Claim:
    """One link's place in a line."""

    link: Hashable  # None while its connection has ended: the next one of its broker takes the place
    broker: Hashable
    place: tuple[float, int]
    """Where its turn begins, in turns (the scale on which every broker gets the same), and when it came."""
    size: float = 0.0  # bytes of credit that it waits for
    share: float = 0.0  # bytes that are granted to it
    turns: float = 0.0  # the same in turns
    until: float = math.inf  # clock seconds
    is_urgent: bool = False


_PLACE: Final = attrgetter("place")


class BudgetQueue:
    """Links that found too little budget, in the order of their turns, each with the bytes that it waits for.

    A link may take only what those ahead of it leave. Urgent links stand ahead, but for FLOOR's part of the bytes. A
    claim lapses when its link does not come back for it; its place is kept a while longer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.claims: dict[Hashable, Claim] = {}  # by link, also those that have lapsed
        self._line: list[Claim] = []  # the same, the next one first
        self._of: dict[Hashable, list[Claim]] = {}  # the same by broker
        self._away: dict[Hashable, Claim] = {}  # by broker: the place of a link that has ended, one at the most
        self._oldest = math.inf  # none has lapsed earlier (clock seconds)
        self._urgent = 0  # how many of them are urgent
        self.turn_bytes = 1.0  # how much one turn is at present
        self._finished: dict[Hashable, float] = {}  # by broker: where its last turn ended, in turns
        self._reached = 0.0  # where the last turn began, in turns
        self._number = 0
        self._owed = 0.0  # bytes that FLOOR has given to links that are not urgent and they have not had yet

    def ahead_of(self, link: Hashable, *, broker: Hashable = None, is_urgent: bool = False) -> float:
        """Return the bytes claimed by the links ahead of `link`, or of where it would stand."""
        now, line, own = self._clock(), self._line, self._own(link, broker)
        place = (self._start_of(link if broker is None else broker), self._number) if own is None else own.place
        in_front = line[: (index := bisect_left(line, place, key=_PLACE))]
        if self._has_ranks(is_urgent=is_urgent):
            in_front = [claim for claim in in_front if claim.is_urgent or not is_urgent]
            in_front += [claim for claim in line[index:] if claim.is_urgent and claim is not own and not is_urgent]
        return sum([claim.size for claim in in_front if claim.until >= now])

    def first(self) -> Hashable | None:
        """Return the link whose turn is next; None when nobody waits."""
        now, has_ranks = self._clock(), self._has_ranks()
        live = (claim for claim in self._line if claim.until >= now and (claim.is_urgent or not has_ranks))
        return next((claim.link for claim in live if claim.link is not None), None)

    def wait(
        self,
        link: Hashable,
        size: float,
        until: float,
        *,
        broker: Hashable = None,
        is_urgent: bool = False,
        share: float | None = None,
    ) -> None:
        """Keep `link`'s place until `until` (clock), or give it one after what its broker waits for already.

        `share` is what its turn takes in bytes, where that is not `size`.
        """
        claim = self._own(link, broker)
        if claim is None:
            broker = link if broker is None else broker
            claim = self.claims[link] = Claim(link, broker, (self._start_of(broker), self._number))
            insort(self._line, claim, key=_PLACE)
            insort(self._of.setdefault(broker, []), claim, key=_PLACE)
            self._number += 1
        claim.size, claim.share, claim.until = size, size if share is None else share, until
        self._oldest = min(self._oldest, until)
        claim.turns = claim.share / self.turn_bytes
        self._urgent += is_urgent - claim.is_urgent
        claim.is_urgent = is_urgent

    def served(self, link: Hashable, size: float, *, is_urgent: bool, broker: Hashable = None) -> None:
        """Note that `link` had its turn, with `size` bytes."""
        claim = self._own(link, broker)
        broker = link if broker is None else broker
        # Counted from where its own turn began: it loses nothing to a link that went first while it was away.
        start = max(self._reached, self._finished.get(broker, 0.0)) if claim is None else claim.place[0]
        if claim is not None:
            self._reached = max(self._reached, start)
        self.leave(link)
        if self._oldest < (long_ago := self._clock() - STUCK_SECONDS):
            for lapsed in [claim for claim in self._line if claim.until < long_ago]:
                self._remove(lapsed)
            self._oldest = min([claim.until for claim in self._line], default=math.inf)
        if not self._line or len(self._finished) > MOST_FINISHED:
            self._finished = {}  # nobody waits: nothing had so far counts (or ids are made up)
        else:
            self._finished[broker] = max(start + size / self.turn_bytes, self._finished.get(broker, 0.0))
        if not is_urgent:
            self._owed = max(0.0, self._owed - size)
        elif self._urgent < len(self._line):
            self._owed += size * FLOOR / (1 - FLOOR)

    def settle(self, broker: Hashable, more: int) -> None:
        """Note that a turn brought `more` bytes than it was given, or less where that is negative."""
        if broker in self._finished:
            self._finished[broker] += more / self.turn_bytes

    def leave(self, link: Hashable) -> None:
        """Take `link` out of the line."""
        if (claim := self.claims.get(link)) is not None:
            self._remove(claim)

    def go_away(self, link: Hashable) -> None:
        """Note that `link` has ended. Its place is for the next link of its broker: some connect for each fetch."""
        claim = self.claims.get(link)
        if claim is None:
            return
        if claim.broker in self._away:
            self._remove(claim)
            return
        del self.claims[link]
        claim.link = None
        self._away[claim.broker] = claim

    def _own(self, link: Hashable, broker: Hashable) -> Claim | None:
        """Return the link's place; that of an ended link of its broker becomes its own.

        A link that turned out to be another broker's has none.
        """
        claim = self.claims.get(link)
        if claim is not None and broker is not None and claim.broker != broker:
            self._remove(claim)
            claim = None
        if claim is None and (claim := self._away.pop(link if broker is None else broker, None)) is not None:
            claim.link = link
            self.claims[link] = claim
        return claim

    def _remove(self, claim: Claim) -> None:
        if claim.link is None:
            del self._away[claim.broker]
        else:
            del self.claims[claim.link]
        self._urgent -= claim.is_urgent
        self._line.remove(claim)
        self._of[claim.broker].remove(claim)
        if not self._of[claim.broker]:
            del self._of[claim.broker]

    def _start_of(self, broker: Hashable) -> float:
        """Return where a broker's next turn begins: after its last one, and after all that it waits for."""
        start = max(self._reached, self._finished.get(broker, 0.0))
        return start + sum([claim.turns for claim in self._of.get(broker, ())])

    def _has_ranks(self, *, is_urgent: bool = False) -> bool:
        """Whether urgent links go first: not for one turn where the others are owed a whole one."""
        if not is_urgent and not self._urgent:
            return False
        now = self._clock()
        others = [claim.size for claim in self._line if claim.until >= now and not claim.is_urgent]
        return self._owed < min(others, default=math.inf)
