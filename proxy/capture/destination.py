"""Where a redirected connection wanted to go."""

from __future__ import annotations

import socket
import struct
from typing import Final

from weir.proxy.config.address import Address

# linux/netfilter_ipv4.h: SO_ORIGINAL_DST; linux/netfilter_ipv6/ip6_tables.h: IP6T_SO_ORIGINAL_DST
_ORIGINAL_DESTINATION: Final = 80
_IPV4_SIZE: Final = struct.calcsize("!2xH4s8x")
_IPV6_SIZE: Final = struct.calcsize("!2xH4x16s4x")


def original_destination(connection: socket.socket) -> Address | None:
    """Return where a connection was led away from; None for one that came to the listener by itself."""
    try:
        if connection.family == socket.AF_INET6:
            port, packed = struct.unpack(
                "!2xH4x16s4x", connection.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DESTINATION, _IPV6_SIZE)
            )
            found = Address(socket.inet_ntop(socket.AF_INET6, packed), port)
        else:
            port, packed = struct.unpack(
                "!2xH4s8x", connection.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DESTINATION, _IPV4_SIZE)
            )
            found = Address(socket.inet_ntop(socket.AF_INET, packed), port)
        host, own_port = connection.getsockname()[:2]
    except OSError:
        return None
    return None if found == Address(str(host), own_port) else found
