# SPDX-License-Identifier: Apache-2.0
"""A folder of tables, as one run writes it. Others may read and write it at any time.

Each run writes a day into a folder of its own, `date=2026-11-02/<run>/<table>/`, and never changes it afterwards. When
all is there it replaces `date=2026-11-02/current.json`, which names that folder: from then on readers see the new day,
all of it. A run that is killed has changed nothing.

Runs of the same day do not disturb each other, and need no lock. A run does not replace the pointer of one that began
after it, as that one has seen all samples that were there before. Which began later is told by a number: that of the
pointer which a run has met, and 1; of runs with the same number by their names, and so by their clocks.

The run that the last pointer named stays, for those who still read it; the one before it is deleted. Folders of killed
runs are deleted a day after those began.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from weir.pipeline.tables import POINTER

ABANDONED_AFTER: Final = timedelta(days=1)
"""No run takes that long: what is older and not in use was left by a killed one."""

ORDER: Final = ("broker_id", "side", "topic", "partition", "client_id", "window_start", "start", "end")
"""Rows are sorted by those of these columns that they have, so that readers skip what they do not need."""

_RUN_BEGAN: Final = "%Y%m%dT%H%M%SZ"


class Files(Protocol):
    """What a file system does below one folder. What is not there is not read, listed or deleted, and no error."""

    def read(self, *path: str) -> bytes | None: ...

    def replace(self, contents: bytes, *path: str) -> None:
        """Readers see all of the contents, or those before."""

    def folders(self, *path: str) -> list[str]:
        """Return the names of the folders in a folder."""

    def delete(self, *path: str) -> None: ...


class LocalFiles:
    """Files of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, *path: str) -> bytes | None:
        try:
            return self._folder.joinpath(*path).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, contents: bytes, *path: str) -> None:
        file = self._folder.joinpath(*path)
        unfinished = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
        unfinished.write_bytes(contents)
        unfinished.replace(file)

    def folders(self, *path: str) -> list[str]:
        folder = self._folder.joinpath(*path)
        return [found.name for found in folder.iterdir() if found.is_dir()] if folder.is_dir() else []

    def delete(self, *path: str) -> None:
        shutil.rmtree(self._folder.joinpath(*path), ignore_errors=True)


class Runs:
    """What a run does with the folders of days."""

    def __init__(self, files: Files, utc: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._files = files
        self._utc = utc
        self.run = f"{utc():{_RUN_BEGAN}}-{uuid.uuid4().hex[:8]}"
        """A name that sorts by when the run began."""
        self._number = 1

    @contextlib.contextmanager
    def day(self, day: date) -> Iterator[None]:
        """Delete what the run has written of a day unless readers see it when the block ends."""
        self._number = 1 + self.current(day).get("number", 0)
        try:
            yield
        finally:
            if self.current(day).get("run") != self.run:
                self._files.delete(of_day(day), self.run)

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
        self._files.replace(json.dumps(contents | dict(facts)).encode(), of_day(day), POINTER)
        kept = {self.run, before.get("run")}
        if (old := before.get("before")) and old not in kept:
            self._files.delete(of_day(day), old)
        self.delete_abandoned(of_day(day), kept)

    def current(self, day: date) -> dict[str, Any]:
        """Return what was published of a day last; nothing where nothing was."""
        return dict(json.loads(self._files.read(of_day(day), POINTER) or b"{}"))

    def days(self) -> list[date]:
        """Return the days that have a folder, in order."""
        found = []
        for name in self._files.folders():
            with contextlib.suppress(ValueError):
                if name.startswith("date="):
                    found.append(date.fromisoformat(name.removeprefix("date=")))
        return sorted(found)

    def delete_before(self, first: date) -> None:
        """Delete the tables of all days before `first`."""
        for day in self.days():
            if day < first:
                self._files.delete(of_day(day))

    def delete_abandoned(self, folder: str, kept: Collection[str | None] = ()) -> None:
        """Delete the folders of runs that are not to be `kept` and began long ago."""
        oldest = f"{self._utc() - ABANDONED_AFTER:{_RUN_BEGAN}}"
        for name in self._files.folders(folder):
            if name not in kept and name < oldest:
                self._files.delete(folder, name)


def of_day(day: date) -> str:
    """Return the name of a day's folder."""
    return f"date={day}"
