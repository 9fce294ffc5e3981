# SPDX-License-Identifier: Apache-2.0
"""Writes samples into files for batch jobs: gzipped JSON lines in date= and hour= folders (UTC).

A file that is being written has a name that begins with a dot, which jobs skip. When it is finished, it is synced and
renamed. Each sample is a gzip member of its own, so a file left by a killed process is whole up to its last sample; the
next start finishes it. All blocking work is done in one thread, which cannot keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from weir.proxy.export.sample import ExportStats, Sample
from weir.proxy.log import EventLog, innermost_frame, os_error_reason

MOST_WAITING: Final = 3
"""The most samples that wait for the thread. While a disk hangs, further ones are dropped."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_COMPRESSION_LEVEL: Final = 4  # level 6 makes files of sample lines 6 % smaller, but takes 1.6 times as long
_PIECE: Final = 1 << 16


class FinishedFile(NamedTuple):
    """A file that jobs may read; `samples` is the number of samples in it."""

    path: Path
    size: int
    samples: int


@dataclass(eq=False)
class Folder:
    """One broker's files in `directory`. Files of other brokers in it are left alone.

    Everything here may block, so it must not run in an event loop. `clock` gives monotonic seconds, for
    `rotate_seconds`.
    """

    directory: Path
    _broker_id: int
    _start_id: str
    _max_disk_bytes: int
    _rotate_seconds: float
    _rotate_bytes: int
    _clock: Callable[[], float] = time.monotonic
    dropped: int = 0
    """Samples in files that were dropped to keep the rest within the bound."""
    _finished: deque[FinishedFile] = field(default_factory=deque)  # oldest first
    _finished_bytes: int = 0
    _open: _OpenFile | None = None
    _has_leftovers: bool = True

    def __post_init__(self) -> None:
        self._prefix = f"broker-{self._broker_id}-"
        self._name = f"{self._prefix}{self._start_id}"

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return self._finished_bytes + (0 if self._open is None else self._open.size)

    def recover(self) -> None:
        """Finish the files that ended processes left open, as far as possible, and find all finished ones."""
        if not self._has_leftovers:
            return
        for path in sorted(self.directory.glob(f"date=*/hour=*/.{self._prefix}*.tmp")):
            with contextlib.suppress(OSError):  # a file that cannot be finished must not keep others from being written
                _finish_leftover(path)
        finished = [_finished(path) for path in self.directory.glob(f"date=*/hour=*/{self._prefix}*.jsonl.gz")]
        self._finished = deque(sorted(file for file in finished if file is not None))
        self._finished_bytes = sum(file.size for file in self._finished)
        self._has_leftovers = False
        self._make_room(0)

    def write(self, sample: Sample) -> None:
        """Append a sample. Raises OSError; nothing of the sample is then in the file."""
        self.recover()
        member = _compressed(sample)
        folder = self.directory / f"date={sample.ended_at:%Y-%m-%d}" / f"hour={sample.ended_at:%H}"
        now = self._clock()
        if self._open is not None and (
            self._open.path.parent != folder
            or self._open.size + len(member) > self._rotate_bytes
            or now - self._open.began_at >= self._rotate_seconds
        ):
            self.finish()
        self._make_room(len(member))
        if self._open is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._open = _OpenFile(folder / f".{self._name}-{sample.key.sequence:08}.tmp", now)
        try:
            self._open.append(member)
        except _Damaged as error:
            self._abandon()
            raise error.cause from error

    def finish(self) -> None:
        """Finish the open file, so that jobs read it. Raises OSError; it is tried again with the next sample."""
        if self._open is None:
            return
        try:
            finished = self._open.finish()
        except OSError:
            self._abandon()
            raise
        self._open = None
        if finished is not None:
            self._finished.append(finished)
            self._finished_bytes += finished.size

    def _abandon(self) -> None:
        """Close the open file as it is; `recover` finishes it."""
        if self._open is not None:
            self._open.close()
        self._open = None
        self._has_leftovers = True

    def _make_room(self, size: int) -> None:
        """Drop the oldest files until `size` more bytes are within the bound."""
        while self._finished and self.size + size > self._max_disk_bytes:
            oldest = self._finished[0]
            with contextlib.suppress(FileNotFoundError):  # someone who collects samples has removed it
                oldest.path.unlink()
                self.dropped += oldest.samples
            self._finished.popleft()
            self._finished_bytes -= oldest.size
            with contextlib.suppress(OSError):  # other files are in the folder
                oldest.path.parent.rmdir()
                oldest.path.parent.parent.rmdir()
        if self.size + size > self._max_disk_bytes:
            raise OSError(errno.EFBIG, f"one sample has {size} bytes, more than the bound leaves")


class _Damaged(Exception):
    """A file has a part of a sample at its end, after a failed write."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class _OpenFile:
    """A file that is being written. Its lock shows other processes that the writer lives."""

    def __init__(self, path: Path, now: float) -> None:
        self.path = path
        self.began_at = now
        self.size = 0
        self._samples = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def append(self, member: bytes) -> None:
        """Write one sample. Raises OSError if nothing of it is in the file, _Damaged if a part of it is and stays."""
        left = memoryview(member)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self.size)
                os.lseek(self._descriptor, self.size, os.SEEK_SET)
            except OSError:
                raise _Damaged(error) from error
            raise
        self.size += len(member)
        self._samples += 1

    def finish(self) -> FinishedFile | None:
        """Sync and rename the file. None where nothing was written; the file is then removed."""
        finished = _finish(self.path, self._descriptor, self.size, self._samples)
        self.close()
        return finished

    def close(self) -> None:
        """Close the file as it is."""
        os.close(self._descriptor)


def _finish(path: Path, descriptor: int, size: int, samples: int) -> FinishedFile | None:
    if not samples:
        path.unlink()
        return None
    os.fsync(descriptor)
    target = path.with_name(f"{path.name.removeprefix('.').removesuffix('.tmp')}-{samples}.jsonl.gz")
    path.rename(target)
    for folder in path.parents[:3]:  # the names have to be on disk too: of the hour, the date, and the directory itself
        entry = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)
    return FinishedFile(target, size, samples)


def _finish_leftover(path: Path) -> None:
    """Cut an ended process's file after its last whole sample and finish it; leave a locked file as it is."""
    # Others may have put something there under such a name: a link to a file of theirs must not be cut.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process that writes it lives
        ends = list(_member_ends(descriptor))
        size = ends[-1] if ends else 0
        os.ftruncate(descriptor, size)
        _finish(path, descriptor, size, len(ends))
    finally:
        os.close(descriptor)


def _member_ends(descriptor: int) -> Iterator[int]:
    """Yield where each whole gzip member of a file ends, in bytes from the file's begin."""
    read = 0
    left = b""
    member = zlib.decompressobj(_GZIP)
    while piece := left or os.read(descriptor, _PIECE):
        if not left:
            read += len(piece)
        try:
            member.decompress(piece)
        except zlib.error:
            return
        left = member.unused_data
        if member.eof:
            yield read - len(left)
            member = zlib.decompressobj(_GZIP)


def _finished(path: Path) -> FinishedFile | None:
    """Return a file by what its name tells; None for one that was not written here, or is gone."""
    samples = re.search(r"-(\d+)\.jsonl\.gz$", path.name)
    with contextlib.suppress(FileNotFoundError):
        return FinishedFile(path, path.stat().st_size, int(samples[1])) if samples else None
    return None


def _compressed(sample: Sample) -> bytes:
    """Return one gzip member. While zlib works on a chunk, other threads run."""
    compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _GZIP)
    return b"".join([*(compressor.compress(chunk) for chunk in sample.chunks), compressor.flush()])


class FileSink:
    """Writes samples to a Folder in a thread. Has to be made in the event loop that it is used in."""

    def __init__(self, folder: Folder, stats: ExportStats, log: EventLog) -> None:
        self._folder = folder
        self._stats = stats
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Sample | None] = SimpleQueue()
        self._waiting = 0
        self._ended = asyncio.Event()
        stats.add_sink("file")
        threading.Thread(target=self._run, name="samples", daemon=True).start()

    def offer(self, sample: Sample) -> None:
        """Have a sample written, or drop it while the disk has not taken earlier ones."""
        if self._waiting >= MOST_WAITING:
            self._stats.dropped["file", "busy"] += 1
            self._log.fault("samples_busy", str(self._folder.directory), effect="the sample is lost")
            return
        self._waiting += 1
        self._queue.put(sample)

    def count_failed(self) -> None:
        self._stats.dropped["file", "failed"] += 1

    async def close(self, seconds: float) -> None:
        """Have everything written and the open file finished, within `seconds`."""
        self._queue.put(None)
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            self._stats.dropped["file", "closed"] += self._waiting
            self._log.fault("samples_lost", str(self._folder.directory), samples=self._waiting)

    def _written(self, error: Exception | None, dropped: int) -> None:
        self._waiting -= 1
        if error is None:
            self._stats.written["file"] += 1
            self._stats.lost.pop("file", None)
        else:
            self._stats.dropped["file", "write_failed"] += 1
            self._stats.lost["file"] = os_error_reason(error) if isinstance(error, OSError) else repr(error)
            self._report(error, "the sample is lost")
        self._stats.dropped["file", "disk_bound"] += dropped

    def _report(self, error: Exception, effect: str) -> None:
        is_expected = isinstance(error, OSError)
        reason = os_error_reason(error) if isinstance(error, OSError) else repr(error)
        at = {} if is_expected else {"at": innermost_frame(error)}
        self._log.fault("samples_not_written", str(self._folder.directory), reason=reason, effect=effect, **at)

    # In the thread

    def _run(self) -> None:
        self._attempt(self._folder.recover)
        while (sample := self._queue.get()) is not None:
            before = self._folder.dropped
            error = None
            try:
                self._folder.write(sample)
            except Exception as failure:  # noqa: BLE001 - a bug that one sample meets may not end all later ones
                error = failure
            self._post(self._written, error, self._folder.dropped - before)
        self._attempt(self._folder.finish)
        self._post(self._ended.set)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - as above
            self._post(self._report, error, "files of samples stay unfinished until the next try")

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for news
            self._loop.call_soon_threadsafe(call, *arguments)
