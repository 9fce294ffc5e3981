# SPDX-License-Identifier: Apache-2.0
import itertools
from pathlib import Path

import pytest

from tests.lab.curves import steady
from weir.lab.received import ReceivedBytes, Series


def test_longest_pause_is_between_two_bytes() -> None:
    """A pause before the first byte, or after the last, is none."""
    series = Series((0.0, 2.0, 2.1, 2.2, 2.5, 2.6, 3.5), (0, 0, 10, 10, 10, 20, 20))
    assert series.longest_pause(0.0, 9.0) == pytest.approx(0.4)
    assert series.longest_pause(0.0, 2.4) == series.longest_pause(2.7, 9.0) == 0.0


def test_mean_rate_counts_from_the_first_byte_to_the_last() -> None:
    series = steady(1000, 4.0, before=3.0)
    assert series.received == 4000
    assert series.span == pytest.approx((3.0, 7.0))
    assert series.mean_rate() == pytest.approx(1000)


def test_worst_window_of_a_steady_stream_is_its_rate() -> None:
    assert steady(1000, 4.0).worst_window()[0] == pytest.approx(1000, rel=0.002)


def test_worst_window_includes_the_first_second() -> None:
    """A burst right at the start, before any window has filled, is the worst window."""
    series = Series((0.0, 0.1, 0.2, 1.2, 2.2), (0, 900, 1000, 1100, 1200))
    assert series.worst_window() == (1000, 0.0)


def test_worst_window_is_found_between_whole_seconds() -> None:
    """900 bytes about the border of two seconds: each second by itself saw half of them."""
    series = Series((0.0, 0.5, 1.0, 1.5, 2.0), (0, 0, 450, 900, 900))
    assert series.worst_window() == pytest.approx((900, 0.5))


def test_worst_window_is_never_wider_than_a_second() -> None:
    """Samples 0.103 s apart: ten intervals are 1.03 s, so nine are what surely came within one."""
    times = [number * 0.103 for number in range(60)]
    series = Series(tuple(times), tuple(number * 103 for number in range(60)))
    assert series.worst_window()[0] == 927


def test_worst_window_counts_no_part_of_a_step_outside_of_it() -> None:
    """The step at 1.03 s was seen at 1.1 s: a window from 0.05 s on may not have a part of it."""
    series = Series((0.0, 0.05, 0.1, 1.0, 1.1), (0, 0, 500, 500, 1000))
    assert series.worst_window() == (500, 0.0)


def test_worst_window_is_from_a_readings_begin_to_anothers_end() -> None:
    """A file that is read late in the first reading, and early in the last, is seen over a shorter time than others."""
    narrow = Series((0.1, 1.0), (0, 900), begun=(0.0, 0.95))
    assert narrow.worst_window() == (900, 0.0)
    assert Series((0.1, 1.05), (0, 900), begun=(0.0, 0.95)).worst_window() == (0, 0.0)
    assert Series((0.1, 2.0), (0, 900), begun=(0.0, 0.5)).worst_window() == (0, 0.0)


def test_series_without_growth_has_no_rate() -> None:
    series = Series((0.0, 1.0), (500, 500))
    assert (series.received, series.mean_rate(), series.worst_window()[0], series.per_second()) == (0, 0.0, 0.0, [])


def test_per_second_begins_with_the_first_byte_and_adds_up() -> None:
    amounts = steady(1000, 3.5, before=2.25).per_second()
    assert len(amounts) == 4
    assert sum(amounts) == pytest.approx(3500)
    assert amounts[1] == pytest.approx(1000)


def test_sampler_sees_the_first_and_the_last_byte(tmp_path: Path) -> None:
    """Samples are taken before the thread starts and after it has ended, so nothing that came in between is missed."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(b"old")
    with ReceivedBytes([(tmp_path, "orders", 0), (tmp_path, "orders", 1)]) as received:
        (tmp_path / "orders-1").mkdir()
        (tmp_path / "orders-1" / "00000000000000000000.log").write_bytes(bytes(100))
        (tmp_path / "orders-1" / "00000000000000000000.index").write_bytes(bytes(10_000))
    series = received.series()
    assert series.received == 100
    assert received.total == 103
    assert series.times[0] == 0.0


def test_sampler_tells_when_a_reading_began_and_when_it_ended(tmp_path: Path) -> None:
    ticks = itertools.count()
    received = ReceivedBytes([(tmp_path, "orders", 0)], clock=lambda: float(next(ticks)))
    received._sample()
    received._sample()
    assert received.series().begun == (-1.0, 1.0)
    assert received.series().times == (0.0, 2.0)
