# SPDX-License-Identifier: Apache-2.0
"""A link to a broker that tells clients to wait, and sees what they do: who honours `throttle_time_ms`?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final, NamedTuple

from weir.lab.network import LOOPBACK
from weir.protocol.header import FETCH, FIXED_HEADER, PRODUCE, SIZE
from weir.protocol.produce_response import with_throttle_time

TIMES: Final = 3
_LOOKED_SECONDS: Final = 4.0
_FLEXIBLE_FETCH: Final = 12  # from this version on a tag buffer comes before throttle_time_ms


class Seen(NamedTuple):
    """A request, or an answer whose client is told to wait. `connection` is a number, `at` monotonic seconds."""

    at: float
    connection: int
    api_key: int
    version: int
    is_told: bool


class TellingLink:
    """Tells `milliseconds` in the first few answers to a Produce or Fetch, and remembers what passes."""

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds
        self._left = {PRODUCE: TIMES, FETCH: TIMES}
        self._connections = 0
        self.seen: list[Seen] = []

    async def serve(self, port: int, upstream: int, ready: threading.Event, ends: asyncio.Event) -> None:
        """Lead connections from `port` to `upstream`."""
        open_ones: list[asyncio.StreamWriter] = []

        async def connected(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
            broker, to_broker = await asyncio.open_connection(LOOPBACK, upstream)
            open_ones.extend([to_client, to_broker])
            self._connections += 1
            number, asked = self._connections, deque[tuple[int, int]]()
            await asyncio.gather(
                self._requests(client, to_broker, number, asked), self._answers(broker, to_client, number, asked)
            )

        server = await asyncio.start_server(connected, LOOPBACK, port)
        ready.set()
        await ends.wait()
        server.close()
        for one in open_ones:
            one.transport.abort()
        await asyncio.sleep(0.1)

    async def _requests(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, number: int, asked: deque[tuple[int, int]]
    ) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(source)
                api_key, version, _ = FIXED_HEADER.unpack_from(frame, SIZE.size)
                asked.append((api_key, version))
                self.seen.append(Seen(time.monotonic(), number, api_key, version, is_told=False))
                target.write(frame)
        target.close()

    async def _answers(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, number: int, asked: deque[tuple[int, int]]
    ) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(source)
                api_key, version = asked.popleft()
                self._left[api_key] = left = self._left.get(api_key, 0) - 1
                if left >= 0 and api_key == PRODUCE:
                    frame = with_throttle_time(frame, version, self._milliseconds)
                elif left >= 0 and version:
                    at = 2 * SIZE.size + (version >= _FLEXIBLE_FETCH)
                    frame = frame[:at] + SIZE.pack(self._milliseconds) + frame[at + SIZE.size :]
                target.write(frame)
                if left >= 0:
                    self.seen.append(Seen(time.monotonic(), number, api_key, version, is_told=True))
        target.close()

    def pauses(self, api_key: int) -> list[float]:
        """Return the longest silences (seconds) of requests after answers of their kind that told, on their connection.

        Those that were under way come at once.
        """
        found = []
        for told in [one for one in self.seen if one.is_told and one.api_key == api_key]:
            later = [one for one in self.seen if one.at > told.at and not one.is_told and one[1:3] == told[1:3]]
            times = [told.at, *(one.at for one in later if one.at < told.at + _LOOKED_SECONDS)]
            found.append(max([after - before for before, after in pairwise(times)], default=0.0))
        return found

    def beside(self, api_key: int, seconds: float) -> int:
        """Return how many requests of other kinds came on a connection within so many seconds of such an answer."""
        told = [(one.connection, one.at) for one in self.seen if one.is_told and one.api_key == api_key]
        others = [one for one in self.seen if not one.is_told and one.api_key != api_key]
        return sum(
            any(number == one.connection and at < one.at < at + seconds for number, at in told) for one in others
        )


async def _frame(source: asyncio.StreamReader) -> bytes:
    size = await source.readexactly(SIZE.size)
    return size + await source.readexactly(SIZE.unpack(size)[0])


@contextmanager
def telling(port: int, upstream: int, milliseconds: int) -> Iterator[TellingLink]:
    """Run such a link in a thread."""
    link, ready = TellingLink(milliseconds), threading.Event()
    loop, ends = asyncio.new_event_loop(), asyncio.Event()

    thread = threading.Thread(target=lambda: loop.run_until_complete(link.serve(port, upstream, ready, ends)))
    thread.start()
    try:
        assert ready.wait(10)
        yield link
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join(10)
        loop.close()
