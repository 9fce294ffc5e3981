# SPDX-License-Identifier: Apache-2.0
"""Bytes and rates as people read them."""

from __future__ import annotations

import pytest

from weir.planning.units import show_rate, show_size


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "none"), (0, "0 B/s"), (999, "999 B/s"), (5_000_000, "5 MB/s"), (1_234_567, "1.235 MB/s"), (2e9, "2 GB/s")],
)
def test_rate_shown_is_short(rate: float | None, text: str) -> None:
    assert show_rate(rate) == text


def test_size_shown_is_no_rate() -> None:
    assert show_size(2e12) == "2 TB"
    assert show_size(8.107e16) == "81.07 PB"
