"""Writes tables into a folder on any Hadoop file system, and copies them from there.

Each run writes a day into a folder of its own, `date=2026-11-02/<run>/<table>/`, and never changes it afterwards. When
all is there it replaces `date=2026-11-02/current.json`, which names that folder: from then on readers see the new day,
all of it. A run that is killed has changed nothing.

Runs of the same day do not disturb each other, and need no lock. A run does not replace the pointer of one that began
after it, as that one has seen all samples that were there before. Which began later is told by a number: that of the
pointer which a run has met, and 1; of runs with the same number by their names, and so by their clocks.

What the pointer before names stays, for those who are reading it. What the one before that names is deleted, and so is
what killed runs left, a day after they began.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.pipeline.errors import SPARK_ERRORS
from weir.pipeline.session import FILE_TASKS, as_set
from weir.pipeline.tables import POINTER

ABANDONED_AFTER: Final = timedelta(days=1)
"""No run takes that long: what is older and not in use was left by a killed one."""

ROWS_OF_A_FILE: Final = 100_000_000
"""How many partition samples a file of a table is made of at most: its rows are fewer, and 1 GB holds them."""
FEW_ROWS: Final = 1_000_000
"""So few partition samples that one task makes a table of them."""

_WORK: Final = "_weir"
_ORDER: Final = ("broker_id", "side", "topic", "partition", "client_id", "window_start", "start", "end")
"""Rows are sorted by those of these columns that they have, so that readers skip what they do not need."""
_RUN_BEGAN: Final = "%Y%m%dT%H%M%SZ"
_RENAMES_AT_ONCE: Final = frozenset({"file", "hdfs", "viewfs"})


class Output:
    """The folder `path`, as one run writes it. Others may read and write it at any time."""

    def __init__(self, spark: SparkSession, path: str, utc: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._path = path.rstrip("/") or "/"
        self._utc = utc
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._hadoop_path().getFileSystem(self._configuration)
        self.run = f"{utc():{_RUN_BEGAN}}-{uuid.uuid4().hex[:8]}"
        """A name that sorts by when the run began."""
        self._number = 1
        self.partition_samples = 0
        """How many partition samples the tables are made of that are written next."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Delete afterwards what the run has kept, and what killed runs left."""
        try:
            yield
        finally:
            self._describe(None)
            self._files.delete(self._hadoop_path(_WORK, self.run), True)
        self._delete_abandoned(_WORK, ())
        with contextlib.suppress(Exception):  # another run has begun to use it
            self._files.delete(self._hadoop_path(_WORK), False)

    @contextlib.contextmanager
    def kept(self, name: str, frame: DataFrame) -> Iterator[DataFrame]:
        """Compute `frame` once, and keep its rows in files until the block ends, so that they take no memory."""
        parts = (_WORK, self.run, name)
        self._describe(name)
        try:
            frame.write.mode("overwrite").parquet(self._name(*parts))
            yield frame.sparkSession.read.schema(frame.schema).parquet(self._name(*parts))
        finally:
            self._files.delete(self._hadoop_path(*parts), True)

    @contextlib.contextmanager
    def day(self, day: date) -> Iterator[None]:
        """Delete what the run has written of a day unless readers see it when the block ends."""
        self._number = 1 + self.current(day).get("number", 0)
        try:
            yield
        finally:
            self._delete_unseen(day)

    def write(self, table: str, day: date, frame: DataFrame, *, apart: str | None = None) -> None:
        """Write a table of a day where readers do not look yet.

        Rows that differ in the column `apart` are in folders of their own.
        """
        few = self.partition_samples <= FEW_ROWS
        put = frame.coalesce(1) if few else frame.repartition(-(-self.partition_samples // ROWS_OF_A_FILE))
        order = [name for name in (apart, *_ORDER) if name and name in frame.columns]
        self._describe(f"{day} {table}")
        writer = (put.sortWithinPartitions(*order) if order else put).write.mode("overwrite")
        (writer.partitionBy(apart) if apart else writer).parquet(self._name(_folder(day), self.run, table))

    def rows(self, day: date, tables: Mapping[str, StructType]) -> dict[str, int]:
        """Return how many rows each of the tables has that `write` has written."""
        # One query for all tables, by few tasks: a file tells its number of rows at its end.
        counts = [
            self._spark.read.schema(schema)
            .parquet(self._name(_folder(day), self.run, name))
            .agg(F.lit(name), F.count(F.lit(1)))
            for name, schema in tables.items()
        ]
        with as_set(self._spark, {FILE_TASKS: self._spark.sparkContext.defaultParallelism}):
            return dict(reduce(DataFrame.union, counts).collect())

    def publish(self, day: date, facts: Mapping[str, Any]) -> None:
        """Have readers see what the run has written of a day, with `facts` about it."""
        before = self.current(day)
        if (before.get("number", 0), before.get("run", "")) > (self._number, self.run):
            return
        contents = {
            "run": self.run,
            "number": self._number,
            "before": before.get("run"),
            "made_at": f"{self._utc():%Y-%m-%dT%H:%M:%SZ}",
        }
        self._replace(self._hadoop_path(_folder(day), POINTER), json.dumps(contents | dict(facts)).encode())
        kept = {self.run, before.get("run")}
        if (old := before.get("before")) and old not in kept:
            self._files.delete(self._hadoop_path(_folder(day), old), True)
        self._delete_abandoned(_folder(day), kept)

    def current(self, day: date) -> dict[str, Any]:
        """Return what was published of a day last; nothing where nothing was."""
        return self._read_json(self._hadoop_path(_folder(day), POINTER))

    def delete_before(self, first: date) -> None:
        """Delete the tables of all days before `first`."""
        for day in self.days():
            if day < first:
                self._files.delete(self._hadoop_path(_folder(day)), True)

    def days(self) -> list[date]:
        """Return the days that have a folder, in order."""
        found = []
        for status in self._files.globStatus(self._hadoop_path("date=*")) or ():
            with contextlib.suppress(ValueError):
                found.append(date.fromisoformat(status.getPath().getName().removeprefix("date=")))
        return sorted(found)

    def get(self, day: date, folder: Path) -> None:
        """Copy what readers see of a day, its tables and its pointer, to a `folder` of this machine."""
        if run := self.current(day).get("run"):
            for name in (run, POINTER):
                target = folder / _folder(day) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                self._files.copyToLocalFile(
                    False, self._hadoop_path(_folder(day), name), self._jvm.org.apache.hadoop.fs.Path(str(target)), True
                )

    def _read_json(self, path: Any) -> dict[str, Any]:
        try:
            stream = self._files.open(path)
        except SPARK_ERRORS:
            if self._files.exists(path):
                raise
            return {}
        try:
            found = json.loads(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        return dict(found)

    def _replace(self, path: Any, contents: bytes) -> None:
        """Replace a file at once. A store of objects shows what was written when it is closed, and renames slowly."""
        renames = self._files.getScheme() in _RENAMES_AT_ONCE
        written = self._jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}-{self.run}")
        stream = self._files.create(written if renames else path, True)
        stream.write(bytearray(contents))
        stream.close()
        if renames:
            # that of a file which a run with checksums has written, and which a run without leaves
            self._files.delete(self._jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}.crc"), False)
            option = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
            options = self._gateway.new_array(option, 1)
            options[0] = option.OVERWRITE
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._files.getUri(), self._configuration
            )
            context.rename(self._files.makeQualified(written), self._files.makeQualified(path), options)

    def _delete_unseen(self, day: date) -> None:
        """Delete what this run has written of a day, unless readers see it."""
        if self.current(day).get("run") != self.run:
            self._files.delete(self._hadoop_path(_folder(day), self.run), True)

    def _delete_abandoned(self, folder: str, kept: Collection[str | None]) -> None:
        """Delete the folders of runs that are not to be `kept` and began long ago."""
        oldest = f"{self._utc() - ABANDONED_AFTER:{_RUN_BEGAN}}"
        path = self._hadoop_path(folder)
        if not self._files.exists(path):
            return
        for status in self._files.listStatus(path):
            name = status.getPath().getName()
            if status.isDirectory() and name not in kept and name < oldest:
                self._files.delete(status.getPath(), True)

    def _describe(self, what: str | None) -> None:
        """Have Spark's pages name what its jobs are for."""
        self._spark.sparkContext.setJobDescription(None if what is None else f"weir: {what}")  # type: ignore[arg-type]

    def _name(self, *parts: str) -> str:
        return "/".join([self._path, *parts])

    def _hadoop_path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._name(*parts))


def _folder(day: date) -> str:
    return f"date={day}"
