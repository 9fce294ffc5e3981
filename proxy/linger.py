"""The end of a drained connection: its client closes first, or what was sent to it last could be lost to a reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.buffers import SMALL_BUFFER_SIZE
from proxy.transport import Transport

LINGER_SECONDS: Final = 1.0
"""How long a drained client has for closing its end."""


class Linger:
    """Throws away what `client` still sends, until it ends its connection or the time is over: then calls `on_end`."""

    __slots__ = ("_client", "_on_end", "_timer")

    def __init__(self, client: Transport, on_end: Callable[[], None]) -> None:
        self._client = client
        self._on_end = on_end
        client.watch_reads(self._read)
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, on_end)

    def stop(self) -> None:
        """Watch no more."""
        self._client.unwatch_reads()
        self._timer.cancel()

    def _read(self) -> None:
        try:
            if self._client.receive_into(memoryview(bytearray(SMALL_BUFFER_SIZE)), 0):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._on_end()
