# SPDX-License-Identifier: Apache-2.0
"""`--finish-by`, `--auto` and `--between` of `weir move`: how the rate of a move is kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_sidecars import Sidecars
from weir.cli.options import option, parsed
from weir.cli.quantities import parse_deadline, show_deadline
from weir.cli.rates import parse_rate
from weir.control.move_journal import JournalFile, Pacing
from weir.planning.finish_by import RateBounds
from weir.planning.units import show_rate

if TYPE_CHECKING:
    from weir.control.move_pacing import Pacer


@dataclass(frozen=True, slots=True)
class Kept:
    """How the rate of a move is kept: by a deadline (`moment`), or by a link of which `sidecars` tell what passes."""

    pacing: Pacing
    moment: datetime | None
    sidecars: Sidecars

    def __str__(self) -> str:
        if self.moment is not None:
            return f"for its end by {show_deadline(self.moment)}"
        return f"at what is free of links of {show_rate(self.pacing.link_capacity)}"

    def pacer(self, file: JournalFile) -> Pacer:
        """Return what keeps it, by time.monotonic: a clock that is set meanwhile moves no deadline."""
        from weir.control.move_pacing import DeadlinePacer, LinkPacer

        if self.moment is None:
            return LinkPacer(file, self.pacing, self.sidecars.passed)
        seconds = (self.moment - datetime.now(UTC)).total_seconds()
        return DeadlinePacer(file, self.pacing, time.monotonic() + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingOptions:
    """How the rate of a move is to be kept, where no --throttle fixes it."""

    finish_by: str | None = option("--finish-by", "TIME", "Keep the lowest throttle that ends it by then, as in 06:00.")
    auto: bool = option("--auto", None, "Keep the throttle at what others leave free of each broker's link.", False)
    link_capacity: str | None = option(
        "--link-capacity", "RATE", "With --auto: what a link carries each way, as in 100MB."
    )
    between: str | None = option("--between", "RATE,RATE", "The lowest and highest throttle of both: 1MB,50MB.")

    def read(self, sidecars: Sidecars) -> Kept | None:
        """Return what the options say. CommandError where they are wrong, or do not go together."""
        limits = parsed("--between", _parse_limits, self.between) or RateBounds()
        capacity = parsed("--link-capacity", parse_rate, self.link_capacity)
        if self.auto and self.finish_by is not None:
            raise CommandError("--auto and --finish-by both keep the rate: give one of them.", WRONG_USAGE)
        if self.auto != (capacity is not None):
            question = "how much does a broker's link carry?"
            raise CommandError(f"--auto and --link-capacity go together: {question}", WRONG_USAGE)
        now = datetime.now(UTC)
        moment = parsed("--finish-by", lambda text: parse_deadline(text, now), self.finish_by)
        if capacity is None and moment is None:
            if self.between is None:
                return None
            raise CommandError("--between says which rates --finish-by or --auto may use: give one too.", WRONG_USAGE)
        finish_by = moment.timestamp() if moment is not None else None
        return Kept(Pacing(finish_by, capacity, limits.lowest, limits.highest), moment, sidecars)


def written(pacing: Pacing | None, sidecars: Sidecars) -> Kept | None:
    """Return how the rate of a move is kept, by what was written down of it; None where it is not kept."""
    if pacing is None or (pacing.finish_by is None and pacing.link_capacity is None):
        return None
    return Kept(pacing, None if pacing.finish_by is None else datetime.fromtimestamp(pacing.finish_by, UTC), sidecars)


def _parse_limits(text: str) -> RateBounds:
    lowest, comma, highest = text.partition(",")
    if not comma:
        raise ValueError(f"{text!r} is no range: give it as in 1MB,50MB")
    limits = RateBounds(parse_rate(lowest.strip()), parse_rate(highest.strip()))
    if limits.highest is not None and not 0 < limits.lowest <= limits.highest:
        raise ValueError(f"{text!r} is no range: the first rate has to be above 0, and not above the second")
    return limits
