"""The kernel's packet filter, through libnftables: the library of the `nft` command.

A table with the flag `owner` belongs to the socket that made it, which is this process's. A command takes 0.1 to 2 ms.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Protocol

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
