# SPDX-License-Identifier: Apache-2.0
"""A day's tables from its lines, by either engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from weir.pipeline.day_report import DayReport
from weir.pipeline.days import DAY
from weir.pipeline.engine import DataFrame, F
from weir.pipeline.lines import good_lines
from weir.pipeline.runs import Runs
from weir.pipeline.tables import BROKER_RATES, LIMITS, PARTITION_RATES
from weir.pipeline.whole import processes, quarantine, samples

BY_WINDOW: Final = frozenset({PARTITION_RATES.name, BROKER_RATES.name, LIMITS.name})
"""The tables in which each kind of window has a folder of its own."""


@dataclass(frozen=True, slots=True)
class Day:
    """What is known of a day before any table is made: its `found` samples and `bad` lines as `weir.pipeline.whole` has
    them.
    """

    lines: DataFrame
    found: DataFrame
    bad: DataFrame
    report: DayReport


def build_day(
    output: Runs,
    day: date,
    parsed: DataFrame,
    damaged: Sequence[str],
    allow_empty: bool,
    keep: Callable[[DataFrame], DataFrame],
    write: Callable[[Day], dict[str, int]],
) -> DayReport:
    """Replace the tables of a day, and return what became of it.

    `parsed` are its lines, of which those of `damaged` files were read in part. `keep` has a frame computed once.
    `write` writes the tables, and returns how many rows each has.
    """
    with output.day(day):
        found = keep(samples(good_lines(parsed)))
        bad = keep(quarantine(parsed, found, damaged))
        report, facts = _report(day, found, bad)
        report.damaged = list(damaged)
        before = output.current(day)
        report.silent = sorted(
            {*output.current(day - DAY).get("brokers", ()), *before.get("brokers", ())} - {*report.brokers}
        )
        report.lost_hours = [hour for hour in before.get("hours", ()) if hour not in facts["hours"]]
        report.is_refused = bool(report.lost_hours) and not allow_empty
        if not report.is_refused:
            report.rows = write(Day(good_lines(parsed), found, bad, report))
            output.publish(day, facts)
    return report


def _report(day: date, found: DataFrame, bad: DataFrame) -> tuple[DayReport, dict[str, Any]]:
    """Return what is known before any table is made, and what the pointer is to tell of it."""
    of = processes(found).collect()
    reasons = bad.where(F.col("lines") > 0).groupBy("reason").agg(F.sum("lines").alias("n")).collect()
    until = max((row["until_micros"] for row in of if row["samples"]), default=None)
    report = DayReport(
        day,
        sum(row["samples"] for row in of),
        sum(row["missing"] for row in of),
        any(row["twice"] for row in of),
        sum(row["partitions"] for row in of),
        quarantined={row["reason"]: row["n"] for row in reasons},
        brokers=sorted({row["broker_id"] for row in of if row["samples"]}),
    )
    return report, {
        "samples": report.samples,
        "missing": report.missing,
        "until": None if until is None else f"{datetime.fromtimestamp(until / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "brokers": report.brokers,
        "hours": sorted({hour for row in of for hour in row["hours"]}),
        "clusters": sorted({cluster for row in of for cluster in row["clusters"]}),
    }
