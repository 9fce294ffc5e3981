# SPDX-License-Identifier: Apache-2.0
"""The time line that all charts of a page share: positions of times, marks, and how times are written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from weir.pipeline.page.contents import Columns
from weir.pipeline.page.markup import Element, element

MOST_TICKS: Final = 6

_STEPS: Final = (
    *(timedelta(seconds=seconds) for seconds in (1, 2, 5, 10, 20, 30)),
    *(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440)),
)

_AXIS_HEIGHT: Final = 20


class Tick(NamedTuple):
    """A mark at `part` (0 to 1) of the time line. The mark at a day's begin has the day's name."""

    part: float
    text: str
    is_day: bool


class Timeline:
    """Times in `zone`, on a line from the first column's begin to the last one's end."""

    def __init__(self, columns: Columns, zone: tzinfo) -> None:
        self.columns = columns
        self.zone = zone
        self._seconds = columns.seconds * columns.count
        self._ticks = self._find_ticks()

    def part(self, moment: datetime) -> float:
        """Return the position of a time, from 0 to 1; a time outside gets the nearer end."""
        return min(1.0, max(0.0, (moment - self.columns.first).total_seconds() / self._seconds))

    def start_of(self, number: int) -> datetime:
        """Return when column `number` (the first is 0) begins."""
        return self.columns.first + timedelta(seconds=number * self.columns.seconds)

    def show(self, moment: datetime) -> str:
        """Show a time in the page's zone."""
        return show_moment(moment, self.zone)

    def show_column(self, number: int) -> str:
        """Show when a column begins."""
        return self.show(self.start_of(number))

    def time(self, moment: datetime) -> Element:
        """Make an HTML element for a time."""
        return element("time", {"datetime": f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}, self.show(moment))

    def ticks(self) -> list[Tick]:
        """Return at most MOST_TICKS marks, at round times of day in the zone or at begins of days."""
        return self._ticks

    def _find_ticks(self) -> list[Tick]:
        # one mark more or less comes where clocks change, or where the line does not begin at a mark
        likely = (step for step in self._steps() if self._seconds <= step.total_seconds() * (MOST_TICKS + 1))
        return next(found for found in map(self._ticks_of, likely) if len(found) <= MOST_TICKS)

    def _ticks_of(self, step: timedelta) -> list[Tick]:
        return [self._tick(moment) for moment in self._round_times(step)]

    def axis(self) -> Element:
        """Make the axis below a chart."""
        axis = element("svg", {"class": "axis", "width": "100%", "height": _AXIS_HEIGHT, "aria-hidden": "true"})
        for tick in self.ticks():
            anchor = "start" if tick.part < 0.04 else "end" if tick.part > 0.96 else "middle"
            kind = "tick day" if tick.is_day else "tick"
            axis.append(
                element("text", {"class": kind, "x": f"{tick.part:.3%}", "y": 15, "text-anchor": anchor}, tick.text)
            )
        return axis

    def grid(self, height: int) -> Iterator[Element]:
        """Yield the lines at the marks, through a chart of `height` pixels."""
        for tick in self.ticks():
            x = f"{tick.part:.3%}"
            yield element(
                "line", {"class": "day grid" if tick.is_day else "grid", "x1": x, "x2": x, "y1": 0, "y2": height}
            )

    def _steps(self) -> Iterator[timedelta]:
        yield from _STEPS
        days = 2
        while True:
            yield timedelta(days=days)
            days += 1 if days < 7 else 7

    def _round_times(self, step: timedelta) -> Iterator[datetime]:
        """Yield the multiples of a step since midnight in the zone; those of whole days since the first day."""
        first, end = self.start_of(0), self.start_of(self.columns.count)
        day = first.astimezone(self.zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        # Added to the time of day: after a change of the clocks the marks stay at round times.
        times_a_day = max(1, timedelta(days=1) // step)
        before = None
        while day <= end.astimezone(self.zone):
            for number in range(times_a_day):
                moment = (day + number * step).astimezone(UTC)
                if first <= moment < end and (before is None or moment > before):
                    yield moment
                    before = moment
            day += max(step, timedelta(days=1))

    def _tick(self, moment: datetime) -> Tick:
        local = moment.astimezone(self.zone)
        is_day = (local.hour, local.minute, local.second) == (0, 0, 0)
        time = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
        return Tick(self.part(moment), f"{local.day} {local:%b}" if is_day else time, is_day)


def show_moment(moment: datetime, zone: tzinfo) -> str:
    """Show a time, to the nearest second, with its zone: `2026-11-02 12:00 CET`. Seconds only where it has some."""
    local = (moment + timedelta(seconds=0.5)).astimezone(zone)
    seconds = ":%S" if local.second else ""
    return f"{local:%Y-%m-%d %H:%M{seconds} %Z}"
