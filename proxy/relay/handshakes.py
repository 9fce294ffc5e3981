# SPDX-License-Identifier: Apache-2.0
"""The beginning of a connection that may have TLS: its first byte, and its handshake, here or in another process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from weir.proxy.config.address import Address
from weir.proxy.log import EventLog
from weir.proxy.relay.tls_transport import TlsTransport
from weir.proxy.relay.transport import TcpTransport, Transport, set_options
from weir.proxy.tls.keys import fits, names_in
from weir.proxy.tls.live_keys import LiveKeys, TlsClient, TlsServer
from weir.proxy.tls.results import HandshakeFailed, Peer, TlsStats, failed_by
from weir.quota.settings import SideName

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


T = TypeVar("T")

HANDSHAKE_SECONDS: Final = 10.0
MOST_HANDSHAKES: Final = 256
"""The most that clients of one side have under way. With one more the oldest gives way: who keeps handshakes waiting on
purpose then keeps nobody else out."""

PLAINTEXT_SECONDS: Final = 60.0
"""For how long an upstream that did not speak TLS is not asked again, where TLS is only preferred."""

_TLS_BEGINS: Final = b"\x16"  # ContentType handshake. A Kafka frame that begins so would have 369 MB.


@dataclass(eq=False, slots=True)
class Handshakes:
    """Those of one side. `seconds` is the time that each has; `clock` gives monotonic seconds; `open` does them."""

    _side: SideName
    stats: TlsStats
    _log: EventLog
    _clock: Callable[[], float]
    _open: OpenTls = open_here
    seconds: float = HANDSHAKE_SECONDS
    most: int = MOST_HANDSHAKES
    _under_way: OrderedDict[asyncio.Task[Any], None] = field(default_factory=OrderedDict)  # clients', the oldest first
    _plaintext_until: dict[Address, float] = field(default_factory=dict)

    async def speaks_tls(self, client: socket.socket) -> bool:
        """Return whether a client begins with TLS. One that sends nothing for long does not.

        HandshakeFailed: it is gone.
        """
        try:
            async with asyncio.timeout(self.seconds):
                return await _begins_with_tls(client)
        except TimeoutError:
            return False

    async def accept(self, client: socket.socket, server: TlsServer, host: str) -> Transport:
        """Do the handshake with a client. HandshakeFailed: it is closed, counted and logged."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._under_way[task] = None
        if len(self._under_way) > self.most:
            oldest, _ = self._under_way.popitem(last=False)
            oldest.cancel()
        try:
            return await self._counted("client", host, self._accept(client, server, host))
        except asyncio.CancelledError:
            if task not in self._under_way:  # it gave way
                self._failed("client", host, HandshakeFailed("too_many", _TOO_MANY))
            raise
        finally:
            self._under_way.pop(task, None)

    async def connect(
        self, open_socket: Callable[[], Awaitable[socket.socket]], address: Address, client: TlsClient
    ) -> Transport:
        """Connect to an upstream with TLS, or, where that is allowed, without.

        Raises HandshakeFailed, and what `open_socket` raises.
        """
        if not client.falls_back or self._plaintext_until.get(address, 0.0) <= self._clock():
            connection = await open_socket()
            wanted = Wanted(client.keys, client.server_name or address.host, client.allowed_names)
            try:
                return await self._counted("upstream", address, self._open(connection, wanted))
            except HandshakeFailed as error:
                if not client.falls_back or error.result not in ("not_tls", "closed", "timeout"):
                    raise
                reason = error.reason
            self._plaintext_until[address] = self._clock() + PLAINTEXT_SECONDS
            effect = f"goes on without TLS, and tries again after {PLAINTEXT_SECONDS:g} s"
            self._log.fault("tls_not_spoken", address, side=self._side, reason=reason, effect=effect)
        self.stats.plaintext[self._side] += 1
        return TcpTransport(await open_socket())

    async def _accept(self, client: socket.socket, server: TlsServer, host: str) -> Transport:
        if not await _begins_with_tls(client):
            raise HandshakeFailed("not_tls", "the client does not speak TLS, which this listener requires")
        set_options(client)
        return await self._open(client, Wanted(server.keys, None, server.allowed_names))

    async def _counted(self, peer: Peer, name: object, handshake: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.seconds):
                done = await handshake
        except TimeoutError:
            reason = f"the handshake did not end in {self.seconds:g} s"
            raise self._failed(peer, name, HandshakeFailed("timeout", reason)) from None
        except HandshakeFailed as error:
            raise self._failed(peer, name, error) from None
        except OSError as error:
            raise self._failed(peer, name, failed_by(error)) from None
        self.stats.handshakes[self._side, peer, "ok"] += 1
        return done

    def _failed(self, peer: Peer, name: object, error: HandshakeFailed) -> HandshakeFailed:
        if error.reason != _NOTHING_CAME:
            self.stats.handshakes[self._side, peer, error.result] += 1
            self._log.fault("tls_failed", name, side=self._side, end=peer, result=error.result, reason=error.reason)
        return error


_NOTHING_CAME: Final = "nothing came"  # as of who only looks whether the port is open
_TOO_MANY: Final = "it gave way to a newer one, as too many were under way"


async def _begins_with_tls(client: socket.socket) -> bool:
    """Wait for a client's first byte, and look at it without taking it."""
    await _ready(client.fileno(), for_read=True)
    first = b""
    with contextlib.suppress(OSError):
        first = client.recv(1, socket.MSG_PEEK)
    if not first:
        raise HandshakeFailed("closed", _NOTHING_CAME)
    return first == _TLS_BEGINS
