# SPDX-License-Identifier: Apache-2.0
"""A folder of samples, the tables built from it, and the job between them on either engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from tests.pipeline.exported import DAY, rows, write_lines
from weir.pipeline.build import build
from weir.pipeline.day_report import DayReport
from weir.pipeline.day_tables import TABLES
from weir.pipeline.duck import frame as duck
from weir.pipeline.duck.build import build as build_with_duckdb
from weir.pipeline.open_tables import published, table_folder
from weir.pipeline.runs import LocalFiles, Runs
from weir.pipeline.storage import Output

NOT_COMPARED = ("file", "window", "date")


class Job:
    """A folder of samples, one of tables, and the job between them, with Spark or else with DuckDB."""

    def __init__(self, spark: SparkSession | None, folder: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self._spark = spark
        self.connection = connection
        self.samples = folder / "samples"
        self.tables = folder / "tables"

    def export(self, text: bytes, name: str = "one", day: date = DAY, hour: int = 12) -> Path:
        path = self.samples / f"date={day}" / f"hour={hour:02}" / f"{name}.jsonl.gz"
        write_lines(path, text)
        return path

    def run(self, first: date = DAY, days: int = 1, **more: Any) -> list[DayReport]:
        return self.build(first, first + timedelta(days=days), **more)

    def build(self, *days: date, **more: Any) -> list[DayReport]:
        if self._spark is None:
            return list(build_with_duckdb(self.samples, self.tables, *days, **more))
        return list(build(self._spark, str(self.samples), str(self.tables), *days, **more))

    def settings(self) -> list[str | None]:
        names = ("spark.sql.parquet.compression.codec", "spark.sql.session.timeZone", "spark.sql.ansi.enabled")
        return [self.spark.conf.get(name) for name in names] if self._spark else []

    @property
    def is_on_spark(self) -> bool:
        return self._spark is not None

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    def output(self, utc: Callable[[], datetime]) -> Runs:
        return Runs(LocalFiles(self.tables), utc) if self._spark is None else Output(self._spark, str(self.tables), utc)

    def facts(self, day: date = DAY) -> dict[str, Any]:
        """What the pointer of a day says."""
        return published(self.tables)[self.tables / f"date={day}"]

    def current(self, day: date = DAY) -> str:
        """The run whose tables of a day are to be read."""
        return str(self.facts(day)["run"])

    def runs(self, day: date = DAY) -> list[Path]:
        return [path for path in (self.tables / f"date={day}").iterdir() if path.is_dir()]

    def table(self, name: str, day: date = DAY) -> Any:
        folder = table_folder(self.tables / f"date={day}", self.facts(day), name)
        return duck.DataFrame(self.connection, f"FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true)")

    def contents(self, day: date = DAY) -> dict[str, list[Any]]:
        """All rows of a day's tables, sorted; quarantined files without their folder. Empty tables may have no file."""
        found = {}
        for name in TABLES:
            folder = table_folder(self.tables / f"date={day}", self.facts(day), name)
            if any(folder.rglob("*.parquet")):
                frame = self.table(name, day)
                found[name] = rows(frame, *(column for column in frame.columns if column not in NOT_COMPARED))
            else:
                found[name] = []
        return found

    def descriptions(self) -> set[str]:
        """What Spark's pages say of the jobs that it has run."""
        context: Any = self.spark.sparkContext
        jobs = context._jsc.sc().statusStore().jobsList(None)
        told = [jobs.apply(number).description() for number in range(jobs.size())]
        return {description.get() for description in told if description.isDefined()}
