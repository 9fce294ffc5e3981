# SPDX-License-Identifier: Apache-2.0
"""When Python looks for reference cycles among all objects: the process stands still meanwhile.

With 50,000 topics on a link that takes half a second. But links make no cycles that outlive them: what a link keeps is
freed when it ends, without a look. So only young objects are looked at as a rule. All of them are when no connection is
open; or when memory has grown by so much that something else may have made cycles.

Memory that is free goes back to the system now and then: by itself glibc keeps all that lies below a block in use.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_YOUNG: Final = 1_000, 5
"""When young objects are looked at: after so many new ones, and after so many of these looks again what is left.

So a look takes in 6,000 objects at most, in about 3 ms.
"""

_NEVER: Final = 2**31 - 1

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl gives memory back by itself

CHECK_SECONDS: Final = 10.0
LEAST_GROWTH: Final = 256 * 2**20
"""The least growth of memory (bytes) since the last look at everything that causes another one."""


def _give_back_memory() -> None:
    """It takes 0.7 ms where there are 350 MB to give back, and some microseconds where there is nothing."""
    if _trim is not None:
        _trim(0)


@dataclass(eq=False)
class Collector:
    """Looks at all objects when there was no connection in two checks, or when `resident` bytes have doubled.

    `is_idle` says whether no connection is open. `look` does it. `give_back` gives free memory back in each check.
    """

    _is_idle: Callable[[], bool]
    _resident: Callable[[], int]
    _look: Callable[[], object] = gc.collect
    _give_back: Callable[[], None] = _give_back_memory
    _resident_then: int = 0  # after the last look
    _looks_then: int = 0
    _was_idle: bool = False
    _thresholds: tuple[int, int, int] = field(default_factory=gc.get_threshold)
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take over from Python. What exists now stays, so it is never looked at again."""
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_YOUNG, _NEVER)
        gc.freeze()
        self._note()
        self._wait()

    def stop(self) -> None:
        """Let Python decide again when it looks at objects."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()

    def check(self) -> None:
        """Look at everything if that is due."""
        was_idle, self._was_idle = self._was_idle, self._is_idle()
        is_quiet = was_idle and self._was_idle and _young_looks() > self._looks_then
        is_due = is_quiet or self._resident() > self._resident_then + max(self._resident_then, LEAST_GROWTH)
        if is_due:
            self._look()
        self._give_back()
        if is_due:
            self._note()

    def _note(self) -> None:
        self._resident_then, self._looks_then = self._resident(), _young_looks()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_again)

    def _check_again(self) -> None:
        self.check()
        self._wait()


def resident_bytes() -> int:
    """Return the memory that this process has now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _young_looks() -> int:
    """How often what is left of young objects has become old."""
    collections: int = gc.get_stats()[1]["collections"]
    return collections
