# SPDX-License-Identifier: Apache-2.0
"""Times on the line, in zones whose clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest

from tests.pipeline.parquet import START
from weir.pipeline.page.read import columns_of
from weir.pipeline.page.timeline import MOST_TICKS, Timeline, show_moment

BERLIN = ZoneInfo("Europe/Berlin")
CLOCKS_BACK = datetime(2026, 10, 25, tzinfo=BERLIN)  # a day of 25 hours, with 02:00 to 03:00 twice


def _timeline(since: datetime, hours: float, zone: tzinfo = UTC) -> Timeline:
    return Timeline(columns_of(since, since + timedelta(hours=hours)), zone)


def test_time_is_shown_to_the_nearest_second() -> None:
    assert show_moment(START - timedelta(milliseconds=2), UTC) == "2026-11-02 00:00 UTC"
    assert show_moment(START + timedelta(seconds=9.4), UTC) == "2026-11-02 00:00:09 UTC"


def test_part_of_a_time_is_where_it_is_within_the_columns() -> None:
    timeline = _timeline(START, 24)
    moments = (START - timedelta(days=1), START, START + timedelta(hours=6), START + timedelta(days=7))
    assert [timeline.part(moment) for moment in moments] == [0, 0, 0.25, 1]


def test_ticks_are_at_round_times_and_name_the_day() -> None:
    ticks = _timeline(START, 24).ticks()
    assert [tick.text for tick in ticks] == ["2 Nov", "04:00", "08:00", "12:00", "16:00", "20:00"]
    assert [tick.part for tick in ticks] == [number / 6 for number in range(6)]
    assert [tick.is_day for tick in ticks] == [True, *[False] * 5]


def test_ticks_are_at_round_times_of_the_zone() -> None:
    ticks = _timeline(START, 24, ZoneInfo("Asia/Kolkata")).ticks()
    assert [tick.text for tick in ticks] == ["08:00", "12:00", "16:00", "20:00", "3 Nov", "04:00"]
    assert ticks[0].part == pytest.approx(2.5 / 24)


def test_ticks_stay_at_round_times_when_the_clocks_change() -> None:
    ticks = _timeline(CLOCKS_BACK, 25, BERLIN).ticks()
    assert [tick.text for tick in ticks] == ["25 Oct", "06:00", "12:00", "18:00", "26 Oct"][: len(ticks)]
    assert ticks[1].part * 25 == pytest.approx(7, abs=0.3)


@pytest.mark.parametrize("hours", [0.02, 0.1, 1, 5, 24, 72, 24 * 9, 24 * 100, 24 * 366 * 30])
@pytest.mark.parametrize("zone", [UTC, BERLIN])
def test_ticks_are_few_and_in_order_however_long_the_range(hours: float, zone: tzinfo) -> None:
    parts = [tick.part for tick in _timeline(START, hours, zone).ticks()]
    assert 1 <= len(parts) <= MOST_TICKS
    assert parts == sorted(set(parts))


def test_time_is_shown_with_its_zone() -> None:
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    shown = [show_moment(first + timedelta(hours=hour), BERLIN) for hour in range(2)]
    assert shown == ["2026-10-25 02:30 CEST", "2026-10-25 02:30 CET"]
    assert show_moment(first.replace(second=7), UTC) == "2026-10-25 00:30:07 UTC"
