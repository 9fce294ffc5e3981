# SPDX-License-Identifier: Apache-2.0
"""The controller of `--finish-by`, alone and in simulated moves whose true course is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.throttle_names import FOLLOWER_RATE, LEADER_RATE
from weir.planning.assignment import Partition
from weir.planning.finish_by import (
    ENDING_SECONDS,
    INFLOW_MARGIN,
    INTERVAL_SECONDS,
    LEAST_CHANGE,
    TAKE_UP_SECONDS,
    Load,
    Moving,
    Pace,
    RateBounds,
    first_pace,
    loads_of,
    next_pace,
    taken_up,
)

P0, P1 = Partition("orders", 0), Partition("orders", 1)
MB = 1_000_000
STEP = 0.1


def one(left: int, size: int | None = None) -> dict[Partition, Moving]:
    """One new replica on broker 2, led by broker 1."""
    return {P0: Moving(1, left if size is None else size, 1, {2: left})}


@dataclass
class Simulated:
    """A move whose leader passes `part` of the rate in force, except between two moments of `stalled`.

    `inflow` gives the bytes/s of producers at a moment. Its oracle is plain accounting of bytes, which knows nothing of
    loads or plans.
    """

    left: float
    seconds: float
    inflow: Callable[[float], float]
    limits: RateBounds = field(default_factory=RateBounds)
    part: float = 1.0
    stalled: tuple[float, float] = (0.0, 0.0)
    paces: list[tuple[float, Pace]] = field(default_factory=list)

    def run(self) -> float:
        """Return when the move has ended: as long after the last byte as an ending takes."""
        now, size = 0.0, self.left
        pace = first_pace(0.0, self.seconds, one(int(self.left), int(size)), {P0: self.inflow(0.0)}, self.limits)
        self.paces.append((0.0, pace))
        while self.left > 0 and now < 4 * self.seconds:
            for _ in range(10):
                now += STEP
                size += self.inflow(now) * STEP
                passed = 0.0 if self.stalled[0] <= now < self.stalled[1] else pace.rate * self.part * STEP
                self.left += self.inflow(now) * STEP - passed
                if self.left <= 0:
                    return now + ENDING_SECONDS / 2
            moving = one(int(self.left), int(size))
            pace = next_pace(pace, now, self.seconds - now, moving, self.limits)
            self.paces.append((now, pace))
        return now

    @property
    def changes(self) -> list[tuple[float, int, int]]:
        """When the rate changed, from what, and to what."""
        return [(now, old.rate, new.rate) for (_, old), (now, new) in pairwise(self.paces) if old.rate != new.rate]


@st.composite
def moves(draw: st.DrawFn) -> Simulated:
    """Moves of a minute to an hour; producers write up to half of what the move needs, and change twice.

    Nothing changes in the last fifth, or the last half minute: nobody can know what is yet to come.
    """
    seconds = draw(st.floats(60, 600))
    net = draw(st.floats(0.1, 100)) * MB
    calm = seconds - max(30.0, seconds / 5)
    moments = sorted(draw(st.tuples(st.floats(0, calm), st.floats(0, calm))))
    rates = [net * draw(st.floats(0, 0.5)) for _ in range(3)]
    begun = draw(st.floats(0, max(0.0, calm - INTERVAL_SECONDS)))
    stalled = draw(st.sampled_from([(0.0, 0.0), (begun, begun + INTERVAL_SECONDS)]))

    def inflow(now: float) -> float:
        return rates[sum(now >= moment for moment in moments)]

    return Simulated(net * seconds, seconds, inflow, part=draw(st.floats(0.9, 1.0)), stalled=stalled)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(moves())
def test_move_ends_within_three_percent_of_its_deadline(move: Simulated) -> None:
    assert move.run() == pytest.approx(move.seconds, rel=0.03)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(moves(), st.floats(0.1, 2), st.floats(1, 4))
def test_rate_changes_seldom_by_enough_and_within_its_limits(move: Simulated, lowest: float, factor: float) -> None:
    needed = move.left / move.seconds
    move = replace(move, limits=RateBounds(int(lowest * needed), int(lowest * factor * needed)))
    move.run()
    limits = move.limits
    assert limits.highest is not None
    for now, pace in move.paces:
        assert limits.lowest <= pace.rate <= limits.highest
        if now == 0:
            assert pace.rate == limits.highest or pace.rate >= INFLOW_MARGIN * move.inflow(0.0)
    for now, old, new in move.changes:
        assert abs(new - old) >= LEAST_CHANGE * old, now
    moments = [now for now, _, _ in move.changes]
    assert all(b - a >= INTERVAL_SECONDS - STEP for a, b in pairwise(moments))


def test_first_rate_is_the_lowest_that_is_enough() -> None:
    pace = first_pace(0.0, 100 + ENDING_SECONDS, one(100 * MB), {P0: 2 * MB}, RateBounds())
    assert (pace.rate, pace.late) == (3 * MB, 0.0)


def test_broker_with_the_most_to_pass_decides() -> None:
    """Broker 1 leads both partitions, and sends what producers write to three followers of the first."""
    moving = {P0: Moving(1, 9 * MB, 3, {2: 3 * MB, 3: 4 * MB}), P1: Moving(1, MB, 1, {2: MB})}
    loads = loads_of(moving, {P0: 100.0, P1: 10.0})
    assert loads == {
        (1, LEADER_RATE): Load(8 * MB, 310.0),
        (2, FOLLOWER_RATE): Load(4 * MB, 110.0),
        (3, FOLLOWER_RATE): Load(4 * MB, 100.0),
    }
    pace = first_pace(0.0, 100 + ENDING_SECONDS, moving, {}, RateBounds())
    assert (pace.rate, pace.busiest) == (80_000, (1, LEADER_RATE))


def test_deadline_beyond_the_limits_is_told_with_its_delay() -> None:
    pace = first_pace(0.0, 100 + ENDING_SECONDS, one(100 * MB), {P0: MB}, RateBounds(1, 1_500_000))
    assert (pace.rate, pace.late) == (1_500_000, 100.0)


def test_limit_below_what_producers_write_never_ends() -> None:
    pace = first_pace(0.0, 100.0, one(100 * MB), {P0: 2 * MB}, RateBounds(1, 2 * MB))
    assert (pace.rate, pace.late) == (2 * MB, None)


def test_rate_keeps_its_margin_above_what_producers_write() -> None:
    pace = first_pace(0.0, 100_000.0, one(1000), {P0: 2 * MB}, RateBounds())
    assert pace.rate == INFLOW_MARGIN * 2 * MB


def test_move_with_much_time_keeps_to_the_lowest_rate_allowed() -> None:
    assert first_pace(0.0, 100_000.0, one(1000), {}, RateBounds(5 * MB, 6 * MB)).rate == 5 * MB


@pytest.mark.parametrize(("limits", "rate"), [(RateBounds(1, 9 * MB), 9 * MB), (RateBounds(), 2 * MB)])
def test_deadline_that_has_passed_takes_the_highest_rate(limits: RateBounds, rate: int) -> None:
    """Without a limit, what is left comes within one more interval."""
    pace = next_pace(taken_up(MB, 0.0, one(25 * MB), limits), INTERVAL_SECONDS, -1.0, one(20 * MB), limits)
    assert pace.rate == rate
    assert pace.late


def test_move_taken_up_keeps_its_rate_until_it_was_watched() -> None:
    pace = taken_up(MB, 0.0, one(20 * MB), RateBounds())
    assert next_pace(pace, TAKE_UP_SECONDS - 0.1, 5.0, one(20 * MB), RateBounds()) is pace
    planned = next_pace(pace, TAKE_UP_SECONDS, 21.0, one(20 * MB), RateBounds())
    assert planned.seen is not pace.seen
    later = TAKE_UP_SECONDS + INTERVAL_SECONDS
    assert next_pace(planned, later - 0.1, 5.0, one(20 * MB), RateBounds()) is planned
    assert taken_up(9 * MB, 0.0, one(20 * MB), RateBounds(1, 2 * MB)).rate == 2 * MB


def test_interval_without_arrivals_is_told_and_teaches_nothing() -> None:
    """It says nothing of which part of the rate arrives."""
    pace = first_pace(0.0, 100.0, one(50 * MB), {}, RateBounds())
    stalled = next_pace(pace, 10.0, 90.0, one(50 * MB), RateBounds())
    assert (stalled.is_held_up, stalled.part) == (True, 1.0)
    left = 50 * MB - 10 * stalled.rate
    assert not next_pace(stalled, 20.0, 80.0, one(left, 50 * MB), RateBounds()).is_held_up


def test_unknown_partition_size_leaves_the_rate_as_it_is() -> None:
    pace = first_pace(0.0, 100.0, one(50 * MB), {}, RateBounds())
    assert next_pace(pace, 20.0, 80.0, one(0), RateBounds()) is pace


def test_last_seconds_never_lower_the_rate() -> None:
    pace = taken_up(MB, 0.0, one(11 * MB), RateBounds())
    assert next_pace(pace, 10.0, 9.0, one(MB, 11 * MB), RateBounds()).rate == MB


def test_move_with_nothing_left_keeps_its_rate() -> None:
    pace = taken_up(MB, 0.0, one(11 * MB), RateBounds(2, 3 * MB))
    ended = next_pace(pace, 10.0, 50.0, one(0, 11 * MB), RateBounds(2, 3 * MB))
    assert (ended.rate, ended.late) == (MB, 0.0)
