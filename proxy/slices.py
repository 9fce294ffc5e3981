"""Long loops of the sidecar's own tasks, during which every connection goes on."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


async def in_slices(items: Iterable[_Item], size: int) -> AsyncIterator[_Item]:
    """Yield `items`; after each `size` of them the event loop runs. They must not change meanwhile."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)
