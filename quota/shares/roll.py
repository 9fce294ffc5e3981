"""Who of those that share rates can be heard, and whose part the others may divide.

A member that is not heard for long is *missing*. It may have ended, or only be cut off and go on with its own part.
The others divide that part only where all of them miss it, and where most members are known to be there or to have
ended. So a few that are cut off never divide what the others use, and the sum exceeds the rate by the parts of missing
members at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

MOST_ASKED_PER_SECOND: Final = 30
"""With more members each is asked less often, and loans are longer."""

LOAN_ROUNDS: Final = 3
"""How many rounds of asking a loan is for: two answers may be lost."""

MISSING_ROUNDS: Final = 5
"""After how many rounds without a word a member is missing. By then all that it has lent or borrowed has ended."""

MARGIN_SECONDS: Final = 0.5
"""How much earlier than its lender a borrower takes a loan for ended: it looks a few times a second only."""


class Pace(NamedTuple):
    """How often members are asked, and what follows from it (seconds)."""

    round_seconds: float
    loan_seconds: float
    missing_seconds: float


class Refusals(NamedTuple):
    """How often a member's host has refused connections, and when it last did (clock seconds)."""

    times: int
    last_at: float


class _Said(NamedTuple):
    """Whom a member misses, as it said at a moment (clock seconds), or somewhat later."""

    at: float
    misses: frozenset[int]


_NO_REFUSALS: Final = Refusals(0, -math.inf)
_NOTHING_SAID: Final = _Said(-math.inf, frozenset())


def pace_of(members: int) -> Pace:
    """Return the pace for so many members."""
    seconds = max(1.0, members / MOST_ASKED_PER_SECOND)
    return Pace(seconds, LOAN_ROUNDS * seconds, MISSING_ROUNDS * seconds)


class Roll:
    """Those that share rates with member `own_id`. `clock` gives monotonic seconds; nobody else's clock matters."""

    def __init__(self, own_id: int, clock: Callable[[], float]) -> None:
        self.own_id = own_id
        self.pace = pace_of(1)
        self._clock = clock
        self._asking_since = math.inf
        self._heard_at: dict[int, float] = {}
        self._said: dict[int, _Said] = {}
        self._refused_at: dict[int, float] = {}  # the first refusal since it was heard
        self._refusals: dict[int, Refusals] = {}

    def set_members(self, members: Collection[int]) -> None:
        """Take all that rates are shared with."""
        self.pace = pace_of(len(members))
        for known in (self._heard_at, self._said, self._refused_at, self._refusals):
            for gone in [one for one in known if one not in members]:
                del known[gone]

    def begin(self) -> None:
        """Note that all are asked from now on, once in a round."""
        if self._asking_since == math.inf:
            self._asking_since = self._clock()
            self._refused_at.clear()
            self._said.clear()

    def end(self) -> None:
        """Note that nobody is asked any more: from silence nothing follows then."""
        self._asking_since = math.inf

    def hear(self, member: int, misses: Collection[int] | None = None, asked_at: float | None = None) -> None:
        """Note that a member asked or answered; `misses` are those that it misses, where it said so.

        `asked_at`: for an answer, when it was asked for. What it says may be as old as that: it may since have heard
        from one that it missed, and borrowed from it. So an answer counts for nothing against what was said later.
        """
        now = self._clock()
        said_at = now if asked_at is None else asked_at
        self._heard_at[member] = now
        self._refused_at.pop(member, None)
        is_news = said_at >= self._said.get(member, _NOTHING_SAID).at and now - said_at < self.pace.loan_seconds
        if misses is not None and is_news:
            self._said[member] = _Said(said_at, frozenset(misses))

    def refuse(self, member: int) -> None:
        """Note that a member's host refuses connections: it does not run."""
        now = self._clock()
        self._refusals[member] = Refusals(self.refusals_of(member).times + 1, now)
        self._refused_at.setdefault(member, now)

    def refusals_of(self, member: int) -> Refusals:
        """Return how often a member's host has refused connections, and when it last did (-inf: never)."""
        return self._refusals.get(member, _NO_REFUSALS)

    def heard_ages(self) -> dict[int, float]:
        """Return the seconds since each member was heard that was heard at all."""
        now = self._clock()
        return {member: now - at for member, at in self._heard_at.items()}

    def missing(self, members: Collection[int]) -> frozenset[int]:
        """Return those of `members` that do not run, or were not heard for long, although they were asked."""
        if self._asking_since == math.inf:
            return frozenset()
        long_ago = self._clock() - self.pace.missing_seconds
        silent_since = long_ago if self._asking_since <= long_ago else -math.inf
        return frozenset(
            [
                one
                for one in members
                if one != self.own_id and (self._heard_at.get(one, -math.inf) < silent_since or one in self._refused_at)
            ]
        )

    def divided(self, members: Collection[int]) -> frozenset[int]:
        """Return those of `members` whose parts the others may divide."""
        missing = self.missing(members)
        if not missing:
            return missing
        there = [one for one in members if one != self.own_id and one not in missing]
        # One that was never heard may listen elsewhere: nothing follows from its silence.
        agreed = frozenset([one for one in missing if one in self._heard_at and self._all_miss(one, there)])
        doubtful = missing - (agreed & self._refused_at.keys())
        return agreed if 2 * len(doubtful) < len(members) else frozenset()

    def _all_miss(self, one: int, others: Collection[int]) -> bool:
        """Whether all `others` said that they miss `one`, since it has been missing here.

        What they said earlier may be of another life of it: they may have heard from it since, and borrowed from it.
        """
        since = min(self._refused_at.get(one, math.inf), self._heard_at[one] + self.pace.missing_seconds)
        said = [self._said.get(other, _NOTHING_SAID) for other in others]
        return all(one in word.misses and word.at >= since for word in said)
