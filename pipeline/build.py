"""The batch job: exported samples in, tables out, a UTC day at a time. Also for spark-submit.

    spark-submit pipeline/build.py --input s3a://bucket/samples --output s3a://bucket/tables \
        --from 2026-11-02 --to 2026-11-09
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from types import MappingProxyType
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.accuracy import throttle_accuracy
from pipeline.errors import SPARK_ERRORS, BuildError, first_line
from pipeline.lag import replica_lag
from pipeline.moves import moves
from pipeline.rates import broker_rates, partition_rates
from pipeline.read import (
    good_lines,
    missing_samples,
    of_day,
    parse,
    quarantine,
    read_lines,
    samples,
    without_duplicates,
    without_partial,
)
from pipeline.storage import Output
from pipeline.tables import BROKER_RATES, MOVES, PARTITION_RATES, REPLICA_LAG, THROTTLE_ACCURACY

TABLES: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = MappingProxyType(
    {
        PARTITION_RATES.name: partition_rates,
        BROKER_RATES.name: broker_rates,
        THROTTLE_ACCURACY.name: throttle_accuracy,
        MOVES.name: moves,
        REPLICA_LAG.name: replica_lag,
    }
)

QUARANTINE: Final = "quarantine"

_SETTINGS: Final = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",  # a bad value is null, and its line is bad
        # Rates are collected by partition and hour: with Spark's 128 groups it would sort everything instead.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
    }
)


@dataclass(slots=True)
class DayReport:
    """What came of one day. `rows` by table, `quarantined` lines by reason; `missing` counts samples between others."""

    day: date
    samples: int = 0
    missing: int = 0
    has_duplicates: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """The day in a line for people."""
        if not self.samples and not self.quarantined:
            return f"{self.day}: no samples; the tables of this day are empty"
        parts = [f"{self.samples} samples", *(f"{rows} rows of {table}" for table, rows in self.rows.items())]
        if self.missing:
            parts.append(f"{self.missing} samples missing")
        if self.has_duplicates:
            parts.append("duplicates left out")
        parts += [f"{lines} lines quarantined ({reason})" for reason, lines in sorted(self.quarantined.items())]
        return f"{self.day}: {', '.join(parts)}"


def parse_day(text: str) -> date:
    """Return the day that `text` names, as 2026-11-02; BuildError for anything else."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise BuildError(f"{text!r} is not a day: give it in UTC, as 2026-11-02") from error


def build(spark: SparkSession, source: str, output: str, first: date, until: date) -> Iterator[DayReport]:
    """Replace the tables of each UTC day from `first` to before `until`, and yield what came of it.

    A day's tables depend on its samples alone: any run that includes it writes the same. BuildError says what is wrong.
    """
    if until <= first:
        raise BuildError(f"there is no day from {first} to before {until}")
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        written = Output(spark, output)
        with written.writing():
            for number in range((until - first).days):
                yield _build_day(spark, source, written, first + timedelta(days=number))
    except SPARK_ERRORS as error:
        raise BuildError(f"the tables cannot be built: {first_line(error)}") from error


def _build_day(spark: SparkSession, source: str, output: Output, day: date) -> DayReport:
    # Kept before anything is asked of it: Spark would move a condition before the parsing, and parse again for it.
    kept = parse(read_lines(spark, source, day)).persist(StorageLevel.MEMORY_AND_DISK)
    parsed = of_day(kept, day)
    found = samples(good_lines(parsed)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return _write_day(parsed, found, output, day)
    finally:
        found.unpersist()
        kept.unpersist()


def _write_day(parsed: DataFrame, found: DataFrame, output: Output, day: date) -> DayReport:
    has_partial, has_duplicates, whole = found.agg(
        F.coalesce(F.bool_or(~F.col("whole")), F.lit(False)),
        F.coalesce(F.bool_or("twice"), F.lit(False)),
        F.count(F.when(F.col("whole"), 1)),
    ).collect()[0]
    ((missing,),) = missing_samples(found).collect()
    report = DayReport(day, whole, missing, has_duplicates)
    lines = good_lines(parsed)
    # Either costs a pass over all lines, so only where there are any.
    if has_partial:
        lines = without_partial(lines, found)
    if has_duplicates:
        lines = without_duplicates(lines)
    bad = quarantine(parsed, found)
    report.quarantined = {
        row["reason"]: row["n"] for row in bad.groupBy("reason").agg(F.sum("lines").alias("n")).collect()
    }
    for name, table in TABLES.items():
        report.rows[name] = output.stage(name, day, table(lines))
    output.stage(QUARANTINE, day, bad)
    output.commit([*TABLES, QUARANTINE], day)
    return report


def main(words: Sequence[str] | None = None) -> int:
    """Build tables with the session that spark-submit gives, and return the exit status."""
    parser = argparse.ArgumentParser(prog="build.py", description="Build tables from exported samples.")
    parser.add_argument("--input", required=True, help="Hadoop path, or kafka://host:port/topic")
    parser.add_argument("--output", required=True, help="Hadoop path of the tables")
    parser.add_argument("--from", required=True, dest="first", help="first day, UTC")
    parser.add_argument("--to", required=True, dest="until", help="day behind the last, UTC")
    asked = parser.parse_args(words)
    spark = SparkSession.builder.appName("weir report build").getOrCreate()
    try:
        for report in build(spark, asked.input, asked.output, parse_day(asked.first), parse_day(asked.until)):
            print(report.sentence(), flush=True)
    except BuildError as error:
        print(f"build.py: {error}.", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
