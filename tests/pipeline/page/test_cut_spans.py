# SPDX-License-Identifier: Apache-2.0
"""Spans that a range cuts: their figures are those of the minutes in it."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import pytest

from tests.pipeline.page.past import Past, behind_minute, lag, minutes, move, quota, quota_minute
from tests.pipeline.parquet import START, broker_rate
from weir.pipeline.page.contents import Contents
from weir.pipeline.page.read import read_page
from weir.pipeline.page.write import page_of
from weir.pipeline.tables import BEHIND_MINUTES, BROKER_RATES, MOVES, REPLICA_LAG, THROTTLE_ACCURACY, THROTTLE_MINUTES

pytestmark = pytest.mark.long

FIRST, LAST = START + minutes(20), START + minutes(22)
NOTE = "are also of times outside the range: these tables do not have them by minute. Build them again."


def _read(past: Past) -> Contents:
    """A page of two minutes, of an hour and more that was sampled."""
    past.put(BROKER_RATES, broker_rate(1, "leader", 1), broker_rate(1, "leader", 1, START + minutes(59)))
    past.put(BROKER_RATES, broker_rate(1, "leader", 1, FIRST), broker_rate(1, "leader", 1, FIRST + minutes(1)))
    return read_page(past.write(), FIRST, LAST, 9)


def test_quota_has_the_figures_of_the_minutes_in_the_range(past: Past) -> None:
    """Ten minutes before the range were far over it, and so is the first one after it."""
    of = quota(START, START + minutes(40), seconds_over=2266.0, worst_1s_over_quota=9.0, bytes_left_out=10**9)
    past.put(THROTTLE_ACCURACY, of)
    far: dict[str, Any] = {"seconds_over": 60.0, "worst_1s_over_quota": 9.0, "worst_10s_over_quota": 9.0}
    past.put(THROTTLE_MINUTES, *(quota_minute(of, START + minutes(number), **far) for number in range(10, 20)))
    past.put(THROTTLE_MINUTES, quota_minute(of, FIRST, 54_000, worst_1s_over_quota=1.5, seconds_over=2.0))
    past.put(THROTTLE_MINUTES, quota_minute(of, FIRST + minutes(1), 60_000, worst_10s_over_quota=1.1))
    past.put(THROTTLE_MINUTES, quota_minute(of, LAST, **far))
    accuracy = _read(past).accuracy
    (found,) = accuracy.shown
    assert (found.start, found.end, found.seconds, found.spans) == (FIRST, LAST, 120.0, 1)
    assert (found.seconds_left_out, found.worst_1s, found.worst_10s, found.seconds_over) == (120.0, 1.5, 1.1, 2.0)
    assert (found.bytes_left_out, accuracy.worst_1s, accuracy.reaching_out) == (200, 1.5, 0)


def test_quota_over_its_allowance_in_the_range_left_nothing_out(past: Past) -> None:
    of = quota(START, START + minutes(40))
    past.put(THROTTLE_ACCURACY, of)
    past.put(THROTTLE_MINUTES, quota_minute(of, FIRST, bytes_left_out=-500), quota_minute(of, FIRST + minutes(1)))
    assert [found.bytes_left_out for found in _read(past).accuracy.shown] == [0]


def test_quota_sampled_only_by_a_later_minute_is_not_shown(past: Past) -> None:
    """Its only sample in the range belongs to a minute behind the range."""
    of = quota(LAST - timedelta(seconds=3), START + minutes(40))
    past.put(THROTTLE_ACCURACY, of)
    past.put(THROTTLE_MINUTES, quota_minute(of, LAST))
    assert _read(past).accuracy.count == 0


def test_spans_without_minutes_are_told_whole_and_that_is_said(past: Past) -> None:
    """Tables without minutes have whole spans alone."""
    past.put(THROTTLE_ACCURACY, quota(START, START + minutes(40), seconds_over=2266.0))
    past.put(THROTTLE_ACCURACY, quota(FIRST, LAST, 7))
    past.put(MOVES, move(7, START, START + minutes(40), 18_020_000), move(8, FIRST, LAST))
    past.put(REPLICA_LAG, lag(7, START, START + minutes(40), stuck=(40, 50)), lag(8, FIRST, LAST))
    contents = _read(past)
    assert [found.seconds_over for found in contents.accuracy.shown] == [2.0, 2266.0]
    assert [found.size for found in contents.moves.shown] == [18_020_000, 6000]
    counts = (contents.accuracy.reaching_out, contents.moves.reaching_out, contents.slow.reaching_out)
    assert counts == (1, 1, 1)
    page = page_of(contents, UTC)
    for what in ("1 quota", "1 move", "1 span out of sync"):
        assert f"The figures of {what} {NOTE}" in page


def test_move_has_bytes_and_stalls_of_the_minutes_in_the_range(past: Past) -> None:
    """9 days of a move, of which two minutes are shown. A stall of 90 s ended 30 s after the range began."""
    of = move(7, START, None, 18_020_000)
    past.put(MOVES, of)
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST - minutes(1), 18_000_000, stall=(500.0, FIRST - minutes(1))))
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST, stall=(90.0, FIRST + timedelta(seconds=30))))
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST + minutes(1), 3000), behind_minute(of, LAST, 11_000))
    (found,) = _read(past).moves.shown
    assert (found.start, found.end, found.size, found.throttled_size) == (START, None, 9000, 9000)
    assert (found.rate, found.longest_stall) == (9000 / 120, 30.0)


def test_stall_that_outlasts_the_range_counts_up_to_its_end(past: Past) -> None:
    of = move(7, START, None)
    past.put(MOVES, of)
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST))
    past.put(BEHIND_MINUTES, behind_minute(of, LAST + minutes(3), stall=(220.0, LAST + minutes(3))))
    assert [found.longest_stall for found in _read(past).moves.shown] == [40.0]


def test_minutes_of_two_processes_with_one_begin_count_once(past: Past) -> None:
    begin = FIRST + timedelta(seconds=30)
    of = move(7, begin, None)
    past.put(MOVES, of, move(7, begin, START + minutes(40)))
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST, 6000))
    assert sum(found.size for found in _read(past).moves.shown) == 6000


def test_replica_was_stuck_and_behind_as_far_as_in_the_range(past: Past) -> None:
    """It was stuck for 45 s up to half a minute into the range, and for 40 s before it."""
    of = lag(1, START, None, stuck=(40, 45))
    past.put(REPLICA_LAG, of)
    past.put(BEHIND_MINUTES, behind_minute(of, START, 900_000, stall=(40.0, START + minutes(1))))
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST, 5000, stall=(45.0, FIRST + timedelta(seconds=30))))
    past.put(BEHIND_MINUTES, behind_minute(of, FIRST + minutes(1), 700))
    slow = _read(past).slow
    (found,) = slow.shown
    assert (found.start, found.stuck_spans, found.stuck_seconds, found.max_lag_messages) == (START, 1, 30.0, 50)
    assert (slow.most_stuck_seconds, slow.reaching_out) == (30.0, 0)
