"""Writes tables into a folder on any Hadoop file system.

There is one writer at a time, and days are replaced as a whole.

A day's tables are written below `_weir/`, which readers skip. When all of them are there, a marker is written, and they
are moved to their places. A run that is killed before the marker has changed nothing. One that is killed after it is
finished by the next run, before that does anything else.

A file system may be an object store such as S3. There a folder is renamed by copying its files and deleting the old
ones, and files cannot be created exclusively. So the marker lists the files, by which a folder that was moved in part
is recognised. And a writer holds the lock only if it still finds its own name in it, after it was written and again
before tables are moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from time import sleep
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import BuildError

SIGN_OF_LIFE_SECONDS: Final = 10.0
DEAD_AFTER_SECONDS: Final = 60.0
"""A writer that has not signed its lock for this long is gone. One on this machine is looked up by its process."""
SETTLE_SECONDS: Final = 3.0
"""If two writers create a lock at the same time, the later one has it. This is how long the earlier one watches for
that."""

_WORK: Final = "_weir"
_READY: Final = "ready-"
_KEPT: Final = "kept-"
_CLOCK: Final = "clock-"
_CREATE_EXCLUSIVELY: Final = frozenset({"file", "hdfs"})


class Output:
    """The folder `path`.

    Others may read it at any time, but a table's day is missing for a moment while it is replaced.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._path = path.rstrip("/") or "/"
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._hadoop_path().getFileSystem(configuration)
        self._lock = self._hadoop_path(_WORK, "lock")
        self._run = uuid.uuid4().hex
        self._signing = threading.Lock()  # while it is being written, the lock may be empty

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer.

        First finishes or undoes what a killed one left; BuildError where another one is at work.
        """
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
            if self._is_own():
                self._files.delete(self._lock, False)

    @contextlib.contextmanager
    def kept(self, name: str, frame: DataFrame) -> Iterator[DataFrame]:
        """Compute `frame` once, and keep its rows in files until the block ends, so that they take no memory."""
        path = self._name(_WORK, _KEPT + name)
        try:
            frame.write.mode("overwrite").parquet(path)
            yield frame.sparkSession.read.schema(frame.schema).parquet(path)
        finally:
            self._files.delete(self._hadoop_path(_WORK, _KEPT + name), True)

    def stage(self, table: str, day: date, frame: DataFrame) -> int:
        """Write a day's table where readers do not see it. Returns its number of rows."""
        staged = self._name(_WORK, "staging", table, f"date={day}")
        frame.write.mode("overwrite").parquet(staged)
        return frame.sparkSession.read.schema(frame.schema).parquet(staged).count()

    def commit(self, tables: Sequence[str], day: date) -> None:
        """Move the day's staged tables to their places; BuildError where another run has taken over."""
        if not self._is_own():
            raise BuildError(f"another run has taken over {self._path}: this one gave no sign of life for too long")
        files = {table: self._names(self._staged(table, day)) for table in tables}
        self._write(self._hadoop_path(_WORK, f"{_READY}{day}"), files)
        self._move(files, day)

    def _move(self, files: Mapping[str, Sequence[str]], day: date) -> None:
        """Move `files` of tables; an earlier run may have moved some of them."""
        for table, names in files.items():
            staged, target = self._staged(table, day), self._hadoop_path(table, f"date={day}")
            left = self._names(staged)
            if left and left == names:
                self._replace(staged, target)
            else:  # a missing file is in its place already
                for name in left:
                    self._replace(self._child(staged, name), self._child(target, name))
        self._files.delete(self._hadoop_path(_WORK, f"{_READY}{day}"), False)
        self._files.delete(self._hadoop_path(_WORK, "staging"), True)

    def _replace(self, staged: Any, target: Any) -> None:
        self._files.delete(target, True)
        self._files.mkdirs(target.getParent())
        if not self._files.rename(staged, target):
            raise BuildError(f"{staged} cannot be moved to {target}")

    def _recover(self) -> None:
        for status in self._files.listStatus(self._hadoop_path(_WORK)):
            path = status.getPath()
            if path.getName().startswith((_KEPT, _CLOCK)):
                self._files.delete(path, True)
            if path.getName().startswith(_READY):
                # a run that was killed while it wrote the marker had moved nothing
                self._move(self._read(path), date.fromisoformat(path.getName().removeprefix(_READY)))
        self._files.delete(self._hadoop_path(_WORK, "staging"), True)

    def _take_lock(self) -> None:
        self._files.mkdirs(self._hadoop_path(_WORK))
        if not self._create_lock():
            self._check_dead()
            self._files.delete(self._lock, False)
            if not self._create_lock():
                raise BuildError(f"another run is writing {self._path}")
        self._write_lock()
        if self._files.getScheme() not in _CREATE_EXCLUSIVELY:
            sleep(SETTLE_SECONDS)
        if not self._is_own():
            raise BuildError(f"another run is writing {self._path}")

    def _create_lock(self) -> bool:
        try:
            return bool(self._files.createNewFile(self._lock))
        except Py4JJavaError:
            if self._files.exists(self._lock):  # created since it was looked for
                return False
            raise

    def _check_dead(self) -> None:
        """Raise BuildError unless the writer of the lock is gone."""
        age = self._silence()
        owner = self._read(self._lock)
        host, pid = owner.get("host", "an unknown host"), owner.get("pid")
        if host == socket.gethostname() and isinstance(pid, int):
            # in containers the killed process may have had the same number as this one
            is_dead = age > DEAD_AFTER_SECONDS if pid == os.getpid() else not _lives(pid, owner.get("started"))
        else:
            is_dead = age > DEAD_AFTER_SECONDS
        if not is_dead:
            raise BuildError(
                f"another run is writing {self._path}: process {pid} on {host}, which gave a sign of life"
                f" {max(age, 0):.0f} s ago"
            )

    def _silence(self) -> float:
        """Return the seconds since the lock was signed, by the file system's clock. This machine's may differ."""
        probe = self._hadoop_path(_WORK, f"{_CLOCK}{self._run}")
        self._files.create(probe, True).close()
        try:
            now, signed = (self._files.getFileStatus(path).getModificationTime() for path in (probe, self._lock))
        finally:
            self._files.delete(probe, False)
        return float(now - signed) / 1000

    def _is_own(self) -> bool:
        """Whether this run still has the lock: after a long silence another one may have taken it."""
        with self._signing:
            return bool(self._read(self._lock).get("run") == self._run)

    def _write_lock(self) -> None:
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid()), "run": self._run}
        with self._signing:
            self._write(self._lock, owner)

    def _give_signs(self, over: threading.Event) -> None:
        while not over.wait(SIGN_OF_LIFE_SECONDS):
            with contextlib.suppress(Py4JJavaError):  # the next signature may succeed
                if self._is_own():
                    self._write_lock()

    def _read(self, path: Any) -> dict[str, Any]:
        """Return what `_write` has written; an empty dictionary where there is no file, or its writer was killed."""
        if not self._files.exists(path):
            return {}
        stream = self._files.open(path)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            return found if isinstance(found, dict) else {}
        return {}

    def _write(self, path: Any, contents: Mapping[str, Any]) -> None:
        stream = self._files.create(path, True)
        stream.write(bytearray(json.dumps(contents).encode()))
        stream.close()

    def _names(self, folder: Any) -> list[str]:
        """Return the names of a folder's files, sorted; none where there is no folder."""
        if not self._files.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(folder))

    def _staged(self, table: str, day: date) -> Any:
        return self._hadoop_path(_WORK, "staging", table, f"date={day}")

    def _child(self, folder: Any, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(folder, name)

    def _name(self, *parts: str) -> str:
        return "/".join([self._path, *parts])

    def _hadoop_path(self, *parts: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._name(*parts))


def _lives(pid: int, started: object) -> bool:
    """Whether a process with this number exists that started at `started`; numbers are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now_there = _started(pid)
    return started is None or now_there is None or now_there == started


def _started(pid: int) -> str | None:
    """Return when a process started, in ticks since boot, with the boot's id; None where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # the second field is the process's name, which may have spaces and brackets
        return f"{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]} {boot}"
    except (OSError, IndexError):
        return None
