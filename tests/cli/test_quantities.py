# SPDX-License-Identifier: Apache-2.0
"""Sizes, networks and times as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.cli.quantities import (
    parse_deadline,
    parse_duration,
    parse_network,
    parse_size,
    show_deadline,
    show_duration,
    show_moment,
)

NOW = datetime(2026, 11, 21, 16, 0, 0, 1, UTC)  # 17:00 in the zone of the tests


@pytest.mark.parametrize(
    ("text", "size"), [("2TB", 2 * 10**12), ("500 GiB", 500 * 2**30), ("7", 7), ("1.5k", 1500), ("10mB", 10**7)]
)
def test_size_typed_is_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2TB/s", "big", "-1", "0.5"])
def test_size_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1Gb/s", 125_000_000),
        ("1gb/s", 125_000_000),
        ("1 Gbit/s", 125_000_000),
        ("1Gbps", 125_000_000),
        ("2.5Gbits", 312_500_000),
        ("1Gibit/s", 2**27),
        ("800b/s", 100),
        ("125MB/s", 125_000_000),
        ("125MiB", 125 * 2**20),
        ("125M", 125_000_000),
        ("125000000", 125_000_000),
    ],
)
def test_network_typed_with_a_small_b_is_bits(text: str, rate: int) -> None:
    assert parse_network(text) == rate


@pytest.mark.parametrize("text", ["10Mb", "10mb", "1 Gib"])
def test_network_that_may_be_bits_or_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="may be bits or bytes"):
        parse_network(text)


@pytest.mark.parametrize("text", ["", "fast", "1b/s", "-1Gb/s", "1Gb/h"])
def test_network_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a network's rate"):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28_800),
        ("90min", 5400),
        ("90m", 5400),
        ("1d 6h", 108_000),
        ("1h30m", 5400),
        ("2 d 3 h", 183_600),
        ("5s", 5),
    ],
)
def test_duration_typed_is_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "0h", "soon", "-1h", "1.5h", "30m 1h", "999999d"])
def test_duration_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.2, "1 s"),
        (59.5, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3600.5, "1 h 1 min"),
        (66_666.7, "18 h 32 min"),
        (86_399, "1 d"),
        (86_401, "1 d 1 h"),
    ],
)
def test_duration_shown_is_rounded_up_to_two_units(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@given(st.floats(0.001, 1e9))
def test_duration_shown_can_be_typed_and_is_enough(seconds: float) -> None:
    assert seconds <= parse_duration(show_duration(seconds)) <= max(seconds + 1, seconds * 1.05)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("17:01", "2026-11-21 17:01+01:00"),
        ("17:00", "2026-11-22 17:00+01:00"),  # a microsecond ago
        ("06:00", "2026-11-22 06:00+01:00"),
        ("2026-11-23 06:00", "2026-11-23 06:00+01:00"),
        ("2026-11-23T06:00Z", "2026-11-23 07:00+01:00"),
        ("2026-11-23", "2026-11-23 00:00+01:00"),
    ],
)
@pytest.mark.usefixtures("hour_east_of_utc")
def test_deadline_is_the_next_such_time_here(text: str, shown: str) -> None:
    assert show_moment(parse_deadline(text, NOW)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("02:30", "2026-03-29 03:30+02:00"),  # the clocks went from 02:00 to 03:00
        ("2026-03-29 02:30", "2026-03-29 03:30+02:00"),
        ("03:00", "2026-03-29 03:00+02:00"),
        ("2026-10-25 02:30", "2026-10-25 02:30+02:00"),  # and from 03:00 back to 02:00
    ],
)
@pytest.mark.usefixtures("berlin")
def test_skipped_deadline_is_later_and_a_doubled_one_the_first(text: str, shown: str) -> None:
    """Clocks that go forward skip an hour, and clocks that go back have one twice."""
    assert show_moment(parse_deadline(text, datetime(2026, 3, 28, 23, 30, tzinfo=UTC))) == shown


@pytest.mark.parametrize(
    ("text", "why"),
    [("soon", "is not a time"), ("06", "is not a time"), ("25:00", "is not a time"), ("2026-11-21 17:00", "is over")],
)
@pytest.mark.usefixtures("hour_east_of_utc")
def test_deadline_of_another_form_or_in_the_past_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_deadline(text, NOW)


@pytest.mark.usefixtures("hour_east_of_utc")
def test_moment_shown_is_rounded_up_to_the_minute() -> None:
    assert show_moment(NOW) == "2026-11-21 17:01+01:00"
    assert show_moment(NOW.replace(microsecond=0)) == "2026-11-21 17:00+01:00"


@pytest.mark.usefixtures("hour_east_of_utc")
def test_deadline_is_shown_as_it_was_given() -> None:
    for text in ("2026-11-22 06:00", "2026-11-22 06:00:30"):
        assert show_deadline(parse_deadline(text, NOW)) == f"{text}+01:00"
