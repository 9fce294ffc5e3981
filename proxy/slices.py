"""Long loops of the sidecar's own tasks, during which every connection goes on, and waits between them."""

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
