# SPDX-License-Identifier: Apache-2.0
"""What a sidecar and a worker say to each other, a message a datagram, and what they share in memory."""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

import msgspec

from weir.proxy.tls.keys import ClientAuth, KeyFiles
from weir.proxy.tls.results import HandshakeResult


class LoadKeys(msgspec.Struct, frozen=True, tag="load", array_like=True):
    """Load keys from files, and use them from the next connection on. `client_auth` None: this end connects."""

    keys: int
    files: KeyFiles
    client_auth: ClientAuth | None = None
    checks_name: bool = False


class Open(msgspec.Struct, frozen=True, tag="open", array_like=True):
    """Do a handshake, and pump. Two descriptors come with it: the connection's, and the plaintext's.

    `server_name`: None for an end that accepts.
    """

    link: int
    keys: int
    server_name: str | None = None
    allowed_names: tuple[str, ...] | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """The worker takes connections."""


class Shaken(msgspec.Struct, frozen=True, tag="shaken", array_like=True):
    """A handshake ended. `result` None: it did not begin, and the connection is as it was."""

    link: int
    result: HandshakeResult | None
    reason: str = ""


class Broken(msgspec.Struct, frozen=True, tag="broken", array_like=True):
    """TLS failed after the handshake."""

    link: int
    reason: str


class Closed(msgspec.Struct, frozen=True, tag="closed", array_like=True):
    """The worker has let go of a connection."""

    link: int


class KeysRefused(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """Keys could not be loaded: those before stay in use."""

    keys: int
    reason: str


ToWorker = LoadKeys | Open
FromWorker = Ready | Shaken | Broken | Closed | KeysRefused

MOST_LINKS: Final = 2**16

_LOAD: Final = struct.Struct("dd")
_TAKEN: Final = struct.Struct("Q")


class SharedCounts:
    """What a worker counts and its sidecar reads: its load, and of each link the plaintext that TLS has taken."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` is that of the sidecar's own; None makes a new one."""
        size = _LOAD.size + MOST_LINKS * _TAKEN.size
        self.descriptor = os.memfd_create("weir-tls") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        self._memory = mmap.mmap(self.descriptor, size)

    def taken(self, link: int) -> int:
        """Return the bytes that a link's TLS has taken to send."""
        return int(_TAKEN.unpack_from(self._memory, _LOAD.size + link * _TAKEN.size)[0])

    def take(self, link: int, total: int) -> None:
        """Note that the worker has taken `total` bytes of a link so far."""
        _TAKEN.pack_into(self._memory, _LOAD.size + link * _TAKEN.size, total)

    def load(self) -> tuple[float, float]:
        """Return the shares of time in which the worker's loop works, and is late."""
        busy, lost = _LOAD.unpack_from(self._memory)
        return busy, lost

    def note_load(self, busy: float, lost: float) -> None:
        """Note the shares (0 to 1) of the last seconds in which the worker was busy, and waited for a core."""
        _LOAD.pack_into(self._memory, 0, busy, lost)

    def shared(self) -> None:
        """Close the descriptor: the worker has its own. The memory stays for as long as somebody has this object."""
        os.close(self.descriptor)
