"""`--finish-by` and `--between` of `weir move`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cli.errors import WRONG_USAGE, CommandError
from cli.plan_inputs import parsed
from cli.quantities import parse_deadline
from cli.rates import parse_rate
from planning.finish_by import Limits

if TYPE_CHECKING:
    from control.move_pacing import Deadline


@dataclass(frozen=True, slots=True)
class FinishBy:
    """A deadline as it was given, and the rates that are allowed."""

    moment: datetime
    limits: Limits

    def deadline(self) -> Deadline:
        """Return the deadline in seconds of time.monotonic."""
        from control.move_pacing import Deadline

        return Deadline(time.monotonic() + (self.moment - datetime.now(UTC)).total_seconds(), self.limits)


def read_finish_by(finish_by: str | None, between: str | None) -> FinishBy | None:
    """Return what both options say. CommandError where they are wrong, or `between` stands alone."""
    limits = parsed("--between", _parse_limits, between)
    if finish_by is None:
        if between is not None:
            raise CommandError("--between says which rates --finish-by may use: give both.", WRONG_USAGE)
        return None
    now = datetime.now(UTC)
    moment = parsed("--finish-by", lambda text: parse_deadline(text, now), finish_by)
    return FinishBy(moment, limits or Limits()) if moment is not None else None


def _parse_limits(text: str) -> Limits:
    lowest, comma, highest = text.partition(",")
    if not comma:
        raise ValueError(f"{text!r} is no range: give it as in 1MB,50MB")
    limits = Limits(parse_rate(lowest.strip()), parse_rate(highest.strip()))
    if limits.highest is not None and not 0 < limits.lowest <= limits.highest:
        raise ValueError(f"{text!r} is no range: the first rate has to be above 0, and not above the second")
    return limits
