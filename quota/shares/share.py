"""One member's part of a rate: what it may use now, what it lends, and what it has borrowed.

A loan is a part of the lender's own part, for some seconds. The lender counts them from its answer on, the borrower
from its request on, which was earlier. So the borrower stops first, although nobody compares clocks. An answer that is
lost leaves the lender with less for as long; nothing else comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from weir.quota.shares.allocation import allocate
from weir.quota.shares.roll import MARGIN_SECONDS, Roll

MOST_BYTES: Final = float(2**63)
"""No rate or demand is larger."""

Refusal = Literal["not_a_member", "other_terms", "absurd", "late"]


class Terms(NamedTuple):
    """What is shared: `rate` (bytes/s), and the ids of the members that share it."""

    rate: float
    members: frozenset[int]
    leaves_out: bool = False
    """Whether the others divide the part of a member that says that it does not have the rate."""


class Report(NamedTuple):
    """What a member says of a shared rate when it asks another one for a loan."""

    rate: float
    members: int
    """How many share it, as the one that asks knows."""
    demand: float
    """What it would use at most, in bytes/s."""
    taken: int = 0
    """The number of the request whose answer it uses: what was lent for earlier ones is free again."""
    borrowed: Mapping[int, float] = {}
    """What it uses of each lender's part."""


class _Loan(NamedTuple):
    number: int
    size: float
    until: float


class _Heard(NamedTuple):
    number: int
    report: Report
    at: float


class Share:
    """What member `roll.own_id` may use of a rate. `clock` gives monotonic seconds."""

    def __init__(self, terms: Terms, roll: Roll, clock: Callable[[], float]) -> None:
        self._roll = roll
        self._clock = clock
        self.terms = terms
        self.demand = 0.0
        """What this member would use at most, in bytes/s."""
        # An earlier life of this process may have lent all of its part.
        self._quiet_until = clock() + roll.pace.loan_seconds
        self._lent: dict[int, list[_Loan]] = {}
        self._borrowed: dict[int, _Loan] = {}
        self._refusals_before: dict[int, int] = {}  # how often each of these lenders had refused connections
        self._heard: dict[int, _Heard] = {}
        self.without: frozenset[int] = frozenset()
        """Members that said that they do not have the rate, and whose parts the others divide."""

    def set_terms(self, terms: Terms) -> None:
        """Take another rate or other members. Loans that stand go on until they end."""
        self.terms = terms
        self._heard = {one: heard for one, heard in self._heard.items() if one in terms.members}
        self.without = self.without & terms.members if terms.leaves_out else frozenset()

    def note(self, member: int, *, has_rate: bool) -> None:
        """Note whether a member has this rate, as it said."""
        if has_rate:
            self.without -= {member}
        elif self.terms.leaves_out and member in self.terms.members:
            self.without |= {member}

    # What it may use

    def current(self) -> float:
        """Return the bytes/s that this member may use now."""
        rate, members, _ = self.terms
        if members == {self._roll.own_id}:
            return rate
        own = max(0.0, self._owned() - sum([self._lent_to(one) for one in self._lent]))
        return min(rate, own + sum([self._usable(lender) for lender in self._borrowed]))

    @property
    def is_asked_for(self) -> bool:
        """Whether this member or another one wants any of it."""
        return self.demand > 0 or any(demand > 0 for demand in self._others_demands().values())

    def _owned(self) -> float:
        """Return this member's own part, with what it has of those that are missing."""
        if self._clock() < self._quiet_until:
            return 0.0
        return self._part() if self._roll.own_id in self.terms.members else 0.0

    def _part(self) -> float:
        rate, members, _ = self.terms
        return rate / max(1, len(members - self._roll.divided(members) - self.without))

    def _lent_to(self, borrower: int) -> float:
        """Return what a borrower may use: the largest of the loans that have not ended, for it may have any of them."""
        now = self._clock()
        loans = self._lent[borrower] = [loan for loan in self._lent[borrower] if loan.until > now]
        return max([loan.size for loan in loans], default=0.0)

    def _usable(self, lender: int) -> float:
        """Return what may be used of a loan.

        No more than a lender can own, and less what others have said that they use of it: so one that lends its part
        twice adds nothing. Of two borrowers the one with the lower id goes first.
        """
        loan = self._borrowed[lender]
        if loan.until <= self._clock() or lender not in self.terms.members:
            return 0.0
        if self._refusals_before.get(lender) != self._roll.refusals_of(lender).times:
            return 0.0  # of an earlier life: the others may have divided its part since
        if self._roll.missing({lender}):
            return 0.0  # before others are told that it is missing: they divide its part then
        before = sum(
            [
                heard.report.borrowed.get(lender, 0.0)
                for member, heard in self._heard.items()
                if member < self._roll.own_id and member != lender and self._is_fresh(heard)
            ]
        )
        return max(0.0, min(loan.size, self._part() - before))

    # What it asks of others

    def report(self, lender: int) -> Report:
        """Return what to say to a lender."""
        rate, members, _ = self.terms
        taken = self._borrowed[lender].number if lender in self._borrowed else 0
        borrowed = {one: size for one in self._borrowed if (size := self._usable(one)) > 0}
        return Report(rate, len(members), self.demand, taken, borrowed)

    def take(self, lender: int, number: int, size: float, seconds: float, asked_at: float) -> bool:
        """Take the answer to request `number`, made at `asked_at`: a loan of `size` for `seconds`.

        Returns whether something is to be given back: the lender should be told soon.
        """
        before = self._borrowed.get(lender)
        if before is not None and number <= before.number:
            return False  # an answer that was overtaken by a later one
        if not _is_sane(size) or not _is_sane(seconds):
            size = 0.0
        until = asked_at + min(seconds, self._roll.pace.loan_seconds) - MARGIN_SECONDS
        refusals = self._roll.refusals_of(lender)
        if asked_at < refusals.last_at:
            size = 0.0  # an earlier life of it answered
        self._borrowed[lender] = _Loan(number, size, until)
        self._refusals_before[lender] = refusals.times
        return before is not None and size < before.size

    # What it lends

    def lend(self, borrower: int, number: int, report: Report) -> tuple[float, Refusal | None]:
        """Answer another member's request: return what it may use for `roll.pace.loan_seconds`, or why nothing."""
        self.note(borrower, has_rate=True)
        if refusal := self._refusal(borrower, number, report):
            return 0.0, refusal
        now = self._clock()
        self._heard[borrower] = _Heard(number, report, now)
        loans = [loan for loan in self._lent.get(borrower, ()) if loan.number >= report.taken and loan.until > now]
        self._lent[borrower] = loans
        others = sum([self._lent_to(one) for one in self._lent if one != borrower])
        size = max(0.0, min(self._wanted_of(borrower), self._owned() - others))
        loans.append(_Loan(number, size, now + self._roll.pace.loan_seconds))
        return size, None

    def _refusal(self, borrower: int, number: int, report: Report) -> Refusal | None:
        rate, members, _ = self.terms
        numbers = [report.demand, *report.borrowed.values()]
        if borrower not in members or borrower == self._roll.own_id:
            return "not_a_member"
        if not all(_is_sane(one) for one in numbers):
            return "absurd"
        if (report.rate, report.members) != (rate, len(members)):
            return "other_terms"
        heard = self._heard.get(borrower)
        return "late" if heard is not None and number <= heard.number and self._is_fresh(heard) else None

    def _wanted_of(self, borrower: int) -> float:
        """Return the loan that is right by what all want: each lender lends each borrower its part of what it lacks."""
        part = self._part()
        parts = allocate(self.terms.rate, {self._roll.own_id: self.demand, **self._others_demands()})
        lacking = {member: max(0.0, size - part) for member, size in parts.items()}
        lacking.pop(self._roll.own_id, None)
        if not (total := sum(lacking.values())):
            return 0.0
        spare = max(0.0, part - parts.get(self._roll.own_id, 0.0))
        return spare * lacking.get(borrower, 0.0) / total

    def _others_demands(self) -> dict[int, float]:
        return {one: heard.report.demand for one, heard in self._heard.items() if self._is_fresh(heard)}

    def _is_fresh(self, heard: _Heard) -> bool:
        return self._clock() - heard.at < self._roll.pace.loan_seconds


def _is_sane(number: float) -> bool:
    return math.isfinite(number) and 0 <= number <= MOST_BYTES
