# SPDX-License-Identifier: Apache-2.0
"""Sizes, network speeds and times: parsing what people type, and showing values to them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

from weir.cli.rates import parse_rate
from weir.planning.units import show_rate

_BITS = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<prefix>(?:[kmgt]i?)?)b(?:its?)?(?P<of_time>/s|ps)?", re.IGNORECASE
)
_BITS_IN_A_BYTE = 8

_DURATION = re.compile(
    r"(?:(?P<days>[0-9]+)\s*d)?\s*(?:(?P<hours>[0-9]+)\s*h)?\s*(?:(?P<minutes>[0-9]+)\s*m(?:in)?)?\s*"
    r"(?:(?P<seconds>[0-9]+)\s*s)?"
)
_UNIT_SECONDS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_LONGEST_SECONDS = 100 * 366 * 86_400


class _Unclear(ValueError):
    """A rate that is bits to some and bytes to others."""


def parse_size(text: str) -> int:
    """Return the bytes of `500GB`, `2TB` or `2TiB` (k is 1000, Ki is 1024); ValueError for any other text."""
    try:
        if "/" in text:
            raise ValueError
        return parse_rate(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a size: give bytes as in 500GB, 2TB or 2TiB") from None


def parse_network(text: str) -> int:
    """Return the bytes/s of `1Gb/s`, `10Gbit` or `1Gbps`, which are bits, or of `125MB/s`; else ValueError.

    Networks are sold in bits, so only here a small b is a bit, and only with "it", "/s" or "ps": `10Mb` is refused.
    """
    match = _BITS.fullmatch(text.strip())
    try:
        if match is None or _is_in_bytes(text):
            return parse_rate(text)
        if match["of_time"] is None and "it" not in text.casefold():
            raise _Unclear
        return parse_rate(f"{Decimal(match['number']) / _BITS_IN_A_BYTE:f}{match['prefix']}B")
    except _Unclear:
        raise ValueError(f"{text!r} may be bits or bytes: give 10Mbit or 10Mb/s (bits), or 10MB/s (bytes)") from None
    except ValueError:
        raise ValueError(f"{text!r} is not a network's rate: give it as in 1Gb/s (bits) or 125MB/s (bytes)") from None


def _is_in_bytes(text: str) -> bool:
    return "B" in text and "bit" not in text.casefold()


def parse_duration(text: str) -> int:
    """Return the seconds of `8h`, `90min`, `1d 6h` or `1h30m`; ValueError for any other text, also an empty one."""
    match = _DURATION.fullmatch(text.strip())
    seconds = 0
    if match is not None:
        counts = (match["days"], match["hours"], match["minutes"], match["seconds"])
        seconds = sum(int(count or 0) * scale for count, (_, scale) in zip(counts, _UNIT_SECONDS, strict=True))
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{text!r} is not a time: give it as in 8h, 90min or 1d 6h")
    return seconds


def parse_deadline(text: str, now: datetime) -> datetime:
    """Return the next `06:00`, or exactly `2026-11-22 06:00`, in local time; ValueError for no time or a past one."""
    try:
        clock = time.fromisoformat(text)
    except ValueError:
        pass
    else:
        if clock.tzinfo is None and len(text) > len("06"):
            today = now.astimezone().date()
            moments = (_here(datetime.combine(today + timedelta(days=days), clock)) for days in (0, 1))
            return next(moment for moment in moments if moment > now)
    try:
        deadline = _here(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: give it as in 06:00 or '2026-11-22 06:00'") from None
    if deadline <= now:
        raise ValueError(f"{text!r} is over")
    return deadline


def _here(moment: datetime) -> datetime:
    """Return a time in the local zone; a time without a zone is taken as local.

    A time that the clocks skip becomes one as long after midnight as it would have been; `astimezone` alone would go
    back.
    """
    return datetime.fromtimestamp(moment.timestamp(), UTC).astimezone()


def show_exactly(rate: int) -> str:
    """Show bytes/s so that they can be typed again: `5000000 bytes/s (5 MB/s)`."""
    return f"{rate} bytes/s ({show_rate(rate)})"


def rounded_up(seconds: float) -> int:
    """Round up to what `show_duration` shows: whole seconds, minutes from an hour on, hours from a day on."""
    for least, step in ((86_400, 3600), (3600, 60)):
        if seconds > least:
            return math.ceil(seconds / step) * step
    return math.ceil(seconds)


def show_duration(seconds: float) -> str:
    """Show seconds, rounded up, in the two largest units: `18 h 32 min`."""
    rest = rounded_up(seconds)
    parts = []
    for unit, scale in _UNIT_SECONDS:
        count, rest = divmod(rest, scale)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def show_moment(moment: datetime) -> str:
    """Show a time with its zone, rounded up to the minute: `2026-11-22 06:00+01:00`."""
    local = moment.astimezone()
    if local.second or local.microsecond:
        local = local.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return local.isoformat(sep=" ", timespec="minutes")


def show_deadline(moment: datetime) -> str:
    """Show a time with its zone as it was given: to the second where it is no whole minute."""
    local = moment.astimezone()
    return local.isoformat(sep=" ", timespec="seconds" if local.second else "minutes")
