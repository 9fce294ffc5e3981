# SPDX-License-Identifier: Apache-2.0
"""The figures of a plan, each with its source; and the sentences that say why a plan is impossible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from weir.cli.quantities import rounded_up, show_duration, show_exactly, show_moment
from weir.planning.arithmetic import (
    ImpossibleMove,
    Move,
    NoQuota,
    QuotaTooHigh,
    QuotaTooLow,
    TooSlow,
    TooSoon,
    fastest,
    quota_bounds,
)
from weir.planning.units import show_rate, show_size

Unit = Literal["bytes", "bytes/s", "seconds", "ratio", "count", "time"]

_SHOW: Final[dict[Unit, Callable[[float], str]]] = {
    "bytes": show_size,
    "bytes/s": show_rate,
    "seconds": show_duration,
    "ratio": lambda ratio: f"{ratio:.4g}",
    "count": str,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A named value (None: not known), its unit and its source. Values with the unit `time` are text."""

    name: str
    value: float | str | None
    unit: Unit
    source: str

    @property
    def shown(self) -> str:
        """The value with its unit for people: `5 MB/s`, `18 h 32 min`, or `not known`."""
        if self.value is None:
            return "not known"
        if isinstance(self.value, str):
            return self.value
        if self.name == "quota":
            return show_exactly(math.ceil(self.value))
        return _SHOW[self.unit](self.value)


class Figures:
    """Figures, in the order in which they were worked out."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []

    def add(self, name: str, value: float | str | None, unit: Unit, source: str) -> None:
        """Append a figure; `value` is in `unit`, None where it is not known, and `source` says where it comes from."""
        self._figures.append(Figure(name, value, unit, source))

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and source of each figure, as text for a table."""
        return [(figure.name.replace("_", " "), figure.shown, figure.source) for figure in self._figures]

    def as_json(self) -> dict[str, dict[str, object]]:
        """Return each figure's value, unit and source by its name, as plain JSON values."""
        return {
            figure.name: {"value": figure.value, "unit": figure.unit, "source": figure.source}
            for figure in self._figures
        }


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a plan is impossible, what would be possible (two parts of one sentence), and the same as figures."""

    why: str
    would_do: str
    values: dict[str, float]


def refusal(
    error: ImpossibleMove, move: Move, quota: int | None, seconds: float | None, start: datetime | None
) -> Refusal:
    """Put `error` into words, for a plan that asked for `quota` bytes/s, for a time in `seconds`, or for both.

    `start` is the present time, where the plan was asked for by the time of day at which the move ends; else None.
    """
    network = show_rate(move.network)
    match error:
        case NoQuota():
            return Refusal(
                f"bytes in of {show_rate(move.bytes_in)} leave no room for any quota on a network of {network}: none"
                " both keeps up with them and leaves clients room",
                f"a network of more than {show_exactly(math.ceil(error.network))} would do",
                {"network_above": error.network},
            )
        case QuotaTooLow():
            return _with_fastest(
                move,
                f"a quota of {show_rate(quota)} is not above the {show_rate(error.above)} that keeping up with bytes in"
                " takes, so the move would never end",
                f"more than {show_exactly(math.floor(error.above))} would do",
                {"quota_above": error.above},
                error.needed,
            )
        case QuotaTooHigh():
            return _with_fastest(
                move,
                f"a quota of {show_rate(quota)} leaves clients no room on a network of {network}",
                f"less than {show_exactly(math.ceil(error.below))} would do",
                {"quota_below": error.below},
                error.needed,
            )
        case TooSlow():
            return Refusal(
                f"under {show_rate(quota)} the move takes {show_duration(error.seconds)}, and not"
                f" {show_duration(seconds or 0)}",
                *_in_time(error.needed),
            )
        case TooSoon():
            enough, movable = rounded_up(error.seconds), _rounded_down(error.movable)
            end = "" if start is None else f" (by {show_moment(start + timedelta(seconds=enough))})"
            under = "" if quota is None else f" under {show_exactly(error.quota)}"
            return Refusal(
                f"to move {show_size(move.to_move)} within {show_duration(seconds or 0)} takes a quota of"
                f" {show_rate(error.needed)}, and the network has room for less than"
                f" {show_rate(quota_bounds(move).below)}",
                f"{show_duration(enough)}{end}{under} would do, or moving {show_size(movable)} at most",
                {"quota": error.quota, "seconds": enough, "bytes_to_move": movable},
            )
    raise AssertionError(error)  # every kind of impossible move has its sentence above


def _in_time(needed: int) -> tuple[str, dict[str, float]]:
    """Say which quota is enough for the time that was asked for."""
    return f"{show_exactly(needed)} would do", {"quota": needed}


def _with_fastest(move: Move, why: str, would_do: str, values: dict[str, float], needed: int | None) -> Refusal:
    """Add the shortest time that the network has room for, if that is known; else the quota `needed` in time."""
    if needed is not None:
        return Refusal(why, *_in_time(needed))
    best = fastest(move)
    if best is None:
        return Refusal(why, would_do, values)
    return Refusal(
        why,
        f"{would_do}, and at {show_exactly(best.quota)} it takes {show_duration(best.seconds)}, the shortest there is"
        " room for",
        values | {"quota": best.quota, "seconds": rounded_up(best.seconds)},
    )


def _rounded_down(size: float) -> float:
    """Round down to the four digits that people see, so that the number that they see is possible."""
    if size < 1:
        return 0
    step = 10.0 ** max(0, math.floor(math.log10(size)) - 3)
    return math.floor(size / step) * step
