# SPDX-License-Identifier: Apache-2.0
"""Rates as people type them."""

from __future__ import annotations

import pytest

from weir.cli.rates import parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("0", 0),
        ("5000000", 5_000_000),
        ("5M", 5_000_000),
        ("5MB", 5_000_000),
        ("5 MB/s", 5_000_000),
        ("5mB", 5_000_000),
        ("5MiB", 5 * 1024 * 1024),
        ("1.5k", 1500),
        ("1.5KiB", 1536),
        ("2GB", 2_000_000_000),
        ("7B", 7),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_rate_typed_is_bytes_per_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "5 parsecs", "5Mbit", "5Mb", "5mb", "5Mib", "1e6", "0.5", "1.0005k", "9223372036854775808", "٣"],
)
def test_rate_of_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text).replace("\\", ".")):
        parse_rate(text)
