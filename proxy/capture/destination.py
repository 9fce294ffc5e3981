"""Where a captured connection wanted to go."""

from __future__ import annotations

import socket
import struct
from typing import Final

from weir.proxy.config.address import Address

# linux/netfilter_ipv4.h: SO_ORIGINAL_DST; linux/netfilter_ipv6/ip6_tables.h: IP6T_SO_ORIGINAL_DST
_ORIGINAL_DESTINATION: Final = 80
_SOCKADDR: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, struct.Struct("!2xH4s8x")),
    socket.AF_INET6: (socket.IPPROTO_IPV6, struct.Struct("!2xH4x16s4x")),
}
_SOL_IPV6: Final = 41
_IP_TRANSPARENT: Final = {socket.AF_INET: (socket.SOL_IP, 19), socket.AF_INET6: (_SOL_IPV6, 75)}  # linux/in.h, in6.h


def make_transparent(listening: socket.socket, mark: int) -> None:
    """Let a socket take connections that are led to it with another address and port. Raises OSError.

    They get `mark`, by which they are told from the broker's own at that address.
    """
    listening.setsockopt(*_IP_TRANSPARENT[listening.family], 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)


def original_destination(connection: socket.socket, listened: int) -> Address | None:
    """Return where a connection to port `listened` was led away from; None for one that came by itself."""
    try:
        host, port = connection.getsockname()[:2]
        if port != listened:  # tproxy: the connection has the address that it wanted
            return Address(str(host), port)
        level, layout = _SOCKADDR[connection.family]
        port, packed = layout.unpack(connection.getsockopt(level, _ORIGINAL_DESTINATION, layout.size))
        found = Address(socket.inet_ntop(connection.family, packed), port)
    except OSError:
        return None
    return None if found == Address(str(host), listened) else found
