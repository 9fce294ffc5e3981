"""What it costs to build one hour beside its day, and whether the days before make a run slower.

The samples are those of `bench.spark_job`, for each hour of a day. Four things are timed by turns: the day at once, and
one hour of it that is joined to the day. Both are timed where the folders of samples and of tables hold the day before,
and where they hold so many days more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.spark_job import DAY, generate_by_processes, session
from bench.table import Report, parser
from weir.pipeline.build import build

MIDNIGHT: Final = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
NEXT_DAY: Final = DAY + timedelta(days=1)
MOST_OF_A_DAY: Final = 0.6
"""The part of a day's time that one hour may take. Most of it is the same for hours and days of any size."""
MOST_WITH_MANY: Final = 1.15
"""How much longer a run may take where there are many days before; what is above 1 is noise."""


@dataclass(frozen=True, slots=True)
class Folders:
    """A folder of samples, and one of tables."""

    samples: Path
    tables: Path

    def build(self, spark: SparkSession, first: date, until: date) -> float:
        """Return how many seconds it took."""
        began = time.perf_counter()
        for report in build(spark, str(self.samples), str(self.tables), first, until):
            if report.quarantined or report.is_refused:
                raise AssertionError(report.sentence())
        return time.perf_counter() - began


def main() -> int:
    """Measure, and return 1 where a bound was missed."""
    asked = _options()
    report = Report(asked.json)
    spark = session(asked.heap)
    taken: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        alone = Folders(Path(name, "alone", "samples"), Path(name, "alone", "tables"))
        hours = [MIDNIGHT + timedelta(hours=number) for number in range(24)]
        size = sum(
            generate_by_processes(alone.samples, asked.brokers, asked.partitions, asked.samples, asked.seed, hour)
            for hour in hours
        )
        alone.build(spark, DAY, NEXT_DAY)  # warms the JVM up
        beside = Folders(Path(name, "beside", "samples"), Path(name, "beside", "tables"))
        _copy(alone, beside, DAY)
        for number in range(asked.past):
            _copy(beside, beside, DAY - timedelta(days=number + 1))
        _copy(beside, alone, DAY - timedelta(days=1))
        for turn in range(asked.turns):
            runs = [("", alone), (", many days before", beside)]
            for note, folders in runs if turn % 2 else reversed(runs):
                taken[f"day{note}"].append(folders.build(spark, DAY, NEXT_DAY))
                hour = hours[turn % len(hours)]
                taken[f"hour{note}"].append(folders.build(spark, hour, hour + timedelta(hours=1)))
    spark.stop()
    medians = {what: statistics.median(times) for what, times in taken.items()}
    rows = [(what, medians[what], min(times), max(times)) for what, times in sorted(taken.items())]
    title = f"{size:,} partition samples a day, of {asked.brokers} brokers; 1 or {asked.past} days before"
    report.table(title, {"what": 0, "s, median": 1, "least": 1, "most": 1}, rows)
    report.bound("an hour, as part of a day's time", medians["hour"] / medians["day"], most=MOST_OF_A_DAY)
    for what in ("day", "hour"):
        ratio = medians[f"{what}, many days before"] / medians[what]
        report.bound(f"{what} with many days before, as part of the time with one", ratio, most=MOST_WITH_MANY)
    return report.status


def _copy(source: Folders, target: Folders, day: date) -> None:
    """Give `target` the files of `source` as those of a day. No run reads what they hold of other days."""
    for old, new in ((source.samples, target.samples), (source.tables, target.tables)):
        shutil.copytree(old / f"date={DAY}", new / f"date={day}", copy_function=os.link)


def _options() -> argparse.Namespace:
    options = parser("bench.spark_hours", __doc__.partition("\n")[0])
    options.add_argument("--brokers", type=int, default=50)
    options.add_argument("--partitions", type=int, default=1000, help="of each broker")
    options.add_argument("--samples", type=int, default=8, help="of each broker and hour")
    options.add_argument("--past", type=int, default=30, help="days before")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--seed", type=int, default=73)
    options.add_argument("--heap", default="4g", help="of the JVM")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
