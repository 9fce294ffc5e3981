"""Where TLS of a connection is ended or begun: in this process, or elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from weir.proxy.relay.tls_transport import TlsTransport
from weir.proxy.relay.transport import Transport
from weir.proxy.tls.live_keys import LiveKeys
from weir.proxy.tls.names import fits, names_in
from weir.proxy.tls.results import HandshakeFailed

_MOST_NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """TLS as a route wants it. `server_name` None: this end accepts. `allowed_names` None: any, or no certificate."""

    keys: LiveKeys
    server_name: str | None = None
    allowed_names: tuple[str, ...] | None = None


OpenTls = Callable[[socket.socket, Wanted], Awaitable[Transport]]
"""Does a handshake, without a time-out. It owns the connection, which is closed where the handshake fails.

Raises HandshakeFailed, and OSError for all that OpenSSL or the system say.
"""


async def open_here(connection: socket.socket, wanted: Wanted) -> Transport:
    """Do it in this process: an OpenTls."""
    context = wanted.keys.keys.context
    return TlsTransport(await shaken(connection, context, wanted.server_name, wanted.allowed_names))


async def shaken(
    connection: socket.socket, context: ssl.SSLContext, server_name: str | None, allowed_names: tuple[str, ...] | None
) -> ssl.SSLSocket:
    """Do a handshake, and look at the names of the other end's certificate. Raises as an OpenTls does."""
    try:
        wrapped = context.wrap_socket(
            connection,
            server_side=server_name is None,
            server_hostname=server_name,
            do_handshake_on_connect=False,
        )
    except BaseException:
        connection.close()
        raise
    try:
        await _shake_hands(wrapped)
        if allowed_names is not None and not fits(certificate := wrapped.getpeercert(), allowed_names):
            names = ", ".join(names_in(certificate)[:_MOST_NAMES_SHOWN])
            raise HandshakeFailed("wrong_name", f"allowed_names has none of the certificate's names: {names}")
    except BaseException:
        wrapped.close()
        raise
    return wrapped


async def readable(descriptor: int) -> None:
    """Wait until a socket may be read."""
    await _ready(descriptor, for_read=True)


async def _shake_hands(wrapped: ssl.SSLSocket) -> None:
    while True:
        try:
            wrapped.do_handshake()
            return
        except ssl.SSLWantReadError:
            for_read = True
        except ssl.SSLWantWriteError:
            for_read = False
        await _ready(wrapped.fileno(), for_read=for_read)


async def _ready(descriptor: int, *, for_read: bool) -> None:
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_reader, loop.remove_reader) if for_read else (loop.add_writer, loop.remove_writer)
    ready: asyncio.Future[None] = loop.create_future()
    add(descriptor, _set, ready)
    try:
        await ready
    finally:
        with contextlib.suppress(OSError, ValueError):
            remove(descriptor)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
