# SPDX-License-Identifier: Apache-2.0
"""Parts of a rate: who divides it, what binds whom for how long, and who counts for nothing."""

from __future__ import annotations

from itertools import count

import pytest

from tests.fakes.clock import MovedClock
from weir.quota.shares.share import MARGIN_SECONDS, Allotment, Share, Terms, Word, allocate, pace_of

RATE = 900.0
ALL = frozenset({1, 2, 3})
ROUND, LEASE, HOLD = pace_of(3)
QUIET = pace_of(3).quiet_seconds


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


class Members:
    """Members that hear each other at once, but for those in `silent` and `ended`."""

    def __init__(self, members: frozenset[int] = ALL) -> None:
        self.clock = MovedClock()
        self.silent: set[int] = set()
        self.ended: set[int] = set()
        self.shares = {one: self.new(one, members) for one in sorted(members)}
        self.clock.move(QUIET)

    def new(self, one: int, members: frozenset[int] = ALL) -> Share:
        return Share(one, Terms(RATE, members), self.clock, count(1), self.clock() + QUIET)

    def __getitem__(self, one: int) -> Share:
        return self.shares[one]

    def want(self, **demands: float) -> None:
        for name, demand in demands.items():
            self.shares[int(name[1:])].demand = demand

    def tell(self, giver: int, taker: int) -> bool:
        """Tell one its part; returns whether it took it."""
        part = self[giver].part_for(taker)
        word = self[taker].answer(giver, 1, part)
        assert isinstance(word, Word)
        self[giver].hear(taker, part.number, word)
        return word.takes

    def rounds(self, seconds: float) -> list[int]:
        """Let those that divide do so for some seconds; returns what each may use then."""
        for _ in range(round(seconds / ROUND)):
            for one, share in self.shares.items():
                for other in self.shares:
                    if one == other or one in self.ended or not share.divides:
                        continue
                    if other in self.ended:
                        share.miss(other, "ended", self.clock())
                    elif not {one, other} & self.silent:
                        self.tell(one, other)
            self.clock.move(ROUND)
        return self.parts

    @property
    def parts(self) -> list[int]:
        return [round(share.current()) for one, share in self.shares.items() if one not in self.ended]


def part(number: int, size: float, said_at: float, *, is_divided: bool = False) -> Allotment:
    return Allotment(RATE, 3, number, size, said_at, is_divided)


def test_each_has_an_equal_part_until_somebody_wants_more() -> None:
    assert Members().rounds(2) == [300, 300, 300]


def test_who_is_alone_has_all() -> None:
    assert Share(1, Terms(RATE, frozenset({1})), MovedClock(), count(1), 0).current() == RATE


def test_who_is_no_member_has_nothing() -> None:
    assert Share(1, Terms(RATE, frozenset({2, 3})), MovedClock(), count(1), 0).current() == 0


def test_new_life_uses_and_takes_nothing_at_first() -> None:
    members = Members()
    members.shares[3] = members.new(3)
    members.want(_1=RATE, _2=RATE, _3=RATE)
    assert members.rounds(QUIET - ROUND)[2] == 0
    assert not members.tell(1, 3)
    assert members.rounds(2) == [300, 300, 300]


@pytest.mark.parametrize("one", [1, 2, 3])
def test_only_one_that_wants_any_has_all_after_two_rounds(one: int) -> None:
    members = Members()
    members[one].demand = RATE
    members.rounds(2 * ROUND)
    assert members[one].current() == RATE


def test_parts_follow_demand_within_two_rounds() -> None:
    members = Members()
    members.want(_1=RATE)
    assert members.rounds(5) == [900, 0, 0]
    members.want(_2=RATE, _3=100)
    assert members.rounds(3 * ROUND) == [400, 400, 100]
    members.want(_1=0)
    assert members.rounds(3 * ROUND) == [0, 800, 100]
    members.want(_2=0, _3=0)
    assert members.rounds(3 * ROUND) == [300, 300, 300]
    assert not any([share.divides for share in members.shares.values()])


def test_of_those_that_begin_at_once_the_lowest_one_divides() -> None:
    members = Members()
    members.want(_1=RATE, _2=RATE, _3=RATE)
    members.rounds(1)
    assert [share.divides for share in members.shares.values()] == [True, False, False]


def test_of_two_that_divide_the_higher_one_ends_and_joins() -> None:
    members = Members(frozenset({1, 2, 3, 4}))
    members.want(_1=RATE, _3=RATE)
    cut = [(1, 3), (1, 4), (2, 3), (2, 4)]
    for _ in range(6):
        for one, other in ((1, 2), (3, 4)):
            members.tell(one, other)
        members.clock.move(ROUND)
    assert members.parts == [450, 0, 450, 0]
    assert not any([members.tell(*pair) for pair in cut])
    assert members.rounds(2 * HOLD + QUIET) == [450, 0, 450, 0]
    assert [share.divides for share in members.shares.values()] == [True, False, False, False]


def test_large_part_ends_sooner_and_a_small_one_binds_longer() -> None:
    members = Members()
    members.want(_1=RATE)
    members.rounds(2)
    members.want(_1=0, _2=RATE)
    assert members.rounds(2) == [0, 900, 0]
    members.silent.add(1)
    # it was told a round ago, and what it said then was said a round before
    members.clock.move(LEASE - MARGIN_SECONDS - 2 * ROUND - 0.01)
    assert members.parts[1:] == [900, 0]
    members.clock.move(0.01)
    assert members.parts[1:] == [300, 0]
    members.clock.move(HOLD + ROUND - LEASE + MARGIN_SECONDS)
    assert members.parts[1:] == [300, 0]
    members.clock.move(MARGIN_SECONDS)
    assert members.parts == [300, 300, 300]


def test_large_part_is_leased_from_what_it_answers_on() -> None:
    """Its lease begins when the taker said what it answers, by the taker's own clock."""
    taker = Members()[3]
    now = taker._clock()
    for number, said_at, most in ((1, now - LEASE, 300), (2, now + 1, 300), (3, now, 800)):
        taker.answer(1, 1, part(number, 800, said_at))
        assert taker.current() == most


@pytest.mark.parametrize(("giver", "life", "number"), [(1, 1, 1), (1, 1, 2), (1, 2, 3), (2, 1, 3)])
def test_part_that_was_overtaken_or_is_anothers_is_not_taken(giver: int, life: int, number: int) -> None:
    taker = Members()[3]
    taker.answer(1, 1, part(2, 100, 0))
    word = taker.answer(giver, life, part(number, 200, 0))
    assert isinstance(word, Word)
    assert not word.takes
    assert taker.current() == 100


@pytest.mark.parametrize(
    ("giver", "said", "reason"),
    [
        (4, part(1, 1, 0), "not_a_member"),
        (3, part(1, 1, 0), "not_a_member"),
        (1, part(1, 1, 0)._replace(rate=RATE / 2), "other_terms"),
        (1, part(1, 1, 0)._replace(members=2), "other_terms"),
    ],
)
def test_stranger_is_refused(giver: int, said: Allotment, reason: str) -> None:
    assert Members()[3].answer(giver, 1, said) == reason


def test_one_that_divided_takes_nothing_until_others_parts_end() -> None:
    members = Members()
    members.want(_2=RATE)
    members.rounds(2)
    members.want(_2=0, _1=RATE)
    offered = part(1, 100, 0, is_divided=True)
    members.clock.move(HOLD - ROUND - 0.01)  # it was told a round ago
    before = members[2].answer(1, 1, offered)
    members.clock.move(0.01)
    after = members[2].answer(1, 1, offered)
    assert isinstance(before, Word)
    assert isinstance(after, Word)
    assert (before.takes, after.takes) == (False, True)


def test_part_of_one_silent_lately_is_used_by_nobody_else() -> None:
    members = Members()
    members.want(_1=RATE)
    assert members.rounds(2) == [900, 0, 0]
    members.silent.add(2)
    assert members.rounds(HOLD - LEASE - 2 * ROUND) == [900, 0, 0]
    assert members.rounds(2 * ROUND) == [600, 0, 0]
    assert members.rounds(QUIET) == [600, 300, 0]


def test_part_grows_only_after_another_took_a_smaller_one() -> None:
    members = Members()
    members.want(_1=RATE)
    members.rounds(2)
    members.want(_1=0, _2=RATE)
    members.rounds(2)
    members.want(_3=RATE)
    members.tell(1, 3)  # it says what it wants
    members.clock.move(ROUND)
    members.tell(1, 3)
    assert members.parts == [0, 900, 0]
    members.tell(1, 2)
    assert members.parts == [450, 450, 0]
    members.tell(1, 3)
    assert members.parts == [0, 450, 450]


def test_word_that_is_lost_leaves_the_largest_part_counted() -> None:
    members = Members()
    members.want(_1=RATE)
    members.rounds(2)
    members.want(_2=RATE)
    members.rounds(2 * ROUND)
    members[1].part_for(2)  # which is under way, and may yet be taken
    members.want(_2=0)
    members.tell(1, 2)
    members.tell(1, 2)
    assert members.parts[:2] == [900, 0]


def test_part_of_an_ended_one_is_divided_when_no_life_is_left() -> None:
    """It is divided once no earlier life of that member can be bound by it."""
    members = Members()
    members.want(_1=RATE, _2=RATE, _3=RATE)
    members.rounds(2)
    members.ended.add(3)
    assert members.rounds(QUIET - ROUND) == [300, 300]
    assert members.rounds(3 * ROUND) == [450, 450]


def test_part_of_an_ended_one_is_undivided_if_others_are_silent() -> None:
    members = Members(frozenset({1, 2, 3, 4}))
    members.want(_1=RATE)
    members.rounds(2)
    members.ended.add(4)
    members.silent |= {2, 3}
    assert members.rounds(2 * QUIET)[0] == RATE / 4
    members.silent.clear()
    assert members.rounds(2 * QUIET) == [900, 0, 0]


def test_of_two_the_one_left_has_all_when_the_other_has_ended() -> None:
    members = Members(frozenset({1, 2}))
    members.want(_1=RATE)
    members.silent.add(2)
    assert members.rounds(2 * QUIET) == [450, 450]
    members.ended.add(2)
    assert members.rounds(2 * QUIET) == [900]


def test_others_divide_when_the_one_that_did_has_ended() -> None:
    members = Members()
    members.want(_1=RATE, _2=RATE)
    assert members.rounds(2) == [450, 450, 0]
    members.ended.add(1)
    assert members.rounds(2 * QUIET + 2 * ROUND) == [900, 0]


def test_one_that_is_cut_off_falls_back_to_its_own_part() -> None:
    members = Members()
    members.want(_1=RATE, _3=RATE)
    members.rounds(2)
    members.want(_1=0)
    assert members.rounds(2) == [0, 0, 900]
    members.silent.add(3)
    assert members.rounds(2 * QUIET) == [300, 300, 300]


def test_many_members_are_told_less_often() -> None:
    assert pace_of(30).round_seconds == 0.5
    assert pace_of(300).round_seconds == 5
