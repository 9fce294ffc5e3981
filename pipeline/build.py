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
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.accuracy import throttle_accuracy, throttle_minutes
from pipeline.behind import behind_by_minute, behind_minutes, behind_spans, replicas_behind
from pipeline.broker_samples import broker_samples
from pipeline.coverage import absences, coverage_by_minute
from pipeline.damaged import damaged_files, may_be_damage
from pipeline.errors import SPARK_ERRORS, BuildError, first_line
from pipeline.lag import replica_lag
from pipeline.limits import limits
from pipeline.moves import moves
from pipeline.rates import broker_rates, partition_rates
from pipeline.read import (
    PARTITION_KINDS,
    Days,
    Lines,
    by_kind,
    good_lines,
    input_files,
    is_by_day,
    of_day,
    parse,
    read_lines,
)
from pipeline.session import open_session
from pipeline.storage import Output
from pipeline.tables import (
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
from pipeline.whole import PARTIAL_SAMPLE, missing_samples, quarantine, samples, without_duplicates, without_partial
from samples.schema import kind_of

QUARANTINE: Final = "quarantine"
TABLES: Final = (
    *(table.name for table in ALL_TABLES),
    QUARANTINE,
)

BY_WINDOW: Final = frozenset({PARTITION_RATES.name, BROKER_RATES.name, LIMITS.name})
"""The tables in which each kind of window has a folder of its own."""

ROWS_OF_A_PLACE: Final = 1_000_000
"""How many partition samples a task of a shuffle has, so that what it takes of memory does not grow with the day."""

_PLACES: Final = "spark.sql.shuffle.partitions"

_SETTINGS: Final = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        # a value that cannot be converted becomes null, and its line is then a bad one
        "spark.sql.ansi.enabled": "false",
        # Rows sorted by their groups are grouped in one pass. Spark's default is two hash tables of all groups in
        # memory, one before a shuffle and one after it, even where there is no shuffle.
        "spark.sql.execution.replaceHashWithSortAgg": "true",
        # Java never compiles a method of more than 8,000 bytes of code. Spark would make one of all that is done to a
        # line, and Java would interpret it. Above this size Spark makes one of each step, which takes half as long.
        "spark.sql.codegen.hugeMethodLimit": "8000",
    }
)


@dataclass(slots=True)
class DayReport:
    """What became of one day: `rows` by table, `quarantined` lines by reason.

    `missing` counts samples that are missing between others, `partitions` how many partitions all samples tell of.
    `damaged` names files that were read only up to their damage. The day `is_refused` where its tables would have been
    replaced by empty ones: they stay.
    """

    day: date
    samples: int = 0
    missing: int = 0
    has_duplicates: bool = False
    partitions: int = 0
    is_refused: bool = False
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """Return the day as one line for people."""
        if not (self.samples or self.quarantined or self.damaged or self.is_refused):
            return f"{self.day}: no samples; the tables of this day are empty"
        kept = "its tables stay as they were (--allow-empty replaces them)"
        parts = [f"no whole sample; {kept}"] if self.is_refused else [f"{self.samples} samples"]
        parts += [f"{rows} rows of {table}" for table, rows in self.rows.items()]
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


def build(
    spark: SparkSession, source: str, output: str, first: date, until: date, *, allow_empty: bool = False
) -> Iterator[DayReport]:
    """Replace the tables of each UTC day from `first` up to but without `until`, and yield a report for each day.

    A day's tables depend only on its samples, so every run that includes the day writes the same. Tables of samples are
    not replaced by empty ones, of a day whose samples have expired say, unless with `allow_empty`. Raises BuildError.
    """
    if until <= first:
        raise BuildError(f"there is no day from {first} to before {until}")
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    least_places = int(spark.conf.get(_PLACES) or 1)
    try:
        days = Days(first, until)
        job = _Job(spark, source, Output(spark, output), allow_empty, least_places)
        with job.output.writing():
            # What lies in folders of days is read day by day. Of all else each day would read the whole.
            for together in map(Days.of, days.all()) if is_by_day(spark, source, days) else [days]:
                yield from _build_days(job, together)
    except SPARK_ERRORS as error:
        raise BuildError(f"the tables cannot be built: {first_line(error)}") from error
    finally:
        with contextlib.suppress(*SPARK_ERRORS):
            spark.conf.set(_PLACES, str(least_places))


@dataclass(frozen=True, slots=True)
class _Job:
    """What is the same for all days. `least_places` is how many tasks a shuffle has at least."""

    spark: SparkSession
    source: str
    output: Output
    allow_empty: bool
    least_places: int


def _build_days(job: _Job, days: Days) -> Iterator[DayReport]:
    with contextlib.ExitStack() as stack:
        damaged: list[str] = []
        try:
            parsed = stack.enter_context(_parsed(job, days))
        except SPARK_ERRORS as error:
            if not may_be_damage(error):
                raise
            damaged = damaged_files(job.spark, sorted(input_files(job.spark, job.source, days)))
            if not damaged:
                raise
            parsed = stack.enter_context(_parsed(job, days, damaged))
        for day in days.all():
            yield _write_day(job, day, of_day(parsed, day), damaged)


def _parsed(job: _Job, days: Days, damaged: Collection[str] = ()) -> contextlib.AbstractContextManager[DataFrame]:
    """Keep the parsed lines.

    Kept before any condition: Spark would move a condition in front of the parsing, and parse twice. Kept in files, of
    which each query reads only its columns; in memory there is no room for all lines.
    """
    return job.output.kept("lines", parse(read_lines(job.spark, job.source, days, damaged)))


def _write_day(job: _Job, day: date, parsed: DataFrame, damaged: Collection[str]) -> DayReport:
    output = job.output
    with contextlib.ExitStack() as stack:
        stack.enter_context(output.day(day))

        def kept(frame: DataFrame) -> DataFrame:
            stack.callback(frame.persist(StorageLevel.MEMORY_AND_DISK_DESER).unpersist, blocking=True)
            return frame

        found = kept(samples(good_lines(parsed)))
        bad = kept(quarantine(parsed, found, damaged))
        report = _report(day, found, bad)
        report.damaged = list(damaged)
        if not (report.samples or job.allow_empty) and output.current(day).get("samples"):
            report.is_refused = True
            return report
        places = -(-report.partitions // ROWS_OF_A_PLACE)
        job.spark.conf.set(_PLACES, str(max(job.least_places, places)))
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
        by_minute = kept(behind_by_minute(lines_by_kind, replicas))
        spans = kept(behind_spans(by_minute))
        tables = {
            PARTITION_RATES.name: partition_rates(
                lines_by_kind, places=max(job.spark.sparkContext.defaultParallelism, places)
            ),
            BROKER_RATES.name: broker_rates(lines_by_kind),
            THROTTLE_ACCURACY.name: throttle_accuracy(lines_by_kind),
            THROTTLE_MINUTES.name: throttle_minutes(lines_by_kind),
            MOVES.name: moves(spans),
            REPLICA_LAG.name: replica_lag(spans),
            BEHIND_MINUTES.name: behind_minutes(by_minute, spans),
            BROKER_SAMPLES.name: broker_samples(lines_by_kind),
            LIMITS.name: limits(lines_by_kind),
            COVERAGE.name: coverage_by_minute(found),
            ABSENCES.name: absences(lines_by_kind),
        }
        for name, table in tables.items():
            report.rows[name] = output.write(name, day, table, apart="window" if name in BY_WINDOW else None)
        output.write(QUARANTINE, day, bad)
        output.publish(day, {"samples": report.samples, "missing": report.missing, **_newest(lines_by_kind)})
    return report


def _report(day: date, found: DataFrame, bad: DataFrame) -> DayReport:
    """Return what is known of a day before its tables are made."""
    ((whole, has_duplicates, partitions),) = found.agg(
        F.count(F.when(F.col("whole"), 1)),
        F.coalesce(F.bool_or("twice"), F.lit(False)),
        F.coalesce(F.sum("partitions"), F.lit(0)),
    ).collect()
    ((missing,),) = missing_samples(found).collect()
    reasons = bad.where(F.col("lines") > 0).groupBy("reason").agg(F.sum("lines").alias("n")).collect()
    return DayReport(
        day, whole, missing, has_duplicates, partitions, quarantined={row["reason"]: row["n"] for row in reasons}
    )


def _newest(lines: Lines) -> dict[str, object]:
    """Return when the last sample ended, and of which clusters there are samples."""
    ((until, clusters),) = lines.ends.agg(F.max("ended_micros"), F.collect_set("cluster_id")).collect()
    ended = None if until is None else f"{datetime.fromtimestamp(until / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {"until": ended, "clusters": sorted(clusters)}


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
    parser.add_argument("--allow-empty", action="store_true", help="replace tables also where no sample is left")
    asked = parser.parse_args(words)
    try:
        days = parse_day(asked.first), parse_day(asked.until)
        is_refused = False
        spark = open_session()
        try:
            for report in build(spark, asked.input, asked.output, *days, allow_empty=asked.allow_empty):
                print(report.sentence(), flush=True)
                is_refused |= report.is_refused
        finally:
            stop(spark)
    except BuildError as error:
        print(f"build.py: {error}.", file=sys.stderr)
        return 1
    return int(is_refused)


if __name__ == "__main__":
    sys.exit(main())
