# SPDX-License-Identifier: Apache-2.0
"""The controller of `--auto`, alone and on a simulated link that it shares with clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.planning.assignment import Partition
from weir.planning.carried import SHORT
from weir.planning.finish_by import INFLOW_MARGIN, Moving, RateBounds
from weir.planning.headroom import (
    CALM_INTERVALS,
    INTERVAL_SECONDS,
    LEAST_STEP,
    MOST_RISE,
    PART,
    Allowance,
    Held,
    Passed,
    Reading,
    first_allowance,
    next_allowance,
    others_by_logs,
    others_by_sidecars,
    taken_up,
)

P0, P1 = Partition("orders", 0), Partition("orders", 1)
MB = 1_000_000
CAPACITY = 100 * MB
OUT, IN = (1, LEADER_RATE), (2, FOLLOWER_RATE)
KEYS = (OUT, IN)


def moving(left: float, size: float) -> dict[Partition, Moving]:
    """One new replica on broker 2, led by broker 1."""
    return {P0: Moving(1, int(size), 1, {2: int(left)})}


@dataclass
class Shared:
    """A link out of broker 1 and one into broker 2, which a move and clients share, each in the measure of its wish.

    `wish` gives the bytes/s that clients want to move over both at a moment, `inflow` what producers write to the
    partition that moves. `real` is what the link carries at a moment, CAPACITY what is stated. `part` of a rate is used
    where the link has room for it. Its oracle is plain accounting of bytes.
    """

    wish: Callable[[float], float]
    inflow: Callable[[float], float] = lambda now: 0.0
    limits: RateBounds = field(default_factory=RateBounds)
    real: Callable[[float], float] = lambda now: CAPACITY
    part: float = 1.0
    now: float = 0.0
    got: float = 0.0
    size: float = 1e9
    left: float = 1e12
    history: list[tuple[float, Allowance, float]] = field(default_factory=list)

    def reading(self) -> Reading:
        passed = Passed(self.got, self.got)
        return Reading(moving(self.left, self.size), {}, {1: passed, 2: passed})

    def pass_time(self, seconds: float, rate: float) -> float:
        """Let time pass, and return the bytes/s that clients got."""
        self.now += seconds
        wish, inflow, rate = self.wish(self.now), self.inflow(self.now), self.part * rate
        fits = min(1.0, self.real(self.now) / (wish + rate)) if wish + rate else 1.0
        self.got += wish * fits * seconds
        self.size += inflow * seconds
        self.left += (inflow - rate * fits) * seconds
        return wish * fits

    def run(self, intervals: int) -> None:
        before = self.reading()
        self.pass_time(3.0, 0.0)
        allowance = first_allowance(KEYS, before, self.now, self.reading(), 3.0, CAPACITY, self.limits)
        for _ in range(intervals):
            got = self.pass_time(INTERVAL_SECONDS, allowance.rates[OUT])
            self.history.append((self.now, allowance, got))
            allowance = next_allowance(allowance, self.now, self.reading(), CAPACITY, self.limits)

    def is_full(self, now: float, allowance: Allowance) -> bool:
        """Whether clients and the move wanted more than the link carried."""
        return self.wish(now) + self.part * allowance.rates[OUT] > self.real(now)

    @property
    def rates(self) -> list[int]:
        return [allowance.rates[OUT] for _, allowance, _ in self.history]


parts = st.floats(0, 0.9)


@st.composite
def shared(draw: st.DrawFn) -> Shared:
    """Clients wish for up to 0.9 of the link, and change their wish twice; producers write to the move as well."""
    moments = sorted(draw(st.tuples(st.floats(0, 100), st.floats(0, 100))))
    wishes = [draw(parts) * CAPACITY for _ in range(3)]
    inflows = [draw(st.floats(0, 0.5)) * CAPACITY for _ in range(3)]

    def at(values: list[float]) -> Callable[[float], float]:
        return lambda now: values[sum(now >= moment for moment in moments)]

    return Shared(at(wishes), at(inflows))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(shared(), st.floats(0.01, 0.5), st.floats(0.01, 1.5))
def test_rates_keep_to_limits_and_above_what_producers_write(link: Shared, lowest: float, more: float) -> None:
    limits = RateBounds(int(lowest * CAPACITY), int((lowest + more) * CAPACITY))
    link = replace(link, limits=limits)
    link.run(40)
    assert limits.highest is not None
    for (now, allowance, _), (_, after, _) in pairwise(link.history):
        inflow = link.inflow(now)
        # What was written in the interval before is what is known.
        if link.inflow(now - INTERVAL_SECONDS) == inflow:
            for key in KEYS:
                assert after.rates[key] >= min(int(INFLOW_MARGIN * inflow), limits.highest)
                assert (key in after.too_low) == (inflow >= after.rates[key])
        for rate in allowance.rates.values():
            assert limits.lowest <= rate <= limits.highest


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(shared())
def test_rates_settle_at_what_is_left_and_clients_lack_nothing(link: Shared) -> None:
    """Twenty intervals after the last change nothing changes any more, but for a byte: sizes are whole bytes."""
    link.run(60)
    _, allowance, got = link.history[-1]
    wish, inflow = link.wish(link.now), link.inflow(link.now)
    wanted = max(PART * (CAPACITY - wish), INFLOW_MARGIN * inflow)
    if wish + INFLOW_MARGIN * inflow <= CAPACITY:
        assert got == pytest.approx(wish)
        assert allowance.rates[OUT] == pytest.approx(wanted, rel=0.051)
        assert max(link.rates[45:]) - min(link.rates[45:]) <= 1


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(parts, parts, st.floats(-0.02, 0.02), st.floats(-0.02, 0.02))
def test_rates_do_not_swing_after_a_change(before: float, after: float, first: float, second: float) -> None:
    """Clients' wish wavers by a fiftieth of the link. 15 intervals after it changes by more, all stays as it is."""
    wavers = [first, second]

    def wish(now: float) -> float:
        level = before if now < 50 else after
        return max(0.0, level + wavers[int(now / INTERVAL_SECONDS) % 2]) * CAPACITY

    link = Shared(wish)
    link.run(60)
    assert len(set(link.rates[25:])) == 1, link.rates


def test_clients_of_a_full_link_get_room_in_four_intervals() -> None:
    """Clients that want more than a full link leaves them get it within four intervals."""
    link = Shared(lambda now: 0.0 if now < 20 else 0.5 * CAPACITY)
    link.run(12)
    starved = [now for now, _, got in link.history if now >= 20 and got < 0.49 * CAPACITY]
    assert len(starved) <= 4


def test_rate_rises_in_steps_once_there_was_room_for_long() -> None:
    """It rises only when others have left room for several intervals."""
    link = Shared(lambda now: 0.9 * CAPACITY if now < 20 else 0.0)
    link.run(20)
    rises = [(now, old, new) for (now, _, _), (old, new) in zip(link.history, pairwise(link.rates), strict=False)]
    first = next(now for now, old, new in rises if new > old)
    assert first >= 20 + (CALM_INTERVALS - 1) * INTERVAL_SECONDS
    assert all(new <= old + max(MOST_RISE * old, LEAST_STEP * CAPACITY) for _, old, new in rises)
    assert link.rates[-1] == pytest.approx(PART * CAPACITY, rel=0.05)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 1.0), st.floats(0, 0.8), st.floats(0.87, 1.0))
def test_link_below_its_stated_rate_is_left_free_and_used_up(real: float, busy: float, part: float) -> None:
    """Clients get what they want but for the few moments in which the rates look for more."""
    carried = real * CAPACITY
    arrives = 1.0
    for _ in range(100):  # where all share a full link in the measure of their wishes
        wanted = part * PART * (CAPACITY - busy * carried * arrives)
        arrives = min(1.0, carried / (busy * carried + wanted))
    assume(arrives == 1 or part * arrives < 0.88 * SHORT)  # a little less is no shortage
    link = Shared(lambda now: busy * carried, real=lambda now: carried, part=part)
    link.run(400)
    free = carried * (1 - busy)
    settled = link.history[100:]
    full = [link.is_full(now, allowance) for now, allowance, _ in settled]
    assert sum(full) <= 0.08 * len(full)
    used = sorted(min(part * allowance.rates[OUT], free) for _, allowance, _ in settled)
    assert used[len(used) // 2] >= 0.85 * part * free


def test_link_that_is_full_is_left_within_four_intervals() -> None:
    link = Shared(lambda now: 0.2 * CAPACITY, real=lambda now: CAPACITY if now < 60 else 0.5 * CAPACITY)
    link.run(24)
    full = [now for now, allowance, _ in link.history if now > 60 and link.is_full(now, allowance)]
    assert full[0] == 63
    assert not any(60 + 4 * INTERVAL_SECONDS < now < 60 + 8 * INTERVAL_SECONDS for now in full)


def test_link_that_carries_more_again_is_used_again() -> None:
    link = Shared(lambda now: 0.2 * CAPACITY, real=lambda now: CAPACITY if now > 100 else 0.4 * CAPACITY)
    link.run(60)
    assert link.rates[15] < 0.22 * CAPACITY
    assert link.rates[-1] == pytest.approx(PART * 0.8 * CAPACITY, rel=0.06)


def test_logs_tell_what_producers_write_and_the_isr_receives() -> None:
    """orders-0 moves from 1 and 3 to 2; orders-1 stays on 2 and 1."""

    def reading(first: int, second: int) -> Reading:
        held = {P0: Held(1, (1, 3, 2), first), P1: Held(2, (2, 1), second)}
        return Reading({P0: Moving(1, first, 2, {2: first})}, held)

    assert others_by_logs(reading(1000, 1000), reading(1100, 1010), 10.0) == {
        (1, FOLLOWER_RATE): 10.0 + 1.0,
        (3, FOLLOWER_RATE): 10.0,
        (2, FOLLOWER_RATE): 1.0,
        (2, LEADER_RATE): 1.0,
    }


def test_sidecar_away_or_counting_anew_leaves_what_it_told_last() -> None:
    before = Reading({}, {}, {1: Passed(0, 1000), 2: Passed(500, 0)})
    now = Reading({}, {}, {1: Passed(0, 3000), 2: Passed(900, 0)})
    told = others_by_sidecars(KEYS, before, now, 10.0, {})
    assert told == {OUT: 200.0, IN: 40.0}
    anew = Reading({}, {}, {1: Passed(0, 10)})
    assert others_by_sidecars(KEYS, now, anew, 10.0, told) == told


def test_counters_of_unlike_kinds_are_not_compared() -> None:
    """The link's own count from the machine's start: what passed since is not their difference to a sidecar's."""
    before, now = (Reading({}, {}, {1: one}) for one in (Passed(0, 1000), Passed(0, 9e9, (False, True))))
    assert others_by_sidecars(KEYS, before, now, 10.0, {OUT: 7.0}) == {OUT: 7.0}
    later = Reading({}, {}, {1: Passed(0, 9e9 + 1000, (False, True))})
    assert others_by_sidecars(KEYS, now, later, 10.0, {OUT: 7.0}) == {OUT: 100.0}


def test_sidecar_back_is_believed_from_its_second_answer_on() -> None:
    """It was away for an hour, and counts anew."""

    def at(passed: float | None) -> Reading:
        both = {} if passed is None else {1: Passed(passed, passed), 2: Passed(passed, passed)}
        return Reading(moving(1e12, 1e9), {}, both)

    allowance = first_allowance(KEYS, at(0), 3.0, at(90 * MB), 3.0, CAPACITY, RateBounds())
    rate = allowance.rates[OUT]
    assert rate == pytest.approx(PART * 70 * MB)
    for interval in range(1, 721):
        allowance = next_allowance(allowance, 3.0 + 5 * interval, at(None), CAPACITY, RateBounds())
    assert allowance.rates[OUT] == rate
    for interval in range(20):  # it began anew, and clients leave more room now
        now = 3.0 + 5 * (721 + interval)
        allowance = next_allowance(allowance, now, at(interval * 50 * MB), CAPACITY, RateBounds())
        if not interval:
            assert allowance.rates[OUT] == rate
    assert allowance.rates[OUT] == pytest.approx(PART * 90 * MB, rel=0.05)


def test_move_that_is_taken_up_keeps_its_rates_for_an_interval() -> None:
    begun = taken_up({OUT: MB, IN: 2 * MB}, 0.0, Reading(moving(1e9, 1e9), {}))
    assert next_allowance(begun, INTERVAL_SECONDS - 0.1, begun.seen, CAPACITY, RateBounds()) is begun
    later = next_allowance(begun, INTERVAL_SECONDS, begun.seen, CAPACITY, RateBounds())
    assert later.rates == {OUT: MB + LEAST_STEP * CAPACITY, IN: 2 * MB + LEAST_STEP * CAPACITY}


def test_unknown_partition_size_leaves_the_rates_as_they_are() -> None:
    begun = taken_up({OUT: MB}, 0.0, Reading(moving(1e9, 1e9), {}))
    assert next_allowance(begun, 60.0, Reading(moving(0, 0), {}), CAPACITY, RateBounds()) is begun
