"""Connecting to a broker, and the socket options of both ends."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket

from weir.proxy.config.address import Address

_KEEPALIVE_IDLE_SECONDS = 60
_KEEPALIVE_INTERVAL_SECONDS = 20
_KEEPALIVE_PROBES = 3


async def connect(address: Address, mark: int | None = None) -> socket.socket:
    """Return a non-blocking socket connected to `address`, with a mark (SO_MARK) where one is given.

    A name is resolved each time, and its addresses are tried in turn.

    Raises OSError when none accepts the connection. It has no time-out of its own: set one around it.
    """
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, target in await _resolve(address):
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if mark is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            await loop.sock_connect(connection, target)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            set_options(connection)
            return connection
    try:
        raise failure or OSError(f"{address} has no address")
    finally:
        del failure  # with its traceback it would refer to itself, and only the collector could free it


def set_options(connection: socket.socket) -> None:
    """Send small frames at once, and notice within about two minutes that a peer's machine is gone."""
    with contextlib.suppress(OSError):  # the connection may have been reset already; its reader will see that
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
            ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
            ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ):
            if hasattr(socket, option):  # Linux has them all
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def _resolve(address: Address) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(address.host).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        return [(family, (address.host, address.port))]
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, (str(target[0]), int(target[1]))) for family, _, _, _, target in found]
