# SPDX-License-Identifier: Apache-2.0
"""Numbers and lengths of time in words for people."""

from __future__ import annotations

import math

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def show_count(count: int) -> str:
    """Show a number with separated thousands: `40,000`."""
    return f"{count:,}"


def show_ratio(ratio: float | None) -> str:
    """Show a ratio with three decimals: `1.042`; None is `-`."""
    return "-" if ratio is None else f"{ratio:.3f}"


def show_seconds(seconds: float) -> str:
    """Show a length of time in its two largest units: `3 h 5 min`; less than a minute with a tenth."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, scale in _UNITS:
        count, rest = divmod(rest, scale)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def counted(count: int, one: str, many: str | None = None) -> str:
    """Show a count with its noun: `1 move`, `2 moves`."""
    return f"{show_count(count)} {one if count == 1 else many or one + 's'}"


def left_out(shown: int, count: int, noun: str, order: str) -> str | None:
    """Return a sentence that says how many are not shown; None where all are."""
    if shown >= count:
        return None
    rest = show_count(count - shown)
    return f"Shown are the {show_count(shown)} {order} of {show_count(count)} {noun}; {rest} are left out."


def round_up(least: float) -> float:
    """Return the least of 1, 2 or 5 times a power of ten that is not below `least`; at least 1."""
    power = 10.0 ** math.floor(math.log10(max(least, 1.0)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
