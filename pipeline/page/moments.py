# SPDX-License-Identifier: Apache-2.0
"""Times in the form in which DuckDB is queried: whole microseconds since 1970 (UTC)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

MINUTE_MICROS: Final = 60_000_000
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def micros(moment: datetime) -> int:
    """Return an aware `moment` as microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    """Return microseconds since 1970 as an aware time in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def with_times(row: Sequence[Any], *places: int) -> list[Any]:
    """Return a row in which the microseconds at `places` became times; None stays None."""
    return [moment(value) if place in places and value is not None else value for place, value in enumerate(row)]
