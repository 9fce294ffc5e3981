# SPDX-License-Identifier: Apache-2.0
"""How fast the batch job builds tables: `python -m bench.spark_job`.

Partition samples/s end to end at three sizes, and what it keeps in memory. The samples are made up, from a seed: 80 s
of brokers of which each tells of all its partitions every 10 s. With --check the tables of one topic and all brokers
are compared with sums that plain Python makes of the same files.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.table import Report, begin, parser, run
from tests.pipeline.many_samples import DAY, generate_by_processes, independent_sums, table_sums
from weir.cli.spark import LAUNCH_SETTINGS
from weir.pipeline.build import build
from weir.pipeline.session import open_session

LEAST_ROWS_PER_SECOND = 400_000


def main() -> int:
    """Measure, and return 1 where a bound was missed."""
    options = parser("spark_job", "Measure how fast the batch job builds tables.")
    options.add_argument("--brokers", type=int, default=500)
    options.add_argument("--partitions", type=int, nargs="+", default=[250, 1000, 4000], help="of each broker, by size")
    options.add_argument("--samples", type=int, default=8, help="of each broker")
    options.add_argument("--seed", type=int, default=73)
    options.add_argument("--heap", default="4g", help="of the JVM")
    options.add_argument("--check", action="store_true", help="compare with sums made by plain Python")
    asked, report = begin(options)
    own = {"spark.driver.memory": asked.heap, "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    spark = open_session("local[2]", LAUNCH_SETTINGS | own)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        _measure(report, spark, asked)
    finally:
        spark.stop()
    return report.status


def _measure(report: Report, spark: SparkSession, asked: argparse.Namespace) -> None:
    figures = []
    for partitions in asked.partitions:
        with tempfile.TemporaryDirectory() as name:
            samples, tables = Path(name, "samples"), Path(name, "tables")
            lines = generate_by_processes(samples, asked.brokers, partitions, asked.samples, asked.seed)
            began = time.perf_counter()
            (day,) = build(spark, str(samples), str(tables), DAY, DAY + timedelta(days=1))
            seconds = time.perf_counter() - began
            if day.quarantined or day.is_refused:
                raise AssertionError(day.sentence())
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
            figures.append((lines, seconds, lines / seconds, _live_heap(spark), rss, sum(day.rows.values())))
            if asked.check:
                wanted, found = independent_sums(samples), table_sums(tables)
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


if __name__ == "__main__":
    run(main)
