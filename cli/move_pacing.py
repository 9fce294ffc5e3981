"""`--finish-by`, `--auto` and `--between` of `weir move`: how the rate of a move is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from weir.cli.errors import WRONG_USAGE, CommandError
from weir.cli.move_sidecars import passed
from weir.cli.plan_inputs import parsed
from weir.cli.quantities import parse_deadline, show_moment
from weir.cli.rates import parse_rate
from weir.planning.finish_by import Limits
from weir.planning.units import show_rate

if TYPE_CHECKING:
    from weir.control.move_journal import JournalFile, Pacing
    from weir.control.move_pacing import Deadline, Link, Pacer


@dataclass(frozen=True, slots=True)
class FinishBy:
    """A deadline as it was given, and the rates that are allowed."""

    moment: datetime
    limits: Limits

    def __str__(self) -> str:
        return f"for its end by {show_moment(self.moment)}"

    def deadline(self) -> Deadline:
        """Return the deadline in seconds of time.monotonic."""
        from weir.control.move_journal import Pacing
        from weir.control.move_pacing import Deadline

        written = Pacing(finish_by=self.moment.timestamp(), lowest=self.limits.lowest, highest=self.limits.highest)
        seconds = (self.moment - datetime.now(UTC)).total_seconds()
        return Deadline(time.monotonic() + seconds, self.limits, written)

    def pacer(self, file: JournalFile) -> Pacer:
        """Return what takes up a move that runs."""
        from weir.control.move_pacing import DeadlinePacer

        return DeadlinePacer(file, self.deadline(), clock=time.monotonic, sleep=time.sleep)


@dataclass(frozen=True, slots=True)
class Auto:
    """What a link carries (bytes/s), the rates that are allowed, and the sidecars that tell what passes."""

    capacity: int
    limits: Limits
    sidecars: Sequence[str] | None

    def __str__(self) -> str:
        return f"at what is free of links of {show_rate(self.capacity)}"

    def link(self) -> Link:
        """Return what a link carries, and how to ask what passes."""
        from weir.control.move_pacing import Link

        return Link(self.capacity, self.limits, passed(self.sidecars))

    def pacer(self, file: JournalFile) -> Pacer:
        """Return what takes up a move that runs."""
        from weir.control.move_pacing import LinkPacer

        return LinkPacer(file, self.link(), clock=time.monotonic, sleep=time.sleep)


def read_pacing(
    finish_by: str | None, auto: bool, link_capacity: str | None, between: str | None, sidecars: Sequence[str] | None
) -> FinishBy | Auto | None:
    """Return what the options say. CommandError where they are wrong, or do not go together."""
    limits = parsed("--between", _parse_limits, between)
    capacity = parsed("--link-capacity", parse_rate, link_capacity)
    if auto and finish_by is not None:
        raise CommandError("--auto and --finish-by both keep the rate: give one of them.", WRONG_USAGE)
    if auto != (capacity is not None):
        raise CommandError("--auto and --link-capacity go together: how much does a broker's link carry?", WRONG_USAGE)
    if capacity is not None:
        return Auto(capacity, limits or Limits(), sidecars)
    if finish_by is None:
        if between is not None:
            raise CommandError("--between says which rates --finish-by or --auto may use: give one too.", WRONG_USAGE)
        return None
    now = datetime.now(UTC)
    moment = parsed("--finish-by", lambda text: parse_deadline(text, now), finish_by)
    return FinishBy(moment, limits or Limits()) if moment is not None else None


def written_pacing(pacing: Pacing, sidecars: Sequence[str] | None) -> FinishBy | Auto | None:
    """Return how a move is kept by what was written down of it."""
    limits = Limits(pacing.lowest, pacing.highest)
    if pacing.link_capacity is not None:
        return Auto(pacing.link_capacity, limits, sidecars)
    if pacing.finish_by is not None:
        return FinishBy(datetime.fromtimestamp(pacing.finish_by, UTC), limits)
    return None


def _parse_limits(text: str) -> Limits:
    lowest, comma, highest = text.partition(",")
    if not comma:
        raise ValueError(f"{text!r} is no range: give it as in 1MB,50MB")
    limits = Limits(parse_rate(lowest.strip()), parse_rate(highest.strip()))
    if limits.highest is not None and not 0 < limits.lowest <= limits.highest:
        raise ValueError(f"{text!r} is no range: the first rate has to be above 0, and not above the second")
    return limits
