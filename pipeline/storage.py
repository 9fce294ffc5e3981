# SPDX-License-Identifier: Apache-2.0
"""Writes tables with Spark into a folder on any Hadoop file system, and copies them from there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.pipeline.runs import ORDER, Runs, of_day
from weir.pipeline.session import FILE_TASKS, as_set
from weir.pipeline.spark_errors import SPARK_ERRORS
from weir.pipeline.tables import POINTER

ROWS_OF_A_FILE: Final = 100_000_000
"""How many partition samples a file of a table is made of at most: its rows are fewer, and 1 GB holds them."""
FEW_ROWS: Final = 1_000_000
"""So few partition samples that one task makes a table of them."""

_WORK: Final = "_weir"
_RENAMES_AT_ONCE: Final = frozenset({"file", "hdfs", "viewfs"})


class HadoopFiles:
    """Files below the folder `path`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._path = path.rstrip("/") or "/"
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._hadoop_path().getFileSystem(self._configuration)

    def read(self, *path: str) -> bytes | None:
        try:
            stream = self._files.open(self._hadoop_path(*path))
        except SPARK_ERRORS:
            if self._files.exists(self._hadoop_path(*path)):
                raise
            return None
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).encode()
        finally:
            stream.close()

    def replace(self, contents: bytes, *path: str) -> None:
        """Replace a file at once. A store of objects shows what was written when it is closed, and renames slowly."""
        file = self._hadoop_path(*path)
        renames = self._files.getScheme() in _RENAMES_AT_ONCE
        written = self._hadoop_path(*path[:-1], f".{path[-1]}-{uuid.uuid4().hex}")
        stream = self._files.create(written if renames else file, True)
        stream.write(bytearray(contents))
        stream.close()
        if renames:
            # that of a file which a run with checksums has written, and which a run without leaves
            self._files.delete(self._hadoop_path(*path[:-1], f".{path[-1]}.crc"), False)
            option = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
            options = self._gateway.new_array(option, 1)
            options[0] = option.OVERWRITE
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._files.getUri(), self._configuration
            )
            context.rename(self._files.makeQualified(written), self._files.makeQualified(file), options)

    def folders(self, *path: str) -> list[str]:
        found = self._files.globStatus(self._hadoop_path(*path, "*")) or ()
        return [status.getPath().getName() for status in found if status.isDirectory()]

    def delete(self, *path: str) -> None:
        self._files.delete(self._hadoop_path(*path), True)

    def delete_empty(self, *path: str) -> None:
        with contextlib.suppress(Exception):  # another run has begun to use it
            self._files.delete(self._hadoop_path(*path), False)

    def get(self, target: Path, *path: str) -> None:
        """Copy a file, or a folder, to this machine."""
        target.parent.mkdir(parents=True, exist_ok=True)
        local = self._jvm.org.apache.hadoop.fs.Path(str(target))
        self._files.copyToLocalFile(False, self._hadoop_path(*path), local, True)

    def name(self, *path: str) -> str:
        return "/".join([self._path, *path])

    def _hadoop_path(self, *path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.name(*path))


class Output(Runs):
    """The folder `path`, as one run writes it with Spark."""

    def __init__(self, spark: SparkSession, path: str, utc: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._spark = spark
        self._hadoop = HadoopFiles(spark, path)
        super().__init__(self._hadoop, utc)
        self.partition_samples = 0
        """How many partition samples the tables are made of that are written next."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Delete afterwards what the run has kept, and what killed runs left."""
        try:
            yield
        finally:
            self._describe(None)
            self._hadoop.delete(_WORK, self.run)
        self.delete_abandoned(_WORK)
        self._hadoop.delete_empty(_WORK)

    @contextlib.contextmanager
    def kept(self, name: str, frame: DataFrame) -> Iterator[DataFrame]:
        """Compute `frame` once, and keep its rows in files until the block ends, so that they take no memory."""
        parts = (_WORK, self.run, name)
        self._describe(name)
        try:
            frame.write.mode("overwrite").parquet(self._hadoop.name(*parts))
            yield frame.sparkSession.read.schema(frame.schema).parquet(self._hadoop.name(*parts))
        finally:
            self._hadoop.delete(*parts)

    def write(self, table: str, day: date, frame: DataFrame, *, apart: str | None = None) -> None:
        """Write a table of a day where readers do not look yet.

        Rows that differ in the column `apart` are in folders of their own.
        """
        few = self.partition_samples <= FEW_ROWS
        put = frame.coalesce(1) if few else frame.repartition(-(-self.partition_samples // ROWS_OF_A_FILE))
        order = [name for name in (apart, *ORDER) if name and name in frame.columns]
        self._describe(f"{day} {table}")
        writer = (put.sortWithinPartitions(*order) if order else put).write.mode("overwrite")
        (writer.partitionBy(apart) if apart else writer).parquet(self._hadoop.name(of_day(day), self.run, table))

    def rows(self, day: date, tables: Mapping[str, StructType]) -> dict[str, int]:
        """Return how many rows each of the tables has that `write` has written."""
        # One query for all tables, by few tasks: a file tells its number of rows at its end.
        counts = [
            self._spark.read.schema(schema)
            .parquet(self._hadoop.name(of_day(day), self.run, name))
            .agg(F.lit(name), F.count(F.lit(1)))
            for name, schema in tables.items()
        ]
        with as_set(self._spark, {FILE_TASKS: self._spark.sparkContext.defaultParallelism}):
            return dict(reduce(DataFrame.union, counts).collect())

    def get(self, day: date, folder: Path) -> None:
        """Copy what readers see of a day, its tables and its pointer, to a `folder` of this machine."""
        if run := self.current(day).get("run"):
            for name in (run, POINTER):
                self._hadoop.get(folder / of_day(day) / name, of_day(day), name)

    def _describe(self, what: str | None) -> None:
        """Have Spark's pages name what its jobs are for."""
        self._spark.sparkContext.setJobDescription(None if what is None else f"weir: {what}")  # type: ignore[arg-type]
