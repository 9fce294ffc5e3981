"""Follows a move on the terminal: one line that is kept up to date, or a line now and then where stdout is none."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.cli.move_inputs import read_rollback
from weir.cli.move_sidecars import lag as lag_of
from weir.cli.move_sidecars import sentences
from weir.cli.quantities import show_duration, show_moment
from weir.planning.finish_by import Pace
from weir.planning.headroom import Allowance
from weir.planning.units import show_rate, show_size
from weir.quota.setting_names import FOLLOWER_RATE

if TYPE_CHECKING:
    from datetime import datetime

    from weir.control.move_admin import MoveAdmin
    from weir.control.move_following import Tick
    from weir.control.move_pacing import Pacer
    from weir.planning.reassignment_json import ReassignmentPlan
    from weir.planning.stuck import Stuck

_LINE_SECONDS = 10.0  # between lines where nobody watches: in a log file


def follow(
    connect: Callable[[], MoveAdmin],
    plan: ReassignmentPlan,
    plan_file: Path,
    throttle: int | None,
    at_once: int | None,
    admin: Sequence[str] | None,
    json_wanted: bool,
    pacer: Pacer | None = None,
    finish_by: datetime | None = None,
) -> None:
    """Show progress until nothing of the plan moves. With `json_wanted`, each look is a line of JSON.

    `pacer` keeps the throttle, where there is one for the deadline `finish_by`.
    """
    from weir.control.move_following import Follower
    from weir.control.move_journal import JournalFile
    from weir.control.move_stuck import StuckWatch

    terminal = sys.stdout.isatty()
    shown_at = -_LINE_SECONDS
    shown = ""
    watch = StuckWatch(JournalFile(plan_file), sentences(admin))
    follower = Follower(connect, plan, read_rollback(plan_file), time.monotonic, time.sleep, at_once, pacer, watch)
    for tick in follower.ticks():
        lag = lag_of(admin)
        throttle = tick.pace.rate if isinstance(tick.pace, Pace) else throttle
        if json_wanted:
            print(json.dumps(_as_json(tick, throttle, lag, finish_by)), flush=True)
            continue
        line = _line(tick, throttle, lag, finish_by)
        if terminal:
            print(f"\r\x1b[K{line}", end="", flush=True)
        elif line != shown and time.monotonic() - shown_at >= _LINE_SECONDS:
            print(line, flush=True)
            shown_at = time.monotonic()
        shown = line
    if terminal and not json_wanted:
        print()


def _line(tick: Tick, throttle: int | None, lag: int | None, finish_by: datetime | None) -> str:
    if tick.seen is None or tick.progress is None:
        return f"the cluster gives no answer ({tick.away}); the move goes on, and so does this"
    counts = _counts(tick)
    done = counts["done"] + counts["gone"]
    progress = tick.progress
    parts = [f"{done} of {len(tick.seen.statuses)} partitions"]
    if counts["waiting"]:
        parts.append(f"{counts['waiting']} yet to begin")
    if tick.seen.moving_logs:
        parts.append(f"{len(tick.seen.moving_logs)} logs change their directory")
    if progress.total:
        parts.append(f"{show_size(progress.copied)} of {show_size(progress.total)}")
    if progress.rate is not None and progress.left:
        parts.append(show_rate(_rounded(progress.rate)))
    behind = f"{lag} messages behind" if lag is not None else f"{show_size(progress.left)} behind"
    parts.append(behind)
    if progress.slowest is not None:
        slowest = progress.slowest
        throttle = _throttle_of(slowest.broker, tick, throttle)
        of = f" of {show_rate(throttle)}" if throttle is not None else ""
        left = "stands still" if slowest.seconds_left is None else f"{show_duration(slowest.seconds_left)} left"
        parts.append(f"{left}: broker {slowest.broker} receives {show_rate(_rounded(slowest.rate))}{of}")
    if finish_by is not None and isinstance(tick.pace, Pace):
        parts.append(f"to end by {show_moment(finish_by)}: {_prospect(tick.pace)}")
    if isinstance(tick.pace, Allowance):
        parts.append(_allowed(tick.pace))
    parts += [_stuck(one) for one in tick.stuck]
    return ", ".join(parts)


def _throttle_of(broker: int, tick: Tick, throttle: int | None) -> int | None:
    return tick.pace.rates.get((broker, FOLLOWER_RATE)) if isinstance(tick.pace, Allowance) else throttle


def _allowed(allowance: Allowance) -> str:
    rates = sorted(_rounded(rate) for rate in allowance.rates.values())
    shown = " to ".join(show_rate(rate) for rate in dict.fromkeys((rates[0], rates[-1]))) if rates else "nothing"
    full = [(found.capacity, broker) for (broker, _), found in allowance.carried.items()]
    if full:
        carried, broker = min(full)
        shown += f" as the link of broker {broker} seems to carry {show_rate(_rounded(carried))}"
    if not allowance.too_low:
        return f"allowed {shown}"
    broker, setting = min(allowance.too_low)
    return f"allowed {shown}: {setting} of broker {broker} is not above what producers write, so it never ends"


def _stuck(stuck: Stuck) -> str:
    named = ", ".join(map(str, stuck.partitions[:3])) + (", ..." if len(stuck.partitions) > 3 else "")
    return f"broker {stuck.broker} has got no nearer for a minute ({named}): {stuck.why}"


def _prospect(pace: Pace) -> str:
    rate = show_rate(_rounded(pace.rate))
    if pace.late is None:
        return f"never at {rate}"
    if pace.late:
        return f"{show_duration(pace.late)} late at {rate}"
    if pace.is_held_up:
        return f"perhaps late, as less arrives than the {rate} that are allowed now"
    return f"in time at {rate}"


def _counts(tick: Tick) -> Mapping[str, int]:
    states = [status.state for status in tick.seen.statuses.values()] if tick.seen is not None else []
    return {state: states.count(state) for state in ("done", "moving", "waiting", "elsewhere", "gone")}


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _as_json(tick: Tick, throttle: int | None, lag: int | None, finish_by: datetime | None) -> dict[str, Any]:
    if tick.seen is None or tick.progress is None:
        return {"away": tick.away}
    progress, slowest = tick.progress, tick.progress.slowest
    deadline: dict[str, Any] = {}
    if isinstance(tick.pace, Allowance):
        deadline["rates"] = [
            {
                "broker": broker,
                "setting": setting,
                "rate": rate,
                "too_low": (broker, setting) in tick.pace.too_low,
                "carried": round(found.capacity) if (found := tick.pace.carried.get((broker, setting))) else None,
            }
            for (broker, setting), rate in sorted(tick.pace.rates.items())
        ]
    if finish_by is not None and isinstance(tick.pace, Pace):
        deadline = {
            "finish_by": finish_by.isoformat(),
            "seconds_late": tick.pace.late,
            "held_up": tick.pace.is_held_up,
        }
    return {
        **deadline,
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
