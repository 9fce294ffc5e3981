"""Times as DuckDB is asked for them: whole microseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
