# SPDX-License-Identifier: Apache-2.0
"""Numbers and lengths of time in words."""

from __future__ import annotations

import pytest

from weir.pipeline.page.texts import left_out, round_up, show_ratio, show_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7500, "2 h 5 min"),
        (90_061, "1 d 1 h"),
    ],
)
def test_seconds_are_shown_in_their_largest_units(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_what_is_left_out_is_said_only_if_it_is() -> None:
    assert left_out(20, 20, "partitions", "with the most bytes") is None
    assert left_out(20, 40_000, "partitions", "with the most bytes") == (
        "Shown are the 20 with the most bytes of 40,000 partitions; 39,980 are left out."
    )


def test_ratio_that_is_not_known_is_a_dash() -> None:
    assert (show_ratio(None), show_ratio(1.02)) == ("-", "1.020")


@pytest.mark.parametrize(("least", "rounded"), [(0, 1), (1, 1), (1.1, 2), (4.9, 5), (5.1, 10), (10, 10), (2.5e6, 5e6)])
def test_rounded_up_is_one_two_or_five_times_a_power_of_ten(least: float, rounded: float) -> None:
    assert round_up(least) == rounded
