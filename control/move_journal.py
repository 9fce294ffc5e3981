# SPDX-License-Identifier: Apache-2.0
"""What is kept beside a reassignment file: what its move has set, and the way back. And its lock.

Both are written before anything is changed. So whoever runs `verify` after a kill finds what is to be put back.
"""

from __future__ import annotations

import fcntl
import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from weir.control.errors import MoveError
from weir.planning.assignment import Brokers, Partition
from weir.planning.finish_by import RateBounds
from weir.planning.move_throttle import Claims
from weir.planning.reassignment_json import InvalidPlan, format_reassignment, parse_reassignment

_VERSION = 1
_SUFFIX = ".weir-move"


@dataclass(frozen=True, slots=True)
class Pacing:
    """How the rate of a move is kept: for a deadline (Unix time), or by what is free of a link (bytes/s).

    `lowest` and `highest` are its limits.
    """

    finish_by: float | None = None
    link_capacity: int | None = None
    lowest: int = 1
    highest: int | None = None

    @property
    def limits(self) -> RateBounds:
        """The rates that are allowed."""
        return RateBounds(self.lowest, self.highest)


@dataclass(frozen=True, slots=True)
class Journal:
    """What one move has set in which cluster, and how its rate is kept. `ended`: all of it was put back."""

    cluster_id: str
    claims: Claims = field(default_factory=Claims)
    ended: bool = False
    pacing: Pacing | None = None
    version: int = _VERSION


class JournalFile:
    """The journal of a plan's move, the plan that leads back from it, and the lock that one command has.

    They belong to the plan that has `plan_id`, not to its file's name: a script may write one plan after the other into
    the same file. They are beside that file, or in `state_folder()` where the plan came through a pipe.
    """

    def __init__(self, plan_file: Path, plan_id: str) -> None:
        if plan_file.absolute().parts[1:2] in (("dev",), ("proc",)):
            plan_file = plan_file.resolve()  # what a shell has put behind /dev/stdin may be a file
        is_file = plan_file.is_file()
        self._beside = plan_file if is_file else state_folder() / "plan"
        self.lock_path = plan_file if is_file else self._named(f".{plan_id}.lock")
        """What `locked` locks: one for all plans in one file."""
        self._plan_id = plan_id
        self.path = self._named(f".{plan_id}{_SUFFIX}")

    @property
    def rollback_path(self) -> Path:
        """Where the way back is, or will be: its name has the plan's id where another plan has the plain one."""
        own = self._own_rollback_path
        return own if own.exists() else self._beside.with_name(f"{self._beside.stem}.rollback.json")

    @property
    def _own_rollback_path(self) -> Path:
        return self._beside.with_name(f"{self._beside.stem}.{self._plan_id}.rollback.json")

    def earlier(self, cluster_id: str) -> list[JournalFile]:
        """Return the journals of other plans that were in the same file, or came through a pipe too, for a cluster."""
        found = []
        for path in sorted(self._beside.parent.glob(f"{glob.escape(self._beside.name)}.*{_SUFFIX}")):
            plan_id = path.name.removesuffix(_SUFFIX).rpartition(".")[2]
            other = JournalFile(self._beside, plan_id)
            with suppress(MoveError):  # another cluster's, or no journal
                if plan_id != self._plan_id and other.read(cluster_id) is not None:
                    found.append(other)
        return found

    def _named(self, ending: str) -> Path:
        return self._beside.with_name(f"{self._beside.name}{ending}")

    def read(self, cluster_id: str) -> Journal | None:
        """Return the journal, None where there is none. MoveError where it cannot be read, or is another cluster's."""
        try:
            journal = msgspec.json.decode(self.path.read_bytes(), type=Journal)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MoveError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise MoveError(
                f"{self.path}, which says what was set for the move, is damaged ({error}); remove it, and verify goes"
                " by the plan alone"
            ) from error
        if journal.version != _VERSION:
            raise MoveError(f"{self.path} was written by another version of weir")
        if journal.cluster_id != cluster_id:
            raise MoveError(
                f"{self.path} belongs to a move in the cluster {journal.cluster_id}, and this is the cluster"
                f" {cluster_id}"
            )
        return journal

    def write(self, journal: Journal) -> None:
        """Replace the journal. It is on the disk when this returns."""
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(journal), indent=1))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise MoveError(
                f"{self.path}, where the move's throttle is written down, cannot be written: {error.strerror or error}"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the plan's lock for as long as the block runs; it is given False where another command has it.

        The lock goes with the process, however that ends.
        """
        self.lock_path.parent.mkdir(parents=True, exist_ok=True)
        with self.lock_path.open("rb" if self.lock_path == self._beside else "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def read_rollback(self) -> Mapping[Partition, Brokers]:
        """Return the replicas before the plan; empty where nothing tells them."""
        with suppress(OSError, UnicodeDecodeError, InvalidPlan):
            return parse_reassignment(self.rollback_path.read_text(encoding="utf-8")).brokers
        return {}

    def write_rollback(self, before: Mapping[Partition, Brokers]) -> None:
        """Write the way back as a plan. That of another plan stays."""
        if self.rollback_path.exists() and self.read_rollback().keys() != before.keys():
            self._own_rollback_path.touch()
        try:
            self.rollback_path.write_text(format_reassignment(before) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise MoveError(f"the way back cannot be written to {self.rollback_path}: {reason}") from error


def state_folder() -> Path:
    """Return where a user's programs keep what is to outlive them (the XDG base directories)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "weir"
