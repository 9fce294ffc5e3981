"""The time that a run builds: whole hours, UTC, of which a day has 24."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from pyspark.sql import Column

from weir.pipeline.errors import BuildError

HOUR_SECONDS: Final = 3600
ALL_HOURS: Final = frozenset(range(24))

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


class Hours(NamedTuple):
    """The hours from `first` up to but without `until`; both are UTC, at a whole hour."""

    first: datetime
    until: datetime

    @classmethod
    def of_day(cls, day: date) -> Hours:
        """Return a whole day."""
        return cls(midnight(day), midnight(day) + _DAY)

    @classmethod
    def between(cls, first: date, until: date) -> Hours:
        """Return the hours between two days, or two times."""
        return cls(midnight(first), midnight(until))

    @property
    def day(self) -> date:
        """The day of the first hour."""
        return self.first.date()

    @property
    def is_day(self) -> bool:
        """Whether they are one whole day."""
        return self == Hours.of_day(self.day)

    def by_day(self) -> list[Hours]:
        """Return the part of each day, in order."""
        parts, first = [], self.first
        while first < self.until:
            until = min(midnight(first.date()) + _DAY, self.until)
            parts.append(Hours(first, until))
            first = until
        return parts

    def starts(self) -> list[datetime]:
        """Return the start of each hour, in order."""
        return [self.first + number * _HOUR for number in range((self.until - self.first) // _HOUR)]

    def seconds(self) -> tuple[int, int]:
        """Return the first second since 1970, and the last one."""
        return int(self.first.timestamp()), int(self.until.timestamp()) - 1

    def __str__(self) -> str:
        """Return the day, and the times where it is not whole."""
        return f"{self.day}" if self.is_day else f"{self.first:%Y-%m-%d %H:%M} to {self.until:%Y-%m-%d %H:%M}"


def hour_of(second: Column) -> Column:
    """Return the start of the hour that a second since 1970 is in."""
    return second - second % HOUR_SECONDS


def midnight(day: date) -> datetime:
    """Return the begin of a day in UTC; a time stays as it is."""
    return day if isinstance(day, datetime) else datetime(day.year, day.month, day.day, tzinfo=UTC)


def parse_hour(text: str) -> datetime:
    """Return the begin of the day or hour that a text like 2026-11-02 or 2026-11-02T13 names; BuildError otherwise."""
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H"):
        try:
            found = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if found.strftime(form) == text:
            return found
    raise BuildError(f"{text!r} is not a day or an hour: give it in UTC, as 2026-11-02 or 2026-11-02T13")
