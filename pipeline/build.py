# SPDX-License-Identifier: Apache-2.0
"""The batch job from exported samples to tables, one UTC day at a time. It also runs under spark-submit:

    spark-submit --py-files kafka_weir-VERSION-py3-none-any.whl pipeline/build.py \
        --input s3a://bucket/samples --output s3a://bucket/tables --from 2026-11-02 --to 2026-11-09
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from weir.pipeline.damaged import damaged_files, may_be_damage
from weir.pipeline.day_report import DayReport, nothing_came
from weir.pipeline.day_tables import QUARANTINE, day_tables
from weir.pipeline.days import Days, midnight, parse_hour
from weir.pipeline.errors import BuildError
from weir.pipeline.lines import by_kind, of_days, parse
from weir.pipeline.one_day import BY_WINDOW, Day, build_day
from weir.pipeline.read import client_properties, input_files, is_by_day, read_lines
from weir.pipeline.session import FILE_TASKS, SHUFFLE_TASKS, as_set, open_session
from weir.pipeline.spark_errors import SPARK_ERRORS, first_line
from weir.pipeline.storage import Output
from weir.pipeline.whole import (
    PARTIAL_SAMPLE,
    without_duplicates,
    without_partial,
)
from weir.samples.schema import PartitionsLine, kind_of

ROWS_OF_A_PLACE: Final = 1_000_000
"""How many partition samples a task of a shuffle has, so that what it takes of memory does not grow with the day."""

WRITERS: Final = 2
"""How many tables are written at a time. Spark plans one on one core while tasks make another, often a single one."""

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


def build(
    spark: SparkSession,
    source: str,
    output: str,
    first: date,
    until: date,
    *,
    allow_empty: bool = False,
    keep: timedelta | None = None,
    kafka: Mapping[str, str] | None = None,
) -> Iterator[DayReport]:
    """Replace the tables of the UTC days from `first` up to but without `until`, and yield a report for each.

    Both are days or times (`datetime`, UTC): each day that the time lies in is built, all of it. What its tables hold
    depends only on its samples, so every run writes the same. A day of which an hour had samples before, and has none,
    stays as it is unless with `allow_empty`: its samples have expired. Days that are older than `keep` at the end of
    the last one are deleted. `kafka` are client properties, where the source is a topic. Raises BuildError.
    """
    days = Days.around(first, until)
    try:
        with as_set(spark, _SETTINGS):
            job = _Job(spark, source, Output(spark, output), allow_empty, kafka or {})
            with job.output.writing():
                # What lies in folders of days is read day by day. Of all else each day would read the whole.
                for together in days.each() if is_by_day(spark, source, days) else [days]:
                    yield from _build_together(job, together)
                if keep is not None:
                    job.output.delete_before((midnight(days.until) - keep).date())
    except SPARK_ERRORS as error:
        raise BuildError(f"the tables cannot be built: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Job:
    """What is the same for all days."""

    spark: SparkSession
    source: str
    output: Output
    allow_empty: bool
    kafka: Mapping[str, str]


def _build_together(job: _Job, days: Days) -> Iterator[DayReport]:
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
        for one in days.each():
            yield _build_day(job, one.first, of_days(parsed, one), damaged)


def _parsed(job: _Job, days: Days, damaged: Collection[str] = ()) -> contextlib.AbstractContextManager[DataFrame]:
    """Keep the parsed lines.

    Kept before any condition: Spark would move a condition in front of the parsing, and parse twice. Kept in files, of
    which each query reads only its columns; in memory there is no room for all lines.
    """
    return job.output.kept("lines", parse(read_lines(job.spark, job.source, days, damaged, job.kafka)))


def _build_day(job: _Job, day: date, parsed: DataFrame, damaged: Sequence[str]) -> DayReport:
    """Write a day from its lines."""
    with contextlib.ExitStack() as stack:

        def keep(frame: DataFrame) -> DataFrame:
            stack.callback(frame.persist(StorageLevel.MEMORY_AND_DISK_DESER).unpersist, blocking=True)
            return frame

        def write(of: Day) -> dict[str, int]:
            output = job.output
            output.partition_samples = of.report.partitions
            cores = job.spark.sparkContext.defaultParallelism
            places = max(cores, _places(of.report.partitions))
            lines = of.lines
            # Each of these takes a pass over all lines, so they are done only where needed.
            if of.report.quarantined.get(PARTIAL_SAMPLE):
                lines = without_partial(lines, of.found)
            if of.report.has_duplicates:
                lines = stack.enter_context(output.kept("lines-once", without_duplicates(lines)))
            # Most lines are of partitions. The others are few, and kept apart: many tables are made of these alone, and
            # each task costs more than what it would read of them.
            others = lines.where(F.col("kind") != kind_of(PartitionsLine))
            few = by_kind(keep(others.coalesce(cores)))
            lines_by_kind = replace(few, partitions=by_kind(lines).partitions)
            # a task takes longer to begin than it needs for a few rows
            reading: dict[str, int | str] = {FILE_TASKS: cores} if places == cores else {}
            with as_set(job.spark, {SHUFFLE_TASKS: places, **reading}):
                tables = day_tables(lines_by_kind, of.found, of.bad, keep, places)

                def write_one(name: str) -> None:
                    output.write(name, day, tables[name], apart="window" if name in BY_WINDOW else None)

                with ThreadPoolExecutor(WRITERS) as threads:
                    list(threads.map(write_one, tables))
            return output.rows(day, {name: frame.schema for name, frame in tables.items() if name != QUARANTINE})

        return build_day(job.output, day, parsed, damaged, job.allow_empty, keep, write)


def _places(rows: int) -> int:
    return -(-rows // ROWS_OF_A_PLACE)


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
    parser.add_argument("--command-config", type=Path, help="Kafka's client properties, for kafka://")
    asked = parser.parse_args(words)
    reports: list[DayReport] = []
    try:
        kafka = client_properties(asked.command_config)
        days = parse_hour(asked.first), parse_hour(asked.until)
        spark = open_session()
        try:
            for report in build(
                spark, asked.input, asked.output, *days, allow_empty=asked.allow_empty, keep=asked.keep, kafka=kafka
            ):
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
