# SPDX-License-Identifier: Apache-2.0
"""Follows a move on the terminal: one line that is kept up to date, or a line now and then where stdout is none."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.cli.move_pacing import Kept
from weir.cli.move_plan import Planned
from weir.cli.move_sidecars import Sidecars
from weir.cli.quantities import show_deadline, show_duration
from weir.planning.finish_by import Pace
from weir.planning.headroom import Allowance
from weir.planning.units import show_rate, show_rough_rate, show_size
from weir.quota.settings import FOLLOWER_RATE

if TYPE_CHECKING:
    from weir.control.move_following import Tick
    from weir.control.move_pacing import Pacer

_LINE_SECONDS = 10.0  # between lines where nobody watches: in a log file


@dataclass(frozen=True, slots=True)
class Watched:
    """A move that is followed, and how it is told: in lines, or in lines of JSON. `sidecars` know more of it."""

    planned: Planned
    sidecars: Sidecars
    json_wanted: bool

    def follow(
        self,
        throttle: int | None,
        kept: Kept | None = None,
        pacer: Pacer | None = None,
        at_once: int | None = None,
    ) -> None:
        """Show progress until nothing of the plan moves. `pacer` keeps the throttle (bytes/s), as `kept` says."""
        from weir.control.move_following import Following
        from weir.control.move_stuck import StuckWatch

        plan, file = self.planned.plan, self.planned.file
        watch = StuckWatch(file, self.sidecars.sentences)
        before = file.read_rollback()
        terminal = sys.stdout.isatty()
        shown_at, shown = -_LINE_SECONDS, ""
        follower = Following(self.planned.connect, plan, before, time.monotonic, time.sleep, at_once, pacer, watch)
        for tick in follower.ticks():
            lag = self.sidecars.lag()
            throttle = tick.pace.rate if isinstance(tick.pace, Pace) else throttle
            if self.json_wanted:
                print(json.dumps(_as_json(tick, throttle, lag, kept)), flush=True)
                continue
            line = _line(tick, throttle, lag, kept)
            if terminal:
                print(f"\r\x1b[K{line}", end="", flush=True)
            elif line != shown and time.monotonic() - shown_at >= _LINE_SECONDS:
                print(line, flush=True)
                shown_at = time.monotonic()
            shown = line
        if terminal and not self.json_wanted:
            print()


def _line(tick: Tick, throttle: int | None, lag: int | None, kept: Kept | None) -> str:
    if tick.seen is None or tick.progress is None:
        return f"the cluster gives no answer ({tick.away}); the move goes on, and so does this"
    counts, progress, slowest = _counts(tick), tick.progress, tick.progress.slowest
    parts = [f"{counts['done'] + counts['gone']} of {len(tick.seen.statuses)} partitions"]
    if counts["waiting"]:
        parts.append(f"{counts['waiting']} yet to begin")
    if tick.seen.moving_logs:
        parts.append(f"{len(tick.seen.moving_logs)} logs change their directory")
    if progress.total:
        parts.append(f"{show_size(progress.copied)} of {show_size(progress.total)}")
    if progress.rate is not None and progress.left:
        parts.append(show_rough_rate(progress.rate))
    parts.append(f"{lag} messages behind" if lag is not None else f"{show_size(progress.left)} behind")
    if slowest is not None:
        if isinstance(tick.pace, Allowance):
            throttle = tick.pace.rates.get((slowest.broker, FOLLOWER_RATE))
        of = f" of {show_rate(throttle)}" if throttle is not None else ""
        left = "stands still" if slowest.seconds_left is None else f"{show_duration(slowest.seconds_left)} left"
        parts.append(f"{left}: broker {slowest.broker} receives {show_rough_rate(slowest.rate)}{of}")
    if isinstance(tick.pace, Pace) and kept is not None and kept.moment is not None:
        parts.append(f"to end by {show_deadline(kept.moment)}: {_prospect(tick.pace)}")
    if isinstance(tick.pace, Allowance):
        parts.append(f"allowed {_allowed(tick.pace)}")
    for stuck in tick.stuck:
        named = ", ".join(map(str, stuck.partitions[:3])) + (", ..." if len(stuck.partitions) > 3 else "")
        parts.append(f"broker {stuck.broker} has got no nearer for a minute ({named}): {stuck.why}")
    return ", ".join(parts)


def _allowed(allowance: Allowance) -> str:
    rates = sorted(allowance.rates.values())
    shown = " to ".join(dict.fromkeys((show_rough_rate(rates[0]), show_rough_rate(rates[-1])))) if rates else "nothing"
    if allowance.carried:
        carried, broker = min((found.capacity, broker) for (broker, _), found in allowance.carried.items())
        shown += f" as the link of broker {broker} seems to carry {show_rough_rate(carried)}"
    if not allowance.too_low:
        return shown
    broker, setting = min(allowance.too_low)
    return f"{shown}: {setting} of broker {broker} is not above what producers write, so it never ends"


def _prospect(pace: Pace) -> str:
    rate = show_rough_rate(pace.rate)
    if pace.late is None:
        return f"never at {rate}"
    if pace.late:
        return f"{show_duration(pace.late)} late at {rate}"
    if pace.is_held_up:
        return f"perhaps late, as less arrives than the {rate} that are allowed now"
    return f"in time at {rate}"


def _counts(tick: Tick) -> dict[str, int]:
    states = [status.state for status in tick.seen.statuses.values()] if tick.seen is not None else []
    return {state: states.count(state) for state in ("done", "moving", "waiting", "elsewhere", "gone")}


def _as_json(tick: Tick, throttle: int | None, lag: int | None, kept: Kept | None) -> dict[str, Any]:
    if tick.seen is None or tick.progress is None:
        return {"away": tick.away}
    progress, slowest = tick.progress, tick.progress.slowest
    pacing: dict[str, Any] = {}
    if isinstance(tick.pace, Allowance):
        carried = {key: round(found.capacity) for key, found in tick.pace.carried.items()}
        pacing["rates"] = [
            {
                "broker": key[0],
                "setting": key[1],
                "rate": rate,
                "too_low": key in tick.pace.too_low,
                "carried": carried.get(key),
            }
            for key, rate in sorted(tick.pace.rates.items())
        ]
    if isinstance(tick.pace, Pace) and kept is not None and kept.moment is not None:
        pacing = {
            "finish_by": kept.moment.isoformat(),
            "seconds_late": tick.pace.late,
            "held_up": tick.pace.is_held_up,
        }
    return {
        **pacing,
        "partitions": _counts(tick),
        "bytes_copied": progress.copied,
        "bytes_to_copy": progress.total,
        "rate": progress.rate,
        "throttle": throttle,
        "sum_replica_lag": lag,
        "bytes_behind": progress.left,
        "seconds_left": progress.seconds_left,
        "stuck": [
            {"broker": one.broker, "partitions": [str(partition) for partition in one.partitions], "why": one.why}
            for one in tick.stuck
        ],
        "slowest": None
        if slowest is None
        else {"broker": slowest.broker, "bytes_behind": slowest.left, "rate": slowest.rate},
    }
