# SPDX-License-Identifier: Apache-2.0
"""One member's part of a rate: what it may use now, and what it gives to others when it divides the rate.

**A part** above rate / N may be used for `lease_seconds`; one below binds for `hold_seconds`, which is longer. The one
that divides counts from when it sends a part, who has it from the answer before. So nobody compares clocks.

**Who divides** counts each other member at the most that it may use until a part that is given now has ended, and at
rate / N at least, unless it said lately that a part binds it to less. It uses itself what is left.

**One group at a time.** Whom a part binds takes parts from nobody else and gives none; from whom others took parts
takes none. **Who has ended** counts for nothing after `quiet_seconds`, where more members are in the group than
unknown. One that is only silent may go on, and its rate / N stays its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

MARGIN_SECONDS: Final = 0.5  # a part ends sooner for who has it, and binds longer: shares come in force by and by

Refusal = Literal["not_a_member", "other_terms"]
Absence = Literal["ended", "without"]  # why a member uses nothing: it does not run, or does not have the rate


class Pace(NamedTuple):
    """How often a member is told its part, and what follows from it (seconds)."""

    round_seconds: float
    lease_seconds: float
    hold_seconds: float

    @property
    def known_seconds(self) -> float:
        """For how long it counts that a part binds: then it still does when a part that is given now has ended."""
        return self.hold_seconds - self.lease_seconds

    @property
    def quiet_seconds(self) -> float:
        """For how long a part binds whom it reaches. As long a new life uses nothing: the one before may be bound."""
        return self.hold_seconds + MARGIN_SECONDS


def pace_of(members: int) -> Pace:
    """Return the pace for so many members: nobody tells more than 60 others a second."""
    seconds = max(0.5, members / 60)
    return Pace(seconds, 5 * seconds, 8 * seconds)


class Terms(NamedTuple):
    """What is shared: `rate` (bytes/s), and the ids of the members that share it."""

    rate: float
    members: frozenset[int]


class Allotment(NamedTuple):
    """What the one that divides tells another one."""

    rate: float
    members: int  # how many share it, as the one that divides knows
    number: int  # those of one life grow. 0: nothing is given yet
    size: float  # in bytes/s
    said_at: float  # what the other one's clock showed when it answered last
    is_divided: bool  # whether others have taken parts from this one


class Word(NamedTuple):
    """The answer to a part."""

    demand: float  # what it would use at most, in bytes/s
    said_at: float
    takes: bool  # whether the part binds it now
    divides: bool  # whether it would divide the rate itself


class _Held(NamedTuple):
    giver: tuple[int, int]  # and its life
    number: int
    size: float
    until: float
    taken_at: float


class _Given(NamedTuple):
    number: int
    size: float
    at: float


class _Heard(NamedTuple):
    demand: float
    said_at: float
    at: float


class _Absent(NamedTuple):
    why: Absence
    since: float
    at: float


class Share:
    """What member `own_id` may use of a rate (bytes/s). `numbers`: of parts; nothing is used until `quiet_until`."""

    def __init__(
        self, own_id: int, terms: Terms, clock: Callable[[], float], numbers: Iterator[int], quiet_until: float
    ) -> None:
        self.own_id = own_id
        self.terms = terms
        self.demand = 0.0  # what this member would use at most, in bytes/s
        self._clock = clock
        self._numbers = numbers
        self._quiet_until = quiet_until
        self._held: _Held | None = None
        self._given: dict[
            int, list[_Given]
        ] = {}  # what others may have; the first is what binds them, where they said so
        self._bound_by: dict[int, int] = {}
        self._heard: dict[int, _Heard] = {}
        self._absent: dict[int, _Absent] = {}
        self._taken_at = self._yielded_at = -math.inf

    @property
    def pace(self) -> Pace:
        """How often members are told their parts."""
        return pace_of(len(self.terms.members))

    @property
    def without(self) -> frozenset[int]:
        """Members that said that they do not have the rate."""
        return frozenset([one for one, absent in self._absent.items() if absent.why == "without"])

    def current(self) -> float:
        """Return the bytes/s that this member may use now."""
        rate, members = self.terms
        if members == {self.own_id}:
            return rate
        if self._is_quiet:
            return 0.0
        if (held := self._holds()) is not None:
            return min(held.size, rate if self._clock() < held.until else self._fair)
        return max(0.0, rate - sum(self._most().values()))

    @property
    def _fair(self) -> float:
        return self.terms.rate / max(1, len(self.terms.members))

    @property
    def _is_quiet(self) -> bool:
        return self._clock() < self._quiet_until or self.own_id not in self.terms.members

    def _is_since(self, at: float, seconds: float) -> bool:
        return self._clock() - at < seconds

    def _holds(self) -> _Held | None:
        held = self._held
        return held if held is not None and self._is_since(held.taken_at, self.pace.quiet_seconds) else None

    # What it takes

    def answer(self, giver: int, life: int, part: Allotment) -> Word | Refusal:
        """Answer one that divides, in that life of it, or say why what it says counts for nothing."""
        rate, members = self.terms
        if giver not in members or giver == self.own_id:
            return "not_a_member"
        if (part.rate, part.members) != (rate, len(members)):
            return "other_terms"
        divides, takes, now = self.divides, self._may_take(giver, life, part), self._clock()
        if takes:
            until = part.said_at + self.pace.lease_seconds - MARGIN_SECONDS if part.said_at <= now else now
            self._held = _Held((giver, life), part.number, max(0.0, part.size), until, now)
        return Word(self.demand, now, takes, divides)

    def _may_take(self, giver: int, life: int, part: Allotment) -> bool:
        if self._is_quiet or not part.number:
            return False
        if (held := self._holds()) is not None:
            return held.giver == (giver, life) and part.number > held.number
        if self._is_divided:
            if part.is_divided and giver < self.own_id:  # of two that divide the lower one goes on
                self._yielded_at = self._clock()
            return False
        return giver < self.own_id or part.is_divided or not self.divides

    # What it gives

    @property
    def divides(self) -> bool:
        """Whether it is to tell all others their parts."""
        if self._is_quiet or self._holds() is not None or self._is_since(self._yielded_at, self.pace.hold_seconds):
            return False
        bound = self._bound()
        return any(self._demands(bound).values()) or any([one.size < self._fair for one in bound.values()])

    @property
    def _is_divided(self) -> bool:
        """Whether others may have parts of it that have not ended."""
        return self._is_since(self._taken_at, self.pace.hold_seconds)

    def part_for(self, member: int) -> Allotment:
        """Return what to tell another member now: nothing yet where it is not known that it is there."""
        rate, members = self.terms
        heard = self._heard.get(member)
        if heard is None or not self._is_since(heard.at, self.pace.lease_seconds):
            return Allotment(rate, len(members), 0, 0.0, 0.0, self._is_divided)
        given = _Given(next(self._numbers), self._size_for(member, heard.demand), self._clock())
        self._given.setdefault(member, []).append(given)
        return Allotment(rate, len(members), given.number, given.size, heard.said_at, self._is_divided)

    def hear(self, member: int, number: int, word: Word) -> None:
        """Note the answer of a member to its part `number`."""
        now = self._clock()
        self._absent.pop(member, None)
        self._heard[member] = _Heard(max(0.0, word.demand), word.said_at, now)
        given = self._given.get(member, [])
        if word.takes and any([one.number == number for one in given]):
            self._given[member] = [one for one in given if one.number >= number]
            self._bound_by[member] = number
            self._taken_at = now
        elif word.divides and member < self.own_id and not self._is_divided:  # of two that begin the lower one goes on
            self._yielded_at = now

    def miss(self, member: int, why: Absence, asked_at: float) -> None:
        """Note that a member used nothing when it was asked at `asked_at`."""
        before = self._absent.get(member)
        goes_on = before is not None and asked_at - before.at < self.pace.known_seconds
        self._absent[member] = _Absent(why, before.since if before is not None and goes_on else asked_at, asked_at)

    def _bound(self) -> dict[int, _Given]:
        """Return the parts that bind members until a part that is given now has ended."""
        for one, given in self._given.items():
            self._given[one] = [each for each in given if self._is_since(each.at, self.pace.lease_seconds)]
        firsts = {one: given[0] for one, given in self._given.items() if given and one in self.terms.members}
        return {
            one: first
            for one, first in firsts.items()
            if self._bound_by.get(one) == first.number and self._is_since(first.at, self.pace.known_seconds)
        }

    def _most(self) -> dict[int, float]:
        """Return the most that each other one may use until a part that is given now has ended."""
        bound = self._bound().keys()
        others = self.terms.members - {self.own_id}
        ended = {one for one in others - bound if self._has_ended(one)}
        unknown = others - bound - ended
        free = unknown if 1 + len(bound) > len(unknown) else unknown | ended
        most = {one: max([each.size for each in given], default=0.0) for one, given in self._given.items()}
        return most | {one: max(most.get(one, 0.0), self._fair) for one in free}

    def _has_ended(self, member: int) -> bool:
        absent = self._absent.get(member)
        return (
            absent is not None
            and not self._is_since(absent.since, self.pace.quiet_seconds)
            and self._is_since(absent.at, self.pace.known_seconds)
        )

    def _demands(self, bound: dict[int, _Given]) -> dict[int, float]:
        """Return what those want whose parts can be changed."""
        return {self.own_id: self.demand, **{one: self._heard[one].demand for one in bound}}

    def _size_for(self, member: int, demand: float) -> float:
        """Return the part that is right by demand, as far as others surely leave it."""
        most, bound = self._most(), self._bound()
        demands = {**self._demands(bound), member: demand}
        left = self.terms.rate - sum([size for one, size in most.items() if one not in demands])
        room = self.terms.rate - sum([size for one, size in most.items() if one != member])
        size = allocate(max(0.0, left), demands).get(member, 0.0) if any(demands.values()) else self._fair
        # one that has not said lately that it takes parts may have this one while this member joins another group
        return max(0.0, min(room, size, self.terms.rate if member in bound else self._fair))


def allocate(rate: float, demands: Mapping[int, float]) -> dict[int, float]:
    """Divide `rate` among those with a demand (bytes/s): equally, but nobody gets more than it wants.

    What is left when all have what they want goes to all of them equally: they need not ask before they use more.
    """
    wanting = sorted((demand, member) for member, demand in demands.items() if demand > 0)
    left, parts = rate, {}
    for number, (demand, member) in enumerate(wanting):
        parts[member] = min(demand, left / (len(wanting) - number))
        left -= parts[member]
    extra = max(0.0, left) / len(wanting) if wanting else 0.0
    return {member: part + extra for member, part in parts.items()}
