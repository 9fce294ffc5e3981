# SPDX-License-Identifier: Apache-2.0
"""The sidecar's own tasks: long loops, during which every connection goes on, waits between them, and their end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


async def in_slices(items: Iterable[_Item], size: int) -> AsyncIterator[_Item]:
    """Yield `items`; after each `size` of them the event loop runs. They must not change meanwhile."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, or until the time is over; None: for as long as it takes."""
    with contextlib.suppress(TimeoutError):
        # not wait_for: in Python 3.11 it loses a cancellation that comes together with the event
        async with asyncio.timeout(seconds):
            await event.wait()


async def stopped(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait for its end."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
