# SPDX-License-Identifier: Apache-2.0
"""The kernel's packet filter, through libnftables (the library of the `nft` command), and what it leads here.

A table with the flag `owner` belongs to the socket that made it, which is this process's. A command takes 0.1 to 2 ms.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from typing import Final, Protocol

from weir.proxy.config.address import Address

_LIBRARY = "libnftables.so.1"
_TERSE = 1 << 11  # NFT_CTX_OUTPUT_TERSE: sets are listed without what is in them, which may be very much


class NftError(Exception):
    """The kernel refused a command; the text is what nft says of it, in one line."""


class PacketFilter(Protocol):
    """What a capture needs of the kernel; Nftables is one."""

    def run(self, commands: str) -> str:
        """Carry out commands as one transaction; returns what they print. Raises NftError, and nothing has changed."""

    def close(self) -> None:
        """Give up the tables that are owned."""


class Nftables:
    """A connection to the kernel's packet filter, for any thread. Raises NftError where there is none."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            raise NftError(f"{_LIBRARY} is not there: install nftables") from None
        library.nft_ctx_new.restype = ctypes.c_void_p
        library.nft_ctx_new.argtypes = [ctypes.c_uint32]
        for name in ("nft_ctx_buffer_error", "nft_ctx_buffer_output", "nft_ctx_free"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        for name in ("nft_ctx_get_error_buffer", "nft_ctx_get_output_buffer"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
            getattr(library, name).restype = ctypes.c_char_p
        library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        self._library = library
        self._is_used = threading.Lock()
        self._context: int | None = library.nft_ctx_new(0)
        if not self._context:
            raise NftError("the kernel gives no access to its packet filter")
        library.nft_ctx_buffer_error(self._context)
        library.nft_ctx_buffer_output(self._context)
        library.nft_ctx_output_set_flags(self._context, _TERSE)

    def run(self, commands: str) -> str:
        """Carry out commands as one transaction; returns what they print. Raises NftError, and nothing has changed."""
        with self._is_used:
            if self._context is None:
                raise NftError("the packet filter was closed")
            status = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
            said = bytes(self._library.nft_ctx_get_error_buffer(self._context) or b"").decode(errors="replace")
            printed = bytes(self._library.nft_ctx_get_output_buffer(self._context) or b"").decode(errors="replace")
        if status:
            raise NftError(said.partition("\n")[0].removeprefix("Error: ") or "the kernel refused")
        return printed

    def close(self) -> None:
        """Give up the tables that are owned, after what runs: the kernel removes them."""
        with self._is_used:
            if self._context is not None:
                self._library.nft_ctx_free(self._context)
                self._context = None


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
