# SPDX-License-Identifier: Apache-2.0
"""The tables of a day, made of its lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weir.pipeline.accuracy import minutes_in_force, quotas_in_force, throttle_accuracy, throttle_minutes
from weir.pipeline.behind import behind_by_minute, behind_minutes, behind_spans, moves, rates_in_force, replica_lag
from weir.pipeline.behind_rows import rows_that_count
from weir.pipeline.coverage import absences, coverage_by_minute, links_of_leaders
from weir.pipeline.engine import DataFrame
from weir.pipeline.limits import limits
from weir.pipeline.lines import Lines
from weir.pipeline.rates import broker_rates, broker_samples, client_rates, partition_rates
from weir.pipeline.tables import (
    ABSENCES,
    ALL_TABLES,
    BEHIND_MINUTES,
    BROKER_RATES,
    BROKER_SAMPLES,
    CLIENT_RATES,
    COVERAGE,
    LIMITS,
    MOVES,
    PARTITION_RATES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    THROTTLE_MINUTES,
)

QUARANTINE: Final = "quarantine"
TABLES: Final = (
    *(table.name for table in ALL_TABLES),
    QUARANTINE,
)


def day_tables(
    lines: Lines, found: DataFrame, bad: DataFrame, keep: Callable[[DataFrame], DataFrame], places: int
) -> dict[str, DataFrame]:
    """Return all tables of a day.

    `found` is the result of `samples`, `bad` that of `quarantine`. `keep` has Spark compute a frame once. The rates of
    partitions are made in so many `places` (tasks).
    """
    quotas = keep(quotas_in_force(lines))
    in_force = keep(minutes_in_force(quotas))
    rows = rows_that_count(lines, keep)
    by_minute = keep(behind_by_minute(rows, found.where("whole"), rates_in_force(quotas)))
    spans = keep(behind_spans(by_minute))
    return {
        PARTITION_RATES.name: partition_rates(lines, places=places),
        BROKER_RATES.name: broker_rates(lines),
        BROKER_SAMPLES.name: broker_samples(lines),
        LIMITS.name: limits(lines),
        CLIENT_RATES.name: client_rates(lines),
        THROTTLE_ACCURACY.name: throttle_accuracy(in_force),
        THROTTLE_MINUTES.name: throttle_minutes(in_force),
        MOVES.name: moves(spans),
        REPLICA_LAG.name: replica_lag(spans),
        BEHIND_MINUTES.name: behind_minutes(by_minute, spans),
        COVERAGE.name: coverage_by_minute(found),
        ABSENCES.name: absences(links_of_leaders(lines)),
        QUARANTINE: bad,
    }
