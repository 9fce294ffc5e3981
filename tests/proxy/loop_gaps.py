# SPDX-License-Identifier: Apache-2.0
"""How long the event loop was not free for anything else."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


async def longest_gaps(work: Awaitable[T]) -> tuple[T, list[float]]:
    """Await `work`; return what it returns, and the CPU time (s) of each gap in which nothing else could run.

    The longest comes first.
    """
    moments: list[float] = []

    async def watch() -> None:
        while True:
            moments.append(time.thread_time())
            await asyncio.sleep(0)

    gc.collect()
    gc.freeze()  # as the server does: the rest of the test run is not to be searched for garbage here
    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        done = await work
        moments.append(time.thread_time())
    finally:
        watcher.cancel()
        gc.unfreeze()
    return done, sorted((later - earlier for earlier, later in pairwise(moments)), reverse=True)
