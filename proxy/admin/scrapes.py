"""Scrapes of the metrics: however many ask, the event loop has the work of one.

The metrics are rendered once for all who ask meanwhile, and for those who ask in the nine times as long after. So
rendering takes a tenth of a core at most, and twenty scrapers get what one gets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.admin.exposition import is_openmetrics

MOST_UNREAD: Final = 32 * 2**20
"""The most bytes of older renderings that are kept for those who read them slowly."""

_PIECE: Final = 2**16  # bytes written in one turn of the event loop
_FRESH: Final = 9


@dataclass(eq=False, slots=True)
class _Rendered:
    """The metrics of one moment, in pieces, and how they are being written to some."""

    pieces: list[bytes] = field(default_factory=list)
    writings: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class Scrapes:
    """Renders `metrics`, given an Accept header, and writes them to those who ask.

    `clock` gives seconds of CPU of this thread.
    """

    def __init__(
        self, metrics: Callable[[str], Iterator[bytes]], clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._rendering = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._fresh: dict[bool, _Rendered] = {}
        self._written: list[_Rendered] = []  # those that somebody reads, the oldest first

    async def write(self, accept: str, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the metrics in pieces, one of all scrapers' in each turn of the event loop.

        Raises TimeoutError where the reader is so slow that too many newer ones would have to be kept.
        """
        rendered = await self._current(accept)
        async with asyncio.timeout(None) as writing:
            if not rendered.writings:
                self._written.append(rendered)
            rendered.writings.add(writing)
            try:
                for piece in rendered.pieces:
                    async with self._turn:
                        await asyncio.sleep(0)
                    await write(piece)
            finally:
                rendered.writings.remove(writing)
                if not rendered.writings:
                    self._written.remove(rendered)

    async def _current(self, accept: str) -> _Rendered:
        kind = is_openmetrics(accept)
        async with self._rendering:  # who has waited for another one's rendering takes it
            rendered = self._fresh.get(kind)
            if rendered is None:
                self._cut_slow()
                rendered, seconds = await self._render(accept)
                self._fresh[kind] = rendered
                asyncio.get_running_loop().call_later(_FRESH * seconds, self._fresh.pop, kind)
            return rendered

    async def _render(self, accept: str) -> tuple[_Rendered, float]:
        """Render in slices, between which the event loop runs. Returns also how long it took."""
        rendered, piece = _Rendered(), bytearray()
        seconds, began = 0.0, self._clock()
        for part in self._metrics(accept):
            piece += part
            if len(piece) >= _PIECE:
                rendered.pieces.append(bytes(piece))
                piece.clear()
            seconds += self._clock() - began
            await asyncio.sleep(0)
            began = self._clock()
        rendered.pieces.append(bytes(piece))
        return rendered, seconds

    def _cut_slow(self) -> None:
        """End the oldest writings, until what is kept for the others is within the bound."""
        unread = 0
        for rendered in reversed(self._written):
            unread += rendered.size
            if unread > MOST_UNREAD:
                for writing in rendered.writings:
                    writing.reschedule(asyncio.get_running_loop().time())
