"""Parts of a rate: loans, what is missing, and what liars can do."""

from __future__ import annotations

import math

import pytest

from tests.fakes.clock import MovedClock
from weir.quota.shares.allocation import allocate
from weir.quota.shares.roll import Roll, pace_of
from weir.quota.shares.share import Report, Share, Terms

RATE = 900.0
ALL = frozenset({1, 2, 3})
LOAN = pace_of(len(ALL)).loan_seconds
MISSING = pace_of(len(ALL)).missing_seconds


class Member:
    """One sidecar: its share, and its requests to others, which reach them at once."""

    def __init__(self, own_id: int, clock: MovedClock, members: frozenset[int] = ALL) -> None:
        self.clock = clock
        self.roll = Roll(own_id, clock)
        self.roll.set_members(members)
        self.share = Share(Terms(RATE, members), self.roll, clock)
        self.number = 0

    def ask(self, other: Member) -> None:
        self.roll.begin()
        self.number += 1
        own_id, other_id = self.roll.own_id, other.roll.own_id
        other.roll.hear(own_id, self.roll.missing(self.share.terms.members))
        size, refusal = other.share.lend(own_id, self.number, self.share.report(other_id))
        assert refusal is None
        self.roll.hear(other_id, other.roll.missing(other.share.terms.members))
        self.share.take(other_id, self.number, size, other.roll.pace.loan_seconds, self.clock())


def members(clock: MovedClock, count: int = 3) -> list[Member]:
    ids = frozenset(range(1, count + 1))
    made = [Member(one, clock, ids) for one in sorted(ids)]
    clock.move(LOAN)
    return made


def rounds(clock: MovedClock, some: list[Member], seconds: float) -> None:
    for _ in range(round(seconds)):
        for one in some:
            for other in some:
                if one is not other:
                    one.ask(other)
        clock.move(1.0)


def shares(some: list[Member]) -> list[float]:
    return [one.share.current() for one in some]


@pytest.mark.parametrize(
    ("demands", "parts"),
    [
        ({}, {}),
        ({1: 0.0}, {}),
        ({1: 1.0}, {1: 900}),
        ({1: 900.0, 2: 900.0}, {1: 450, 2: 450}),
        ({1: 100.0, 2: 900.0, 3: 900.0}, {1: 100, 2: 400, 3: 400}),
        ({1: 100.0, 2: 200.0, 3: 0.0}, {1: 400, 2: 500}),
    ],
)
def test_rate_is_divided_by_demand(demands: dict[int, float], parts: dict[int, float]) -> None:
    assert allocate(RATE, demands) == pytest.approx(parts)


def test_each_has_an_equal_part_until_somebody_wants_more() -> None:
    assert shares(members(MovedClock())) == [300, 300, 300]


def test_nothing_may_be_used_before_loans_of_an_earlier_life_have_ended() -> None:
    clock = MovedClock()
    member = Member(1, clock)
    clock.move(LOAN - 0.01)
    assert member.share.current() == 0
    assert member.share.lend(2, 1, Report(RATE, 3, RATE)) == (0, None)
    clock.move(0.01)
    assert member.share.current() == 300


def test_who_is_alone_has_all() -> None:
    assert Member(1, MovedClock(), frozenset({1})).share.current() == RATE


def test_who_is_no_member_has_nothing() -> None:
    clock = MovedClock()
    member = Member(1, clock, frozenset({2, 3}))
    clock.move(LOAN)
    assert member.share.current() == 0


def test_only_one_that_wants_any_has_all_at_once() -> None:
    clock = MovedClock()
    first, second, third = some = members(clock)
    first.share.demand = 1
    first.ask(second)
    assert shares(some) == [600, 0, 300]
    first.ask(third)
    assert shares(some) == [900, 0, 0]


def test_demand_that_grows_has_its_part_within_three_rounds() -> None:
    clock = MovedClock()
    first, second, third = some = members(clock)
    first.share.demand = RATE
    rounds(clock, some, 5)
    assert shares(some) == [900, 0, 0]
    second.share.demand, third.share.demand = RATE, 100
    rounds(clock, some, 3)
    assert shares(some) == pytest.approx([400, 400, 100])
    third.share.demand = 0
    rounds(clock, some, 3)
    assert shares(some) == pytest.approx([450, 450, 0])


def test_loan_ends_at_the_borrower_before_it_ends_at_the_lender() -> None:
    clock = MovedClock()
    first, second, _ = some = members(clock)
    first.share.demand = RATE
    first.ask(second)
    clock.move(LOAN - 0.25)
    assert shares(some) == [300, 0, 300]
    clock.move(0.25)
    assert shares(some) == [300, 300, 300]


def test_lost_answer_costs_the_lender_its_loan_and_gives_nobody_more() -> None:
    clock = MovedClock()
    first, second, _ = some = members(clock)
    first.share.demand = RATE
    second.share.lend(1, 1, first.share.report(2))
    assert shares(some) == [300, 0, 300]
    clock.move(LOAN)
    assert shares(some) == [300, 300, 300]


def test_answer_that_was_overtaken_is_not_used() -> None:
    member = members(MovedClock())[0]
    assert not member.share.take(2, 5, 100, LOAN, member.clock())
    assert not member.share.take(2, 4, 300, LOAN, member.clock())
    assert member.share.current() == 400
    assert member.share.take(2, 6, 50, LOAN, member.clock())


def test_late_answer_is_used_for_what_is_left_of_it() -> None:
    member = members(MovedClock())[0]
    asked_at = member.clock()
    member.clock.move(2)
    member.share.take(2, 1, 300, LOAN, asked_at)
    assert member.share.current() == 600
    member.clock.move(0.5)
    assert member.share.current() == 300


def test_request_that_was_overtaken_is_refused() -> None:
    member = members(MovedClock())[0]
    assert member.share.lend(2, 5, Report(RATE, 3, RATE))[1] is None
    assert member.share.lend(2, 4, Report(RATE, 3, 0)) == (0, "late")


def test_one_that_starts_again_with_its_clock_set_back_is_heard_when_its_last_loan_has_ended() -> None:
    """Requests are numbered from the wall clock at the start on."""
    clock = MovedClock()
    lender = members(clock)[0]
    assert lender.share.lend(2, 60_000, Report(RATE, 3, RATE))[1] is None
    for _ in range(math.ceil(LOAN)):
        assert lender.share.lend(2, 1, Report(RATE, 3, RATE)) == (0, "late")
        clock.move(1.0)
    assert lender.share.lend(2, 1, Report(RATE, 3, RATE))[1] is None


def test_one_that_is_back_after_an_hour_uses_its_part_alone_until_the_others_have_heard_it() -> None:
    clock = MovedClock()
    *others, back = some = members(clock)
    for one in some:
        one.share.demand = RATE
    back.share.demand = 2 * RATE  # so it had loans
    rounds(clock, some, 3)
    rounds(clock, others, 3600)
    assert [one.share.current() for one in others] == pytest.approx([RATE / 2] * 2)
    assert back.share.current() <= RATE / 3
    rounds(clock, some, 2 * math.ceil(MISSING))
    assert sum(shares(some)) == pytest.approx(RATE)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 1e300])
def test_absurd_numbers_are_ignored(number: float) -> None:
    member = members(MovedClock())[0]
    assert member.share.lend(2, 1, Report(RATE, 3, number)) == (0, "absurd")
    assert member.share.lend(2, 1, Report(RATE, 3, 1, 0, {3: number})) == (0, "absurd")
    member.share.take(2, 1, number, LOAN, member.clock())
    member.share.take(3, 1, 100, number, member.clock())
    assert member.share.current() == 300
    assert member.share.demand == 0


@pytest.mark.parametrize(
    ("borrower", "report", "refusal"),
    [
        (4, Report(RATE, 3, RATE), "not_a_member"),
        (1, Report(RATE, 3, RATE), "not_a_member"),
        (2, Report(RATE / 2, 3, RATE), "other_terms"),
        (2, Report(RATE, 2, RATE), "other_terms"),
    ],
)
def test_stranger_is_refused(borrower: int, report: Report, refusal: str) -> None:
    assert members(MovedClock())[0].share.lend(borrower, 1, report) == (0, refusal)


def test_lender_that_promises_too_much_gives_no_more_than_a_part() -> None:
    member = members(MovedClock())[0]
    member.share.take(2, 1, 10 * RATE, 1e9, member.clock())
    assert member.share.current() == 600
    member.share.take(3, 1, 10 * RATE, 1e9, member.clock())
    assert member.share.current() == RATE
    member.clock.move(LOAN)
    assert member.share.current() == 300


def test_lender_that_lends_its_part_twice_adds_nothing() -> None:
    clock = MovedClock()
    first, second, _ = some = members(clock)
    first.share.demand = second.share.demand = RATE
    for _ in range(2):
        for one, other in ((first, second), (second, first)):
            one.number += 1
            one.share.take(3, one.number, 300, LOAN, clock())
            one.ask(other)
    assert sum(shares(some)) == RATE + 300  # the third one's own part is still there
    assert shares([first, second]) == [600, 300]


def test_part_of_one_that_was_lost_is_divided_when_all_others_miss_it() -> None:
    clock = MovedClock()
    some = members(clock)
    for one in some:
        one.share.demand = RATE
    rounds(clock, some, 5)
    left = some[:2]
    rounds(clock, left, MISSING - 1)
    assert shares(left) == [300, 300]
    rounds(clock, left, 2)
    assert shares(left) == [450, 450]
    rounds(clock, some, 2)
    assert shares(some) == [300, 300, 300]


def test_one_that_hears_nobody_falls_back_to_its_own_part() -> None:
    clock = MovedClock()
    first, _, _ = some = members(clock)
    first.share.demand = RATE
    rounds(clock, some, 5)
    assert first.share.current() == RATE
    clock.move(2 * MISSING)
    assert first.share.current() == 300


def test_of_two_the_one_that_is_left_has_all_only_if_the_other_one_has_ended() -> None:
    clock = MovedClock()
    first, _ = some = members(clock, 2)
    first.share.demand = RATE
    rounds(clock, some, 3)
    clock.move(MISSING + 1)
    assert first.share.current() == RATE / 2
    first.roll.refuse(2)
    assert first.share.current() == RATE


def test_part_of_one_that_has_ended_is_divided_as_soon_as_all_others_know() -> None:
    clock = MovedClock()
    some = members(clock)
    for one in some:
        one.share.demand = RATE
    rounds(clock, some, 3)
    first, second = left = some[:2]
    first.roll.refuse(3)
    first.ask(second)
    assert shares(left) == [300, 300]
    second.roll.refuse(3)
    second.ask(first)
    first.ask(second)
    assert shares(left) == [450, 450]


def test_loan_of_one_that_has_ended_is_used_no_more() -> None:
    clock = MovedClock()
    first, _, third = some = members(clock)
    first.share.demand = RATE
    first.ask(third)
    assert first.share.current() == 600
    first.roll.refuse(3)
    assert first.share.current() == 300
    rounds(clock, some, 1)
    assert first.share.current() == RATE


def test_what_was_known_of_those_that_ended_says_nothing_after_a_pause() -> None:
    clock = MovedClock()
    first, second, _ = some = members(clock)
    first.share.demand = second.share.demand = RATE
    rounds(clock, some, 3)
    for one in (first, second):
        one.roll.refuse(3)
    rounds(clock, [first, second], 2)
    assert first.share.current() == 450
    for one in some:
        one.roll.end()
    clock.move(60)
    for one in some:
        one.roll.begin()
    assert first.share.current() == 300


def test_silence_of_one_that_was_never_heard_says_nothing() -> None:
    clock = MovedClock()
    left = members(clock)[:2]
    for one in left:
        one.share.demand = RATE
        one.roll.refuse(3)
    rounds(clock, left, 3 * MISSING)
    assert shares(left) == [300, 300]


def test_silence_says_nothing_when_nobody_was_asked() -> None:
    clock = MovedClock()
    some = members(clock)
    some[0].share.demand = RATE
    rounds(clock, some, 3)
    for one in some:
        one.roll.end()
    clock.move(3600)
    some[0].roll.begin()
    assert shares(some) == [300, 300, 300]


def test_many_members_are_asked_less_often() -> None:
    assert pace_of(30).round_seconds == 1
    assert pace_of(300).round_seconds == 10
