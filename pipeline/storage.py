"""Where tables are written: a folder on any Hadoop file system, one writer at a time, days replaced as a whole.

A day's tables are written below `_weir/`, which readers skip. When all are there, a marker says so, and they are moved
to their places. A run that is killed before the marker changed nothing; one that is killed behind it is carried on by
the next run, before it does anything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import BuildError

SIGN_OF_LIFE_SECONDS: Final = 10.0
DEAD_AFTER_SECONDS: Final = 60.0
"""A writer that has given no sign of life for this long is gone. One of this machine is looked up."""

_WORK: Final = "_weir"
_READY: Final = "ready-"
_KEPT: Final = "kept-"


class Output:
    """The folder `path`. Others may read it at any time; a table's day is missing for a moment when it is replaced."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._path = path.rstrip("/") or "/"
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._hadoop_path().getFileSystem(configuration)
        self._lock = self._hadoop_path(_WORK, "lock")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; first finish or undo what a killed one left. BuildError when another is at work."""
        self._take_lock()
        over = threading.Event()
        signs = threading.Thread(target=self._give_signs, args=(over,), name="sign of life", daemon=True)
        signs.start()
        try:
            self._recover()
            yield
        finally:
            over.set()
            signs.join()
            self._files.delete(self._lock, False)

    @contextlib.contextmanager
    def kept(self, name: str, frame: DataFrame) -> Iterator[DataFrame]:
        """Work `frame` out once, and keep its rows in files until the block ends: so they take no memory."""
        path = self._name(_WORK, _KEPT + name)
        try:
            frame.write.mode("overwrite").parquet(path)
            yield frame.sparkSession.read.schema(frame.schema).parquet(path)
        finally:
            self._files.delete(self._hadoop_path(_WORK, _KEPT + name), True)

    def stage(self, table: str, day: date, frame: DataFrame) -> int:
        """Write a day's table where readers do not see it, and return its rows."""
        staged = self._name(_WORK, "staging", table, f"date={day}")
        frame.write.mode("overwrite").parquet(staged)
        return frame.sparkSession.read.schema(frame.schema).parquet(staged).count()

    def commit(self, tables: Sequence[str], day: date) -> None:
        """Put the day's tables that were staged in their places, for those that were there."""
        self._files.create(self._hadoop_path(_WORK, f"{_READY}{day}"), True).close()
        self._move(tables, day)

    def _move(self, tables: Sequence[str], day: date) -> None:
        for table in tables:
            staged = self._hadoop_path(_WORK, "staging", table, f"date={day}")
            if self._files.exists(staged):  # else a run before had moved it
                self._replace(staged, self._hadoop_path(table, f"date={day}"))
        self._files.delete(self._hadoop_path(_WORK, f"{_READY}{day}"), False)
        self._files.delete(self._hadoop_path(_WORK, "staging"), True)

    def _replace(self, staged: Any, target: Any) -> None:
        self._files.delete(target, True)
        self._files.mkdirs(target.getParent())
        if not self._files.rename(staged, target):
            raise BuildError(f"{staged} cannot be moved to {target}")

    def _recover(self) -> None:
        staging = self._hadoop_path(_WORK, "staging")
        for status in self._files.listStatus(self._hadoop_path(_WORK)):
            name = status.getPath().getName()
            if name.startswith(_KEPT):
                self._files.delete(status.getPath(), True)
            if name.startswith(_READY):
                tables = [table.getPath().getName() for table in self._files.listStatus(staging)]
                self._move(tables, date.fromisoformat(name.removeprefix(_READY)))
        self._files.delete(staging, True)

    def _take_lock(self) -> None:
        self._files.mkdirs(self._hadoop_path(_WORK))
        if not self._files.createNewFile(self._lock):
            self._check_dead()
            self._files.delete(self._lock, False)
            if not self._files.createNewFile(self._lock):
                raise BuildError(f"another run is writing {self._path}")
        self._sign()

    def _check_dead(self) -> None:
        """Raise BuildError unless whoever wrote the lock is gone."""
        age = time.time() - self._files.getFileStatus(self._lock).getModificationTime() / 1000
        owner = self._owner()
        host, pid = owner.get("host", "an unknown host"), owner.get("pid")
        if host == socket.gethostname() and isinstance(pid, int):
            # In containers the process that was killed may have had the same number.
            is_dead = age > DEAD_AFTER_SECONDS if pid == os.getpid() else not _lives(pid, owner.get("started"))
        else:
            is_dead = age > DEAD_AFTER_SECONDS
        if not is_dead:
            raise BuildError(
                f"another run is writing {self._path}: process {pid} on {host}, which gave a sign of life"
                f" {max(age, 0):.0f} s ago"
            )

    def _owner(self) -> dict[str, Any]:
        stream = self._files.open(self._lock)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            return found if isinstance(found, dict) else {}
        return {}  # killed before it wrote who it is

    def _sign(self) -> None:
        stream = self._files.create(self._lock, True)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}
        stream.write(bytearray(json.dumps(owner).encode()))
        stream.close()

    def _give_signs(self, over: threading.Event) -> None:
        while not over.wait(SIGN_OF_LIFE_SECONDS):
            with contextlib.suppress(Py4JJavaError):  # the next sign may come through
                self._sign()

    def _name(self, *parts: str) -> str:
        return "/".join([self._path, *parts])

    def _hadoop_path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._name(*parts))


def _lives(pid: int, started: object) -> bool:
    """Whether there is a process with this number which started then, where both are known; numbers are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now_there = _started(pid)
    return started is None or now_there is None or now_there == started


def _started(pid: int) -> str | None:
    """Return when a process started, in ticks of which boot of the machine; None where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The second field is its name, which may have spaces and brackets in it.
        return f"{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]} {boot}"
    except (OSError, IndexError):
        return None
