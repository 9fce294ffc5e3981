"""The batch job from exported samples to tables, one UTC day at a time. It also runs under spark-submit:

    spark-submit --py-files kafka_weir-VERSION-py3-none-any.whl pipeline/build.py \
        --input s3a://bucket/samples --output s3a://bucket/tables --from 2026-11-02 --to 2026-11-09
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.pipeline.damaged import damaged_files, may_be_damage
from weir.pipeline.day_report import DayReport, nothing_came
from weir.pipeline.day_tables import QUARANTINE, Keep, day_tables, hour_tables, joined, parts_of_hours
from weir.pipeline.errors import SPARK_ERRORS, BuildError, first_line
from weir.pipeline.hours import Hours, hour_of, parse_hour
from weir.pipeline.read import (
    PARTITION_KINDS,
    Lines,
    by_kind,
    good_lines,
    input_files,
    input_size,
    is_by_day,
    of_hours,
    parse,
    read_lines,
)
from weir.pipeline.session import FILE_TASKS, SHUFFLE_TASKS, as_set, open_session
from weir.pipeline.storage import Output
from weir.pipeline.tables import BROKER_RATES, LIMITS, PARTITION_RATES
from weir.pipeline.whole import (
    PARTIAL_SAMPLE,
    missing_samples,
    quarantine,
    samples,
    without_duplicates,
    without_partial,
)
from weir.samples.schema import kind_of

BY_WINDOW: Final = frozenset({PARTITION_RATES.name, BROKER_RATES.name, LIMITS.name})
"""The tables in which each kind of window has a folder of its own."""

ROWS_OF_A_PLACE: Final = 1_000_000
"""How many partition samples a task of a shuffle has, so that what it takes of memory does not grow with the day."""

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
        # readers skip by time what has statistics, as INT96 has none
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        # Spark writes each plan down as text, which would be 660 KB for some tables
        "spark.sql.maxPlanStringLength": "4000",
    }
)

FEW_BYTES: Final = 8_000_000
"""Of so few bytes of input Java would compile each query for longer than it takes to answer it."""

_SETTINGS_FOR_FEW: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
)


def build(
    spark: SparkSession,
    source: str,
    output: str,
    first: date,
    until: date,
    *,
    allow_empty: bool = False,
    keep: timedelta | None = None,
) -> Iterator[DayReport]:
    """Replace the tables from `first` up to but without `until`, and yield a report for each UTC day.

    Both are days, or the starts of hours (`datetime`, UTC). What hours hold depends only on their samples, so every run
    that includes them writes the same. Tables of samples are not replaced by empty ones, of a day or hour whose samples
    have expired say, unless with `allow_empty`. Days that are older than `keep` at the end of the last one are deleted.
    Raises BuildError.
    """
    hours = Hours.between(first, until)
    if hours.until <= hours.first:
        raise BuildError(f"there is nothing from {first} to before {until}")
    try:
        least_places, cores = int(spark.conf.get(SHUFFLE_TASKS) or 1), spark.sparkContext.defaultParallelism
        with as_set(spark, {**_SETTINGS, SHUFFLE_TASKS: least_places}):
            job = _Job(spark, source, Output(spark, output), allow_empty, least_places)
            with job.output.writing():
                # What lies in folders of days is read day by day. Of all else each day would read the whole.
                for together in hours.by_day() if is_by_day(spark, source, hours) else [hours]:
                    size = input_size(spark, source, together)
                    few: dict[str, int | str] = (
                        {} if size is None or size > FEW_BYTES else {**_SETTINGS_FOR_FEW, SHUFFLE_TASKS: cores}
                    )
                    with as_set(spark, few):
                        yield from _build_together(job, together)
                if keep is not None:
                    job.output.delete_before((hours.until - keep).date())
    except SPARK_ERRORS as error:
        raise BuildError(f"the tables cannot be built: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Job:
    """What is the same for all days. `least_places` is how many tasks a shuffle has at least."""

    spark: SparkSession
    source: str
    output: Output
    allow_empty: bool
    least_places: int


def _build_together(job: _Job, hours: Hours) -> Iterator[DayReport]:
    with contextlib.ExitStack() as stack:
        damaged: list[str] = []
        try:
            parsed = stack.enter_context(_parsed(job, hours))
        except SPARK_ERRORS as error:
            if not may_be_damage(error):
                raise
            damaged = damaged_files(job.spark, sorted(input_files(job.spark, job.source, hours)))
            if not damaged:
                raise
            parsed = stack.enter_context(_parsed(job, hours, damaged))
        for of_day in hours.by_day():
            yield _write(job, of_day, of_hours(parsed, of_day), damaged)


def _parsed(job: _Job, hours: Hours, damaged: Collection[str] = ()) -> contextlib.AbstractContextManager[DataFrame]:
    """Keep the parsed lines.

    Kept before any condition: Spark would move a condition in front of the parsing, and parse twice. Kept in files, of
    which each query reads only its columns; in memory there is no room for all lines.
    """
    return job.output.kept("lines", parse(read_lines(job.spark, job.source, hours, damaged)))


def _write(job: _Job, hours: Hours, parsed: DataFrame, damaged: Collection[str]) -> DayReport:
    """Write a day, or some hours of one, from their lines."""
    output, day = job.output, hours.day
    with contextlib.ExitStack() as stack:
        stack.enter_context(output.day(day))

        def keep(frame: DataFrame) -> DataFrame:
            stack.callback(frame.persist(StorageLevel.MEMORY_AND_DISK_DESER).unpersist, blocking=True)
            return frame

        found = keep(samples(good_lines(parsed)))
        bad = keep(quarantine(parsed, found, damaged))
        report, by_hour = _report(hours, found, bad)
        report.damaged = list(damaged)
        report.silent = sorted({*_known(output, day)} - {*report.brokers})
        output.partition_samples = report.partitions
        _refuse(job, hours, report, by_hour)
        if not by_hour:
            return report
        places = _places(report.partitions)
        if places > 1:
            job.spark.conf.set(SHUFFLE_TASKS, max(job.least_places, places))
        lines = good_lines(parsed)
        # Each of these takes a pass over all lines, so they are done only where needed.
        if report.quarantined.get(PARTIAL_SAMPLE):
            lines = without_partial(lines, found)
        if report.has_duplicates:
            lines = stack.enter_context(output.kept("lines-once", without_duplicates(lines)))
        # Most lines are of partitions. The others are few, and kept apart: many tables are made of these alone, and
        # each task costs more than what it would read of them.
        cores = job.spark.sparkContext.defaultParallelism
        others = lines.where(~F.col("kind").isin([kind_of(kind) for kind in PARTITION_KINDS]))
        few = by_kind(keep(others.coalesce(cores)))
        lines_by_kind = replace(few, partitions=by_kind(lines).partitions)
        places = max(cores, places)
        report.rows = _write_all(output, day, hour_tables(lines_by_kind, places))
        parts = parts_of_hours(lines_by_kind, found, bad, keep).all()
        _write_each(output, day, parts)
        output.commit(day, by_hour, {"clusters": _clusters(lines_by_kind)})
        report.rows |= _publish(job.spark, output, day, {name: frame.schema for name, frame in parts.items()}, keep)
    return report


def _known(output: Output, day: date) -> Iterator[int]:
    """Yield the brokers that the day or the one before has samples of."""
    for of in (day - timedelta(days=1), day):
        yield from output.current(of).get("brokers", ())


def _refuse(job: _Job, hours: Hours, report: DayReport, by_hour: dict[int, int]) -> None:
    """Take those hours out of `by_hour` (samples of each hour) that have none, but had some before."""
    if hours.is_day:
        report.is_refused = (
            not job.allow_empty and not report.samples and bool(job.output.current(hours.day).get("samples"))
        )
        if report.is_refused:
            by_hour.clear()
        return
    held, current = job.output.held(hours.day), job.output.current(hours.day)
    if (current and "runs" not in current) or not held.can_be_joined():
        raise BuildError(f"{hours.day} was built by an earlier version: build the whole day once")
    before = held.samples()
    report.refused_hours = [
        hour for hour, count in by_hour.items() if not (count or job.allow_empty) and before.get(hour)
    ]
    report.is_refused = bool(report.refused_hours)
    for hour in report.refused_hours:
        del by_hour[hour]


def _write_all(output: Output, day: date, frames: Mapping[str, DataFrame], folder: str = "") -> dict[str, int]:
    """Write tables of a day. Returns how many rows each has; quarantined lines are counted elsewhere."""
    _write_each(output, day, frames, folder)
    return output.rows(day, {name: frame.schema for name, frame in frames.items() if name != QUARANTINE}, folder)


def _write_each(output: Output, day: date, frames: Mapping[str, DataFrame], folder: str = "") -> None:
    for name, frame in frames.items():
        output.write(name, day, frame, apart="window" if name in BY_WINDOW else None, folder=folder)


def _publish(
    spark: SparkSession, output: Output, day: date, schemas: Mapping[str, StructType], keep: Keep
) -> dict[str, int]:
    """Have readers see a day that has all hours which runs have committed. Returns the rows of the day's own tables.

    `schemas` are those of the frames of `Parts.all`.
    """
    rows: dict[str, int] = {}
    for number in itertools.count(1):
        held = output.held(day)
        if output.current(day).get("runs") == held.runs():
            return rows
        folder = output.run if number == 1 else f"{output.run}.{number}"
        parts = joined(output, day, held, schemas, keep)
        with _tasks_for(spark, (parts.samples, parts.quotas, parts.replicas)):
            rows = _write_all(output, day, day_tables(parts, keep), folder)
            facts = _facts(parts.samples)
        if output.held(day) == held:
            clusters = {cluster for run in held.hours for cluster in held.records[run]["clusters"]}
            output.publish(day, folder, held, {**facts, "clusters": sorted(clusters)})
    raise AssertionError


def _tasks_for(spark: SparkSession, frames: Iterable[DataFrame]) -> contextlib.AbstractContextManager[None]:
    """Have Spark run as many tasks as there are cores, or more where one of the `frames` has many rows.

    A task takes longer to begin than it needs for a few rows.
    """
    cores = spark.sparkContext.defaultParallelism
    with as_set(spark, {FILE_TASKS: cores}):
        places = _places(max(frame.count() for frame in frames))
    return as_set(spark, {FILE_TASKS: cores, SHUFFLE_TASKS: max(cores, places)})


def _report(hours: Hours, found: DataFrame, bad: DataFrame) -> tuple[DayReport, dict[int, int]]:
    """Return what is known before any table is made, and how many whole samples each hour has."""
    counts = found.groupBy(hour_of(F.col("ended")).alias("hour")).agg(
        F.count(F.when(F.col("whole"), 1)).alias("whole"),
        F.coalesce(F.bool_or("twice"), F.lit(False)).alias("twice"),
        F.coalesce(F.sum("partitions"), F.lit(0)).alias("partitions"),
        F.collect_set(F.when(F.col("whole"), F.col("broker_id"))).alias("brokers"),
    )
    rows = {row["hour"]: row for row in counts.collect()}
    ((missing,),) = missing_samples(found).collect()
    reasons = bad.where(F.col("lines") > 0).groupBy("reason").agg(F.sum("lines").alias("n")).collect()
    by_hour = {start.hour: 0 for start in hours.starts()}
    by_hour |= {datetime.fromtimestamp(hour, UTC).hour: row["whole"] for hour, row in rows.items()}
    report = DayReport(
        hours.day,
        sum(by_hour.values()),
        missing,
        any(row["twice"] for row in rows.values()),
        sum(row["partitions"] for row in rows.values()),
        quarantined={row["reason"]: row["n"] for row in reasons},
        brokers=sorted({broker_id for row in rows.values() for broker_id in row["brokers"]}),
        hours=[*by_hour],
    )
    return report, by_hour


def _places(rows: int) -> int:
    return -(-rows // ROWS_OF_A_PLACE)


def _facts(found: DataFrame) -> dict[str, object]:
    """Return how many samples a day has, of which brokers, how many are missing, and when the last one ended."""
    whole = found.where("whole")
    figures = F.count(F.lit(1)), F.max("ended_micros"), F.collect_set("broker_id")
    ((count, until, brokers),) = whole.agg(*figures).collect()
    ((missing,),) = missing_samples(found).collect()
    ended = None if until is None else f"{datetime.fromtimestamp(until / 1e6, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {"samples": count, "missing": missing, "until": ended, "brokers": sorted(brokers)}


def _clusters(lines: Lines) -> list[str]:
    ((clusters,),) = lines.ends.agg(F.collect_set("cluster_id")).collect()
    return sorted(clusters)


def stop(spark: SparkSession) -> None:
    """End the session; its process may be gone already."""
    with contextlib.suppress(*SPARK_ERRORS):
        spark.stop()


def main(words: Sequence[str] | None = None) -> int:
    """Build tables with the session that spark-submit provides. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="build.py", description="Build tables from exported samples.")
    parser.add_argument("--input", required=True, help="Hadoop path, or kafka://host:port/topic")
    parser.add_argument("--output", required=True, help="Hadoop path of the tables")
    parser.add_argument("--from", required=True, dest="first", help="first day or hour, UTC")
    parser.add_argument("--to", required=True, dest="until", help="day or hour after the last, UTC")
    parser.add_argument("--allow-empty", action="store_true", help="replace tables also where no sample is left")
    parser.add_argument("--keep", type=_days, help="delete the tables of days that are older, as 90d")
    asked = parser.parse_args(words)
    reports: list[DayReport] = []
    options = {"allow_empty": asked.allow_empty, "keep": asked.keep}
    try:
        days = parse_hour(asked.first), parse_hour(asked.until)
        spark = open_session()
        try:
            for report in build(spark, asked.input, asked.output, *days, **options):
                print(report.sentence(), flush=True)
                reports.append(report)
        finally:
            stop(spark)
        if not asked.allow_empty and (sentence := nothing_came(reports)):
            raise BuildError(sentence)
    except BuildError as error:
        print(f"build.py: {error}.", file=sys.stderr)
        return 1
    return int(any(report.is_refused for report in reports))


def _days(text: str) -> timedelta:
    if not text.removesuffix("d").isdecimal() or not text.endswith("d"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days: give it as in 90d")
    return timedelta(days=int(text[:-1]))


if __name__ == "__main__":
    sys.exit(main())
