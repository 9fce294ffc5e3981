# SPDX-License-Identifier: Apache-2.0
"""Servers on 127.0.0.1 that tests write, and their clients. None leaves a connection to the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[asyncio.Server, int]]:
    """A server on a free port, and that port; `serve` gets each connection.

    Its connections end with it, whatever their peers do; asyncio's own server leaves them. So TLS begins only after a
    connection is known.
    """
    connections: dict[asyncio.Task[None], asyncio.WriteTransport] = {}

    async def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):  # its peer has gone
            if tls is not None:
                await writer.start_tls(tls)
            await serve(reader, writer)
            return
        writer.transport.abort()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.create_task(begun(reader, writer))] = writer.transport

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server, server.sockets[0].getsockname()[1]
    finally:
        for listening in server.sockets:  # what it has taken fails if it is closed before that is connected
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await _turns()
        server.close()
        for task in connections:
            task.cancel()
        ends = await asyncio.gather(*connections, return_exceptions=True)
        for transport in connections.values():
            transport.abort()
        await _turns()  # its socket is closed then
    for end in ends:
        if isinstance(end, Exception):
            raise end


@contextlib.asynccontextmanager
async def connected(
    port: int, tls: ssl.SSLContext | None = None, name: str = "localhost"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a port of this machine; it ends without a wait for its peer."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname=None if tls is None else name
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await _turns()


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
