# SPDX-License-Identifier: Apache-2.0
"""Has the kernel kill a process for its memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

_ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A control group whose processes may not take more memory; version 1 or 2 of control groups."""

    def __init__(self, name: str) -> None:
        """Raises OSError where none can be made."""
        self._is_v1 = (_ROOT / "memory").is_dir()
        parent = _ROOT / "memory" if self._is_v1 else _ROOT
        if not self._is_v1:
            (parent / "cgroup.subtree_control").write_text("+memory")
        self._folder = parent / name
        self._folder.mkdir()

    def confine(self, pid: int, more: int) -> None:
        """Let a process take `more` bytes from now on. What it has counts where it was, outside of this group."""
        (self._folder / ("memory.limit_in_bytes" if self._is_v1 else "memory.max")).write_text(str(more))
        (self._folder / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for the group's limit."""
        events = (self._folder / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in events.splitlines() if line.split()[0] == "oom_kill")

    def remove(self) -> None:
        """Remove the group; the kernel does so only when its process has gone."""
        deadline = monotonic() + 5
        while self._folder.is_dir() and monotonic() < deadline:
            with suppress(OSError):
                self._folder.rmdir()
            sleep(0.05)
