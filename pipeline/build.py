"""The batch job from exported samples to tables, one UTC day at a time. It also runs under spark-submit:

    spark-submit pipeline/build.py --input s3a://bucket/samples --output s3a://bucket/tables \
        --from 2026-11-02 --to 2026-11-09
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from types import MappingProxyType
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.accuracy import throttle_accuracy
from pipeline.behind import behind_spans, replicas_behind
from pipeline.damaged import damaged_files
from pipeline.errors import SPARK_ERRORS, BuildError, first_line
from pipeline.lag import replica_lag
from pipeline.limits import limits
from pipeline.moves import moves
from pipeline.rates import broker_rates, partition_rates
from pipeline.read import (
    PARTIAL_SAMPLE,
    PARTITION_KINDS,
    by_kind,
    good_lines,
    input_files,
    missing_samples,
    of_day,
    parse,
    quarantine,
    read_lines,
    samples,
    without_duplicates,
    without_partial,
)
from pipeline.session import open_session
from pipeline.storage import Output
from pipeline.tables import BROKER_RATES, LIMITS, MOVES, PARTITION_RATES, REPLICA_LAG, THROTTLE_ACCURACY
from samples.schema import kind_of

QUARANTINE: Final = "quarantine"
TABLES: Final = (
    *(table.name for table in (PARTITION_RATES, BROKER_RATES, THROTTLE_ACCURACY, MOVES, REPLICA_LAG, LIMITS)),
    QUARANTINE,
)

_SETTINGS: Final = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        # a value that cannot be converted becomes null, and its line is then a bad one
        "spark.sql.ansi.enabled": "false",
        # Rows sorted by their groups are grouped in one pass. Spark's default is two hash tables of all groups in
        # memory, one before a shuffle and one after it, even where there is no shuffle.
        "spark.sql.execution.replaceHashWithSortAgg": "true",
    }
)


@dataclass(slots=True)
class DayReport:
    """What became of one day: `rows` by table, `quarantined` lines by reason.

    `missing` counts samples that are missing between others. `damaged` names files that were read only up to their
    damage.
    """

    day: date
    samples: int = 0
    missing: int = 0
    has_duplicates: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """Return the day as one line for people."""
        if not (self.samples or self.quarantined or self.damaged):
            return f"{self.day}: no samples; the tables of this day are empty"
        parts = [f"{self.samples} samples", *(f"{rows} rows of {table}" for table, rows in self.rows.items())]
        if self.missing:
            parts.append(f"{self.missing} samples missing")
        if self.has_duplicates:
            parts.append("duplicates left out")
        parts += [f"{lines} lines quarantined ({reason})" for reason, lines in sorted(self.quarantined.items())]
        parts += [f"{path} is damaged and was read in part" for path in self.damaged]
        return f"{self.day}: {', '.join(parts)}"


def parse_day(text: str) -> date:
    """Return the day that a text like 2026-11-02 names; BuildError for any other text."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise BuildError(f"{text!r} is not a day: give it in UTC, as 2026-11-02") from error


def build(spark: SparkSession, source: str, output: str, first: date, until: date) -> Iterator[DayReport]:
    """Replace the tables of each UTC day from `first` up to but without `until`, and yield a report for each day.

    A day's tables depend only on its samples, so every run that includes the day writes the same. Raises BuildError.
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
    try:
        return _write_day(spark, source, output, day)
    except SPARK_ERRORS:
        damaged = damaged_files(spark, input_files(spark, source), day)
        if not damaged:
            raise
        return _write_day(spark, source, output, day, damaged)


def _write_day(spark: SparkSession, source: str, output: Output, day: date, damaged: Collection[str] = ()) -> DayReport:
    with contextlib.ExitStack() as stack:

        def kept(frame: DataFrame) -> DataFrame:
            stack.callback(frame.persist(StorageLevel.MEMORY_AND_DISK_DESER).unpersist, blocking=True)
            return frame

        # Kept before any condition: Spark would move a condition in front of the parsing, and parse twice. Kept in
        # files, of which each query reads only its columns; in memory there is no room for all lines.
        parsed = of_day(stack.enter_context(output.kept("lines", parse(read_lines(spark, source, day, damaged)))), day)
        found = kept(samples(good_lines(parsed)))
        bad = kept(quarantine(parsed, found, damaged))
        report = _report(day, found, bad)
        report.damaged = list(damaged)
        lines = good_lines(parsed)
        # Each of these takes a pass over all lines, so they are done only where needed.
        if report.quarantined.get(PARTIAL_SAMPLE):
            lines = without_partial(lines, found)
        if report.has_duplicates:
            lines = stack.enter_context(output.kept("lines-once", without_duplicates(lines)))
        # Most lines are of partitions. The others are kept apart from them, and so are those of replicas that were
        # behind.
        few = by_kind(kept(lines.where(~F.col("kind").isin([kind_of(kind) for kind in PARTITION_KINDS]))))
        lines_by_kind = replace(few, partitions=by_kind(lines).partitions)
        replicas = kept(replicas_behind(lines_by_kind))
        # once Spark knows how few these are, it sends them to all tasks and does not shuffle the lines
        replicas.count()
        spans = kept(behind_spans(lines_by_kind, replicas))
        tables = {
            PARTITION_RATES.name: partition_rates(lines_by_kind),
            BROKER_RATES.name: broker_rates(lines_by_kind),
            THROTTLE_ACCURACY.name: throttle_accuracy(lines_by_kind),
            MOVES.name: moves(spans),
            REPLICA_LAG.name: replica_lag(spans),
            LIMITS.name: limits(lines_by_kind),
        }
        for name, table in tables.items():
            report.rows[name] = output.stage(name, day, table)
        output.stage(QUARANTINE, day, bad)
        output.commit(TABLES, day)
    return report


def _report(day: date, found: DataFrame, bad: DataFrame) -> DayReport:
    """Return what is known of a day before its tables are made."""
    ((whole, has_duplicates),) = found.agg(
        F.count(F.when(F.col("whole"), 1)), F.coalesce(F.bool_or("twice"), F.lit(False))
    ).collect()
    ((missing,),) = missing_samples(found).collect()
    reasons = bad.where(F.col("lines") > 0).groupBy("reason").agg(F.sum("lines").alias("n")).collect()
    return DayReport(day, whole, missing, has_duplicates, quarantined={row["reason"]: row["n"] for row in reasons})


def stop(spark: SparkSession) -> None:
    """End the session; its process may be gone already."""
    with contextlib.suppress(*SPARK_ERRORS):
        spark.stop()


def main(words: Sequence[str] | None = None) -> int:
    """Build tables with the session that spark-submit provides. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="build.py", description="Build tables from exported samples.")
    parser.add_argument("--input", required=True, help="Hadoop path, or kafka://host:port/topic")
    parser.add_argument("--output", required=True, help="Hadoop path of the tables")
    parser.add_argument("--from", required=True, dest="first", help="first day, UTC")
    parser.add_argument("--to", required=True, dest="until", help="day after the last, UTC")
    asked = parser.parse_args(words)
    try:
        days = parse_day(asked.first), parse_day(asked.until)
        spark = open_session()
        try:
            for report in build(spark, asked.input, asked.output, *days):
                print(report.sentence(), flush=True)
        finally:
            stop(spark)
    except BuildError as error:
        print(f"build.py: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
