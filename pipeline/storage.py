"""Writes tables into a folder on any Hadoop file system.

Each run writes a day into a folder of its own, `date=2026-11-02/<run>/<table>/`, and never changes it afterwards. When
all tables are there, `date=2026-11-02/current.json` is replaced, which names the run: from then on readers see the new
day, all of it. A run that is killed has changed nothing, and two that write the same day do not disturb each other: the
later one's is seen.

The run that was seen before stays, for those who are reading it. Older ones are deleted, and so is what killed runs
left, a day after they began.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from pipeline.tables import POINTER

ABANDONED_AFTER: Final = timedelta(days=1)
"""No run takes that long: what is older and not in use was left by a killed one."""

_WORK: Final = "_weir"
_RUN_BEGAN: Final = "%Y%m%dT%H%M%SZ"
_RENAMES_AT_ONCE: Final = frozenset({"file", "hdfs", "viewfs"})


class Output:
    """The folder `path`, as one run writes it. Others may read and write it at any time."""

    def __init__(self, spark: SparkSession, path: str, utc: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._path = path.rstrip("/") or "/"
        self._utc = utc
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._hadoop_path().getFileSystem(self._configuration)
        self.run = f"{utc():{_RUN_BEGAN}}-{uuid.uuid4().hex[:8]}"
        """A name that sorts by when the run began."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Delete afterwards what the run has kept, and what killed runs left."""
        try:
            yield
        finally:
            self._files.delete(self._hadoop_path(_WORK, self.run), True)
        self._delete_abandoned(_WORK, set())
        with contextlib.suppress(Exception):  # another run has begun to use it
            self._files.delete(self._hadoop_path(_WORK), False)

    @contextlib.contextmanager
    def kept(self, name: str, frame: DataFrame) -> Iterator[DataFrame]:
        """Compute `frame` once, and keep its rows in files until the block ends, so that they take no memory."""
        parts = (_WORK, self.run, name)
        try:
            frame.write.mode("overwrite").parquet(self._name(*parts))
            yield frame.sparkSession.read.schema(frame.schema).parquet(self._name(*parts))
        finally:
            self._files.delete(self._hadoop_path(*parts), True)

    @contextlib.contextmanager
    def day(self, day: date) -> Iterator[None]:
        """Delete what the run has written of a day unless it is published within the block."""
        try:
            yield
        finally:
            if self.current(day).get("run") != self.run:
                self._files.delete(self._hadoop_path(_folder(day), self.run), True)

    def write(self, table: str, day: date, frame: DataFrame, *, apart: str | None = None) -> int:
        """Write a day's table where readers do not look yet. Returns its number of rows.

        Rows that differ in the column `apart` are in folders of their own.
        """
        path = self._name(_folder(day), self.run, table)
        writer = frame.write.mode("overwrite")
        (writer.partitionBy(apart) if apart else writer).parquet(path)
        return frame.sparkSession.read.schema(frame.schema).parquet(path).count()

    def publish(self, day: date, facts: Mapping[str, Any]) -> None:
        """Have readers see what was written of a day. They find `facts` beside the name of the run."""
        before = self.current(day).get("run")
        contents = {"run": self.run, "made_at": f"{self._utc():%Y-%m-%dT%H:%M:%SZ}", **facts}
        self._replace(self._hadoop_path(_folder(day), POINTER), json.dumps(contents).encode())
        self._delete_abandoned(_folder(day), {self.run, before}, finished=before)

    def current(self, day: date) -> dict[str, Any]:
        """Return what was published of a day last; nothing where nothing was."""
        path = self._hadoop_path(_folder(day), POINTER)
        if not self._files.exists(path):
            return {}
        stream = self._files.open(path)
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
            option = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
            options = self._gateway.new_array(option, 1)
            options[0] = option.OVERWRITE
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._files.getUri(), self._configuration
            )
            context.rename(self._files.makeQualified(written), self._files.makeQualified(path), options)

    def _delete_abandoned(self, folder: str, in_use: set[str | None], finished: str | None = None) -> None:
        """Delete the folders of runs that are not `in_use` and began long ago, or before the `finished` one."""
        oldest = f"{self._utc() - ABANDONED_AFTER:{_RUN_BEGAN}}"
        path = self._hadoop_path(folder)
        if not self._files.exists(path):
            return
        for status in self._files.listStatus(path):
            name = status.getPath().getName()
            is_old = name < oldest or (finished is not None and name < finished)
            if status.isDirectory() and name not in in_use and is_old:
                self._files.delete(status.getPath(), True)

    def _name(self, *parts: str) -> str:
        return "/".join([self._path, *parts])

    def _hadoop_path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._name(*parts))


def _folder(day: date) -> str:
    return f"date={day}"
