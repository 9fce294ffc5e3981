"""What the relay needs of a connection. TCP is one kind; another one, say TLS, only has to do what stands here.

It is readiness, not completion, that a transport tells: the relay decides when it reads, and into which buffer, so that
its memory stays bounded and large records are never copied on their way.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from protocol.response_scanner import Buffer


class Transport(Protocol):
    """One peer's connection. Nothing here blocks: what cannot be done now raises BlockingIOError.

    All but `is_gone` and the `watch_` methods may raise OSError: then the connection is broken.
    """

    @property
    def tells_again(self) -> bool:
        """Whether a watcher is called again for bytes that it left; else it has to read until there are none."""

    def receive_into(self, buffer: memoryview, size: int, /) -> int:
        """Read up to `size` bytes, as many as fit where that is 0; returns how many came, 0 at the end of them all."""

    def send(self, data: Buffer, /) -> int:
        """Send the first bytes of `data`; returns how many."""

    def send_many(self, data: Sequence[Buffer], /) -> int:
        """Send the first bytes of all these, one behind the other; returns how many."""

    def finish(self) -> None:
        """Send no more, and tell the peer."""

    def is_gone(self) -> bool:
        """Whether the peer closed the connection, and nothing that it sent before is left to be read."""

    def watch_reads(self, callback: Callable[[], None]) -> None:
        """Call this whenever there may be something to read, until `unwatch_reads`."""

    def unwatch_reads(self) -> None:
        """Call no one any more."""

    def watch_sends(self, callback: Callable[[], None]) -> None:
        """Call this whenever something may be sent, until `unwatch_sends`."""

    def unwatch_sends(self) -> None:
        """Call no one any more."""

    def close(self) -> None:
        """Close the connection at once. Nobody may be watching."""


class TcpTransport:
    """A connected, non-blocking TCP socket, watched by the running event loop: asyncio's own or uvloop."""

    __slots__ = ("_loop", "connection", "receive_into", "send", "send_many", "tells_again")

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.connection = connection
        # libuv stops watching a socket once it was reset, though bytes may be left to read.
        self.tells_again: bool = isinstance(self._loop, asyncio.SelectorEventLoop)
        # The socket's own methods: a method of ours around each would cost throughput.
        self.receive_into: Callable[[memoryview, int], int] = connection.recv_into
        self.send: Callable[[Buffer], int] = connection.send
        self.send_many: Callable[[Sequence[Buffer]], int] = connection.sendmsg

    def finish(self) -> None:
        """Send a FIN behind all that was sent."""
        self.connection.shutdown(socket.SHUT_WR)

    def is_gone(self) -> bool:
        """Look at the next byte without taking it."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def watch_reads(self, callback: Callable[[], None]) -> None:
        """Watch with the loop's add_reader."""
        self._loop.add_reader(self.connection, callback)

    def unwatch_reads(self) -> None:
        """Nothing happens where nobody was watching."""
        self._loop.remove_reader(self.connection)

    def watch_sends(self, callback: Callable[[], None]) -> None:
        """Watch with the loop's add_writer."""
        self._loop.add_writer(self.connection, callback)

    def unwatch_sends(self) -> None:
        """Nothing happens where nobody was watching."""
        self._loop.remove_writer(self.connection)

    def close(self) -> None:
        """Close the socket: the peer gets a reset if something that it sent was not read."""
        self.connection.close()
