# SPDX-License-Identifier: Apache-2.0
"""The time that a run builds: whole days, UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from weir.pipeline.errors import BuildError

HOUR_SECONDS: Final = 3600
DAY_SECONDS: Final = 24 * HOUR_SECONDS
DAY: Final = timedelta(days=1)


class Days(NamedTuple):
    """The days from `first` up to but without `until`, UTC."""

    first: date
    until: date

    @classmethod
    def around(cls, first: date, until: date) -> Days:
        """Return the days that the time from `first` to before `until` lies in; both are days or times, UTC.

        BuildError where there is no such time.
        """
        if midnight(until) <= midnight(first):
            raise BuildError(f"there is nothing from {first} to before {until}")
        return cls(midnight(first).date(), (midnight(until) - timedelta.resolution).date() + DAY)

    @classmethod
    def of(cls, day: date) -> Days:
        """Return one day."""
        return cls(day, day + DAY)

    def each(self) -> list[Days]:
        """Return each day, in order."""
        return [Days.of(self.first + number * DAY) for number in range((self.until - self.first).days)]

    def seconds(self) -> tuple[int, int]:
        """Return the first second since 1970, and the last one."""
        return int(midnight(self.first).timestamp()), int(midnight(self.until).timestamp()) - 1


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
