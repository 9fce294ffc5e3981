"""What is kept beside a reassignment file: what its move has set, and the way back. And its lock.

Both are written before anything is changed. So whoever runs `verify` after a kill finds what is to be put back.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from weir.control.errors import MoveError
from weir.planning.assignment import Brokers, Partition
from weir.planning.finish_by import Limits
from weir.planning.move_throttle import Claims
from weir.planning.reassignment_json import InvalidPlan, format_reassignment, parse_reassignment

_VERSION = 1


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
    def limits(self) -> Limits:
        """The rates that are allowed."""
        return Limits(self.lowest, self.highest)


@dataclass(frozen=True, slots=True)
class Journal:
    """What one move has set in which cluster, and how its rate is kept. `ended`: all of it was put back."""

    cluster_id: str
    claims: Claims = field(default_factory=Claims)
    ended: bool = False
    pacing: Pacing | None = None
    version: int = _VERSION


class JournalFile:
    """The journal of the move in `plan_file`, the plan that leads back from it, and the lock that one command has."""

    def __init__(self, plan_file: Path) -> None:
        self._plan_file = plan_file
        self.path = plan_file.with_name(f"{plan_file.name}.weir-move")
        self.rollback_path = plan_file.with_name(f"{plan_file.stem}.rollback.json")

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
        with self._plan_file.open("rb") as file:
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
        """Write the way back as a plan."""
        try:
            self.rollback_path.write_text(format_reassignment(before) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise MoveError(f"the way back cannot be written to {self.rollback_path}: {reason}") from error
