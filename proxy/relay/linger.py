"""The end of a drained connection. Its client has to close first: a reset could lose the last bytes sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from weir.proxy.relay.buffers import SMALL_BUFFER_SIZE
from weir.proxy.relay.transport import Transport

LINGER_SECONDS: Final = 1.0
"""How long a drained client has to close its end."""


class Linger:
    """Throws away what `client` still sends. Calls `on_end` when it closes its connection, or when the time is over."""

    __slots__ = ("_client", "_on_end", "_timer")

    def __init__(self, client: Transport, on_end: Callable[[], None]) -> None:
        self._client = client
        self._on_end = on_end
        client.watch_reads(self._read)
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, on_end)

    def stop(self) -> None:
        """Stop watching."""
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
