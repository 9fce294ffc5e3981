"""How fast the batch job builds tables: `python -m bench.spark_job`, or only the `sizes` or the `hours` of it.

- `sizes`: partition samples/s end to end at three sizes, and what it keeps in memory. The samples are made up, from a
  seed: 80 s of brokers of which each tells of all its partitions every 10 s. With --check the tables of one topic and
  all brokers are compared with sums that plain Python makes of the same files.
- `hours`: a tenth of the brokers tell so much in each hour of a day. By turns the day is built at once, and one hour of
  it that is joined to the day: where the folders hold the day before, and where they hold many more days.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.table import Report, add_parts, begin, parser, run
from tests.pipeline.many_samples import DAY, generate_by_processes, independent_sums, table_sums
from weir.cli.report import LAUNCH_SETTINGS
from weir.pipeline.build import build
from weir.pipeline.day_report import DayReport
from weir.pipeline.session import open_session

LEAST_ROWS_PER_SECOND = 400_000
MIDNIGHT = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
NEXT_DAY = DAY + timedelta(days=1)
MOST_OF_A_DAY = 0.6
"""The part of a day's time that one hour may take. Most of it is the same for hours and days of any size."""
MOST_WITH_MANY = 1.15
"""How much longer a run may take where there are many days before; what is above 1 is noise."""


@dataclass(frozen=True, slots=True)
class Folders:
    """A folder of samples, and one of tables."""

    samples: Path
    tables: Path

    @classmethod
    def below(cls, folder: Path) -> Folders:
        """Those of a run."""
        return cls(folder / "samples", folder / "tables")

    def build(self, spark: SparkSession, first: date, until: date) -> tuple[float, DayReport]:
        """Build one day, or an hour of it; returns how many seconds it took."""
        began = time.perf_counter()
        (report,) = build(spark, str(self.samples), str(self.tables), first, until)
        if report.quarantined or report.is_refused:
            raise AssertionError(report.sentence())
        return time.perf_counter() - began, report

    def copy(self, target: Folders, day: date) -> None:
        """Give `target` these files as those of a day. No run reads what they hold of other days."""
        for old, new in ((self.samples, target.samples), (self.tables, target.tables)):
            shutil.copytree(old / f"date={DAY}", new / f"date={day}", copy_function=os.link)


def main() -> int:
    """Measure, and return 1 where a bound was missed."""
    options = parser("spark_job", "Measure how fast the batch job builds tables.")
    add_parts(options, ("sizes", "hours"))
    options.add_argument("--brokers", type=int, default=500)
    options.add_argument("--partitions", type=int, nargs="+", default=[250, 1000, 4000], help="of each broker, by size")
    options.add_argument("--samples", type=int, default=8, help="of each broker, and hour")
    options.add_argument("--seed", type=int, default=73)
    options.add_argument("--heap", default="4g", help="of the JVM")
    options.add_argument("--check", action="store_true", help="compare with sums made by plain Python")
    options.add_argument("--past", type=int, default=30, help="days before, of the hours (30)")
    options.add_argument("--turns", type=int, default=3, help="of the hours (3)")
    asked, report = begin(options)
    own = {"spark.driver.memory": asked.heap, "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    spark = open_session("local[2]", LAUNCH_SETTINGS | own)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for part in asked.parts:
            (_measure_hours if part == "hours" else _measure_sizes)(report, spark, asked)
    finally:
        spark.stop()
    return report.status


def _measure_sizes(report: Report, spark: SparkSession, asked: argparse.Namespace) -> None:
    figures = []
    for partitions in asked.partitions:
        with tempfile.TemporaryDirectory() as name:
            folders = Folders.below(Path(name))
            lines = generate_by_processes(folders.samples, asked.brokers, partitions, asked.samples, asked.seed)
            seconds, day = folders.build(spark, DAY, NEXT_DAY)
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
            figures.append((lines, seconds, lines / seconds, _live_heap(spark), rss, sum(day.rows.values())))
            if asked.check:
                wanted, found = independent_sums(folders.samples), table_sums(spark, folders.tables)
                differing = sum(wanted[table] != found[table] for table in wanted)
                report.bound("tables that differ from plain Python's sums", differing, most=0)
    columns = "partition samples | s .1 | a second | live heap, MB | Python, MB | rows of tables"
    report.table(f"{asked.brokers} brokers, {asked.samples} samples each, local[2]", columns, figures)
    lines, _, rate, *_ = figures[-1]  # the first warms the JVM up
    report.bound(f"partition samples a second, of {lines:,}", rate, least=LEAST_ROWS_PER_SECOND)


def _live_heap(spark: SparkSession) -> float:
    """MB that the JVM keeps when the garbage is gone, and what Spark gives back once it sees that it is garbage."""
    gc.collect()
    runtime: Any = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    runtime.gc()
    time.sleep(2)
    runtime.gc()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def _measure_hours(report: Report, spark: SparkSession, asked: argparse.Namespace) -> None:
    taken: defaultdict[str, list[float]] = defaultdict(list)
    hours = [MIDNIGHT + timedelta(hours=number) for number in range(24)]
    brokers, partitions = max(2, asked.brokers // 10), asked.partitions[len(asked.partitions) // 2]
    with tempfile.TemporaryDirectory() as name:
        alone, beside = (Folders.below(Path(name, one)) for one in ("alone", "beside"))
        size = sum(
            generate_by_processes(alone.samples, brokers, partitions, asked.samples, asked.seed, hour) for hour in hours
        )
        alone.build(spark, DAY, NEXT_DAY)  # warms the JVM up
        alone.copy(beside, DAY)
        for number in range(asked.past):
            beside.copy(beside, DAY - timedelta(days=number + 1))
        beside.copy(alone, DAY - timedelta(days=1))
        for turn in range(asked.turns):
            runs = [("", alone), (", many days before", beside)]
            for note, folders in runs if turn % 2 else reversed(runs):
                taken[f"day{note}"].append(folders.build(spark, DAY, NEXT_DAY)[0])
                hour = hours[turn % len(hours)]
                taken[f"hour{note}"].append(folders.build(spark, hour, hour + timedelta(hours=1))[0])
    medians = {what: statistics.median(times) for what, times in taken.items()}
    rows = [(what, medians[what], min(times), max(times)) for what, times in sorted(taken.items())]
    title = f"{size:,} partition samples a day, of {brokers} brokers; 1 or {asked.past} days before"
    report.table(title, "what | s, median .1 | least .1 | most .1", rows)
    report.bound("an hour, as part of a day's time", medians["hour"] / medians["day"], most=MOST_OF_A_DAY)
    for what in ("day", "hour"):
        ratio = medians[f"{what}, many days before"] / medians[what]
        report.bound(f"{what} with many days before, as part of the time with one", ratio, most=MOST_WITH_MANY)


if __name__ == "__main__":
    run(main)
