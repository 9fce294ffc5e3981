"""The tables of an hour, those of a day, and the parts that an hour keeps so that a day's are made of its hours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.pipeline.accuracy import quotas_in_force, throttle_accuracy, throttle_minutes
from weir.pipeline.behind import behind_by_minute, behind_minutes, behind_spans, moves, rates_in_force, replica_lag
from weir.pipeline.behind_hours import replicas_of_hours, rows_in_sync, rows_of_day, rows_of_wanted
from weir.pipeline.coverage import absences, coverage_by_minute, links_of_leaders, links_to_join
from weir.pipeline.damaged import DAMAGED_FILE
from weir.pipeline.hours import HOUR_SECONDS, Hours, hour_of
from weir.pipeline.limits import limits
from weir.pipeline.rates import broker_rates, broker_samples, partition_rates
from weir.pipeline.read import Lines
from weir.pipeline.storage import Held, Output
from weir.pipeline.tables import (
    ABSENCES,
    ALL_TABLES,
    BEHIND_MINUTES,
    BROKER_RATES,
    BROKER_SAMPLES,
    COVERAGE,
    LIMITS,
    MOVES,
    PARTITION_RATES,
    REPLICA_LAG,
    THROTTLE_ACCURACY,
    THROTTLE_MINUTES,
)
from weir.pipeline.whole import QUARANTINE_COLUMNS

QUARANTINE: Final = "quarantine"
TABLES: Final = (
    *(table.name for table in ALL_TABLES),
    QUARANTINE,
)

Keep = Callable[[DataFrame], DataFrame]
"""Has Spark compute a frame once."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the tables of a whole day are made of. Each frame has the column `ended`, but `quarantine` has `hour`."""

    samples: DataFrame
    links: DataFrame
    quotas: DataFrame
    replicas: DataFrame
    in_sync: DataFrame
    quarantine: DataFrame

    def all(self) -> dict[str, DataFrame]:
        """Return each by the name of its folder."""
        return {f"parts/{field.name}": getattr(self, field.name) for field in fields(self)}


def hour_tables(lines: Lines, places: int) -> dict[str, DataFrame]:
    """Return the tables whose rows are of one hour each."""
    return {
        PARTITION_RATES.name: partition_rates(lines, places=places),
        BROKER_RATES.name: broker_rates(lines),
        BROKER_SAMPLES.name: broker_samples(lines),
        LIMITS.name: limits(lines),
    }


def parts_of_hours(lines: Lines, found: DataFrame, bad: DataFrame, keep: Keep) -> Parts:
    """Return what is kept of some hours; `found` is the result of `samples`, `bad` that of `quarantine`."""
    replicas = keep(replicas_of_hours(lines))
    # once Spark knows how few are wanted, it sends these to all tasks and does not shuffle the lines
    wanted = keep(replicas.where("is_wanted"))
    wanted.count()
    links = links_to_join(links_of_leaders(lines))
    return Parts(
        samples=found,
        links=links,
        quotas=quotas_in_force(lines),
        replicas=rows_of_wanted(lines, wanted),
        in_sync=rows_in_sync(replicas),
        quarantine=bad,
    )


def joined(output: Output, day: date, held: Held, schemas: Mapping[str, StructType], keep: Keep) -> Parts:
    """Return the parts of a day from those of its hours; `schemas` are those of the frames of `Parts.all`."""
    first = Hours.of_day(day).seconds()[0]

    def read(name: str, *runs: str) -> DataFrame:
        return output.read(f"parts/{name}", day, runs, schemas[f"parts/{name}"])

    def is_held(run: str, hour: Column) -> Column:
        return hour.isin([first + number * HOUR_SECONDS for number in held.hours[run]])

    whole = [run for run in held.hours if held.is_whole(run)]

    def rows(name: str) -> DataFrame:
        cut = (read(name, run).where(is_held(run, hour_of(F.col("ended")))) for run in held.hours if run not in whole)
        return reduce(DataFrame.union, [*([read(name, *whole)] if whole else []), *cut])

    # Lines in folders that name no hour have been read by every run, and damaged files by those of the hours beside.
    is_file = F.col("reason") == DAMAGED_FILE
    of_none = F.col("hour").isNull()
    bad = reduce(
        DataFrame.union,
        (
            read("quarantine", run).where(
                is_held(run, F.col("hour")) | (of_none & (is_file | F.lit(run == held.newest)))
            )
            for run in held.hours
        ),
    )
    quarantine = bad.where(~is_file).union(bad.where(is_file).dropDuplicates(["file"]))
    return Parts(
        samples=keep(rows("samples")),
        links=rows("links"),
        quotas=keep(rows("quotas")),
        replicas=keep(rows("replicas")),
        in_sync=rows("in_sync"),
        quarantine=quarantine,
    )


def day_tables(parts: Parts, keep: Keep) -> dict[str, DataFrame]:
    """Return the tables that are made of a whole day."""
    rows = rows_of_day(parts.replicas, parts.in_sync)
    by_minute = keep(behind_by_minute(rows, parts.samples.where("whole"), rates_in_force(parts.quotas)))
    spans = keep(behind_spans(by_minute))
    return {
        THROTTLE_ACCURACY.name: throttle_accuracy(parts.quotas),
        THROTTLE_MINUTES.name: throttle_minutes(parts.quotas),
        MOVES.name: moves(spans),
        REPLICA_LAG.name: replica_lag(spans),
        BEHIND_MINUTES.name: behind_minutes(by_minute, spans),
        COVERAGE.name: coverage_by_minute(parts.samples),
        ABSENCES.name: absences(parts.links),
        QUARANTINE: parts.quarantine.select(*QUARANTINE_COLUMNS),
    }
