# SPDX-License-Identifier: Apache-2.0
"""A move while it runs: a live table in a terminal, elsewhere (a CI log) a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weir.lab.received import Series

MEGABYTE: Final = 1_000_000
LINE_SECONDS: Final = 5.0

_BARS: Final = "▁▂▃▄▅▆▇█"
_BARS_TO_QUOTA: Final = 4  # the quota is half of the height: what stands above it is above the quota
_MOST_BARS: Final = 60
_ABOVE: Final = 1.05  # x quota; shown in red from here on


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the live producer and consumer did so far, in records; `p99` is from end to end, in seconds."""

    produced: int
    acked: int
    consumed: int
    p99: float


@dataclass(frozen=True, slots=True)
class Moment:
    """A move at one moment: what the follower received so far of `size` bytes, under a quota in bytes/s."""

    received: Series
    size: int
    quota: int
    traffic: Traffic

    @property
    def seconds(self) -> float:
        """Seconds since sampling began."""
        return self.received.times[-1]

    @property
    def last_second(self) -> float:
        """Bytes of the last second."""
        now = self.seconds
        return self.received.total_at(now) - self.received.total_at(max(0.0, now - 1.0))

    @property
    def seconds_left(self) -> float:
        """Seconds that the rest takes at the quota's rate."""
        return max(0.0, (self.size - self.received.received) / self.quota)


class Progress:
    """Shows moments of one move on a console; a context manager. `clock` gives monotonic seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._due = clock() + LINE_SECONDS

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, moment: Moment) -> None:
        """Draw the moment; where nothing can be drawn over, print a line if LINE_SECONDS are over."""
        if self._live is not None:
            self._live.update(as_table(moment), refresh=True)
        elif self._clock() >= self._due:
            self._due += LINE_SECONDS
            self._console.print(as_line(moment), soft_wrap=True, highlight=False)


def as_table(moment: Moment) -> Table:
    """Return the moment as a table of a few rows, to be drawn again and again."""
    bar = ProgressBar(total=moment.size, completed=moment.received.received, width=40)
    moved = Table.grid(padding=(0, 2))
    moved.add_row(bar, f"{_megabytes(moment)} MB", f"{moment.seconds_left:.0f} s left")
    finished = moment.received.per_second()[:-1]  # the last one has only begun
    table = Table.grid(padding=(0, 2))
    table.add_row("  moved", moved)
    table.add_row("  by second", sparkline(finished[-_MOST_BARS:], moment.quota))
    table.add_row("  last second", f"{_last_second(moment)}; ▄ is the quota")
    table.add_row("  live topic", _traffic(moment.traffic))
    return table


def as_line(moment: Moment) -> str:
    """Return the moment as one line of a log."""
    return (
        f"  {moment.seconds:3.0f} s: {_megabytes(moment)} MB, last second {_last_second(moment)}, "
        f"{moment.seconds_left:.0f} s left; live topic: {_traffic(moment.traffic)}"
    )


def sparkline(amounts: Sequence[float], quota: int) -> Text:
    """Return a bar for each amount (bytes in a second): half of the height is the quota, above it bars are red."""
    text = Text()
    for amount in amounts:
        bar = _BARS[max(0, min(len(_BARS), round(amount / quota * _BARS_TO_QUOTA)) - 1)]
        text.append(bar, "red" if amount > _ABOVE * quota else "green")
    return text


def _megabytes(moment: Moment) -> str:
    return f"{moment.received.received / MEGABYTE:.1f} of {moment.size / MEGABYTE:.1f}"


def _last_second(moment: Moment) -> str:
    return f"{moment.last_second / MEGABYTE:.2f} MB ({moment.last_second / moment.quota:.2f} x quota)"


def _traffic(traffic: Traffic) -> str:
    return (
        f"{traffic.produced} produced, {traffic.acked} acked, {traffic.consumed} consumed, "
        f"p99 {traffic.p99 * 1000:.0f} ms end to end"
    )
