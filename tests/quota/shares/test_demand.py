# SPDX-License-Identifier: Apache-2.0
"""The demand of a member, from what it uses and whether something waits."""

from __future__ import annotations

from tests.fakes.clock import MovedClock
from weir.quota.shares.demand import DemandMeter

RATE = 900.0


def seconds(meter: DemandMeter, clock: MovedClock, per_second: list[float], share: float, *, waits: bool) -> float:
    """Use `per_second` bytes in each second; return the last demand."""
    used, demand = 0.0, meter.update(0, share, RATE, waits=waits)
    for size in per_second:
        for _ in range(4):
            clock.move(0.25)
            used += size / 4
            demand = meter.update(used, share, RATE, waits=waits)
    return demand


def test_nothing_used_and_nothing_waiting_is_no_demand() -> None:
    clock = MovedClock()
    assert seconds(DemandMeter(clock), clock, [0] * 5, 300, waits=False) == 0


def test_what_waits_for_a_share_of_nothing_wants_all_at_once() -> None:
    assert DemandMeter(MovedClock()).update(0, 0, RATE, waits=True) == RATE


def test_share_in_full_use_is_too_small() -> None:
    clock = MovedClock()
    assert seconds(DemandMeter(clock), clock, [292] * 2, 300, waits=False) == RATE


def test_batches_larger_than_a_seconds_share_are_waited_for() -> None:
    clock = MovedClock()
    assert seconds(DemandMeter(clock), clock, [500, 0, 0, 0, 0], 100, waits=True) == RATE


def test_what_uses_less_than_its_share_wants_a_little_more() -> None:
    clock = MovedClock()
    assert round(seconds(DemandMeter(clock), clock, [100] * 4, 300, waits=False)) == 106
    assert round(seconds(DemandMeter(clock), clock, [100] * 4, 106, waits=False)) == 106


def test_demand_ends_three_seconds_after_the_last_use() -> None:
    clock = MovedClock()
    meter = DemandMeter(clock)
    assert seconds(meter, clock, [100, 0, 0], 300, waits=False) > 0
    clock.move(1)
    assert meter.update(100, 300, RATE, waits=False) == 0


def test_what_waited_a_second_wants_all_until_it_waits_less() -> None:
    """It waited all of a second, and wants all until it waits less than half of the time."""
    clock = MovedClock()
    meter, used = DemandMeter(clock), 0.0

    def second(*waits: bool) -> float:
        nonlocal used
        demand = 0.0
        for one in waits:
            clock.move(0.25)
            used += 25
            demand = meter.update(used, 300, RATE, waits=one)
        return round(demand)

    meter.update(0, 300, RATE, waits=False)
    assert second(True, True, True, False) == 106
    assert second(True, True, True, True) == RATE
    assert second(True, True, True, False) == RATE
    assert second(True, False, True, False) == 106


def test_what_uses_all_again_asks_for_twice_as_much_each_second() -> None:
    """It had left some of its share; what it asks for beyond that doubles."""
    clock = MovedClock()
    meter = DemandMeter(clock)
    assert round(seconds(meter, clock, [100] * 5, 300, waits=False)) == 106
    used, demands = 500.0, []
    for _ in range(6):
        for _ in range(4):
            clock.move(0.25)
            used += 25
            demand = meter.update(used, 100, RATE, waits=True)
        demands.append(round(demand))
    assert demands == [106, 112, 124, 148, 196, RATE]


def test_what_was_idle_wants_all_of_a_share_that_it_uses() -> None:
    clock = MovedClock()
    meter = DemandMeter(clock)
    assert seconds(meter, clock, [100.0] * 5 + [0.0] * 5, 300, waits=False) == 0
    used = 500.0
    for _ in range(4):
        clock.move(0.25)
        used += 25
        demand = meter.update(used, 100, RATE, waits=True)
    assert demand == RATE
