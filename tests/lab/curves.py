# SPDX-License-Identifier: Apache-2.0
"""Curves of received bytes for tests."""

from collections.abc import Sequence

from weir.lab.received import Series


def steady(rate: int, seconds: float, before: float = 1.0) -> Series:
    """Ten samples a second of `rate` bytes/s for `seconds`, after `before` seconds of nothing."""
    times = [number / 10 for number in range(int((before + seconds) * 10) + 6)]
    return Series(tuple(times), tuple(int(max(0.0, min(moment - before, seconds)) * rate) for moment in times))


def by_second(amounts: Sequence[int]) -> Series:
    """A sample a second: each of `amounts` (bytes) comes evenly within its second."""
    totals = [sum(amounts[:number]) for number in range(len(amounts) + 1)]
    return Series(tuple(float(number) for number in range(len(totals))), tuple(totals))
