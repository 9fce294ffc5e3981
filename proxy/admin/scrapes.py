"""Scrapes of the metrics: however many ask, the event loop has the work of one.

The metrics are rendered once for all who ask meanwhile. Where that takes long, those who ask soon after get the same,
so that rendering takes a tenth of a core at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from weir.proxy.admin.exposition import is_openmetrics

MOST_UNREAD: Final = 32 * 2**20
"""How many bytes of renderings, the last of them whole, are kept for those who read slowly."""

_PIECE: Final = 2**16  # bytes written in one turn of the event loop
_CHEAP_SECONDS: Final = 0.01  # a rendering that takes less, of some 4,000 series, is made anew for whoever asks next
_FRESH: Final = 9  # a longer one is given to all who ask in so many times as long after it


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
        self._turn = asyncio.Lock()
        self._current: dict[bool, asyncio.Task[_Rendered]] = {}  # by whether it is OpenMetrics
        self._written: list[_Rendered] = []  # those that somebody reads, the oldest first

    async def write(self, accept: str, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the metrics in pieces, one of all scrapers' in each turn of the event loop.

        Raises TimeoutError where the reader is so slow that too many newer ones would have to be kept.
        """
        is_open = is_openmetrics(accept)
        if (rendering := self._current.get(is_open)) is None:
            self._cut_slow()
            rendering = self._current[is_open] = asyncio.create_task(self._render(accept, is_open))
        rendered = await asyncio.shield(rendering)  # shielded, as others wait for it too
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

    async def _render(self, accept: str, is_open: bool) -> _Rendered:
        """Render in slices, between which the event loop runs."""
        rendered, piece = _Rendered(), bytearray()
        seconds, began = 0.0, self._clock()
        try:
            for part in self._metrics(accept):
                piece += part
                if len(piece) >= _PIECE:
                    rendered.pieces.append(bytes(piece))
                    piece.clear()
                seconds += self._clock() - began
                await asyncio.sleep(0)
                began = self._clock()
            rendered.pieces.append(bytes(piece))
        except BaseException:
            del self._current[is_open]
            raise
        fresh_seconds = _FRESH * seconds if seconds >= _CHEAP_SECONDS else 0.0
        asyncio.get_running_loop().call_later(fresh_seconds, self._current.pop, is_open)
        return rendered

    def _cut_slow(self) -> None:
        """End the writings of what is older than the newest MOST_UNREAD bytes."""
        unread = 0
        for rendered in reversed(self._written):
            if unread >= MOST_UNREAD:
                for writing in rendered.writings:
                    if not writing.expired():
                        writing.reschedule(asyncio.get_running_loop().time())
            unread += rendered.size
