# SPDX-License-Identifier: Apache-2.0
"""KIP-731's task metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import MovedClock
from weir.limits.rates import WINDOW_SECONDS, TaskRates


def test_the_rate_is_that_of_the_last_whole_seconds() -> None:
    clock = MovedClock(1000.0)
    rates = TaskRates(clock)
    for second in range(60):
        rates.add(100 if second < 40 else 200)
        clock.move(1)
    assert rates.average() == pytest.approx((10 * 100 + 20 * 200) / 30)
    assert rates.most() == 200
    assert rates.records == 40 * 100 + 20 * 200
    clock.move(WINDOW_SECONDS + 1)
    assert (rates.average(), rates.most(), rates.throttled_ratio()) == (0, 0, 0)


def test_a_new_client_s_rate_is_that_of_its_life() -> None:
    clock = MovedClock(1000.0)
    rates = TaskRates(clock)
    rates.add(300)
    assert rates.average() == 0  # the second is not over
    clock.move(2)
    assert rates.average() == 150


def test_times_throttled_at_once_count_once() -> None:
    clock = MovedClock(1000.0)
    rates = TaskRates(clock)
    clock.move(10)
    rates.throttled(1000.0, 1004.5)
    rates.throttled(1002.0, 1005.0)  # another connection of the same client
    rates.throttled(1001.0, 1003.0)
    assert rates.throttled_ratio() == pytest.approx(0.5)
    assert rates.throttled_seconds == pytest.approx(5)


@pytest.mark.long
@given(steps=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(0, 9)), max_size=50))
def test_figures_are_always_figures_and_memory_is_bounded(steps: list[tuple[float, float, int]]) -> None:
    clock = MovedClock(1000.0)
    rates = TaskRates(clock)
    for seconds, length, records in steps:
        begin = clock()
        clock.move(seconds)
        rates.throttled(begin, min(begin + length, clock()))
        rates.add(records)
        assert 0 <= rates.throttled_ratio() <= 1
        assert 0 <= rates.average() <= sum(one for _, _, one in steps)
        assert len(rates._records) <= WINDOW_SECONDS + 1
        assert len(rates._throttled) <= WINDOW_SECONDS + 2


def test_an_interval_has_what_was_not_in_those_before_it() -> None:
    clock = MovedClock(1000.0)
    rates = TaskRates(clock)
    rates.add(100)
    clock.move(0.5)
    rates.add(50)
    clock.move(9.5)
    rates.throttled(1001.0, 1003.0)
    rates.throttled(clock(), clock() + 4)  # it was told to wait, and half of that is in each interval
    clock.move(2)
    assert rates.cut_interval() == pytest.approx((150, 150, 4))
    clock.move(10)
    rates.add(7)
    assert rates.cut_interval() == pytest.approx((7, 7, 2))
    assert rates.cut_interval() == (0, 0, 0)


def test_a_wait_counts_while_it_lasts() -> None:
    clock = MovedClock(1000.0)
    rates = TaskRates(clock)
    one, other = object(), object()
    rates.waits(one, 1000.0)
    clock.move(6)
    rates.waits(other, 1004.0)
    assert rates.throttled_ratio() == pytest.approx(1)
    assert rates.cut_interval().throttled_seconds == pytest.approx(6)
    clock.move(1)
    rates.waited(one)
    clock.move(1)
    rates.waited(other)
    clock.move(2)
    assert rates.cut_interval().throttled_seconds == pytest.approx(2)
    rates.waited(other)
    assert rates.throttled_ratio() == pytest.approx(0.8)
