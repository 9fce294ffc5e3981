"""Times in the form in which DuckDB is queried: whole microseconds since 1970 (UTC)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def micros(moment: datetime) -> int:
    """Return an aware `moment` as microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    """Return microseconds since 1970 as an aware time in UTC."""
    return _EPOCH + timedelta(microseconds=micros)
