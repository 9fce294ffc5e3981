# SPDX-License-Identifier: Apache-2.0
"""What the relay needs of a connection, and how one is opened.

Plain TCP is one kind of transport, TLS another. A transport tells readiness, not completion: the relay decides when it
reads, and into which buffer. So its memory stays bounded, and large records are never copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import select
import socket
import struct
import termios
from collections.abc import Callable, Sequence

from weir.protocol.response_scanner import Buffer
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
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


async def _resolve(address: Address) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(address.host).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        return [(family, (address.host, address.port))]
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, (str(target[0]), int(target[1]))) for family, _, _, _, target in found]


_INT = struct.Struct("i")


def unacknowledged(descriptor: int) -> int:
    """Return the bytes in a socket's send queue that its peer has not acknowledged: tcp(7)'s SIOCOUTQ.

    Where the connection is broken none are on their way. The socket shows them for ever, and whoever waits for them
    would never send again, and so never find out.
    """
    try:
        (size,) = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT.size)))
    except OSError:
        return 0  # the connection is gone
    return 0 if size and is_broken(descriptor) else int(size)


def is_broken(descriptor: int) -> bool:
    """Return whether the peer of a TCP connection has sent a reset, or both ends have sent their FIN."""
    poll = select.poll()
    poll.register(descriptor, 0)  # POLLHUP and POLLERR are always told
    return bool(poll.poll(0))


def has_hung_up(descriptor: int) -> bool:
    """Return whether the peer of a TCP connection has sent its FIN, also behind bytes that are not read, or a reset."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


def make_room(connection: socket.socket, size: int) -> None:
    """Have the kernel keep up to `size` unread bytes of a TCP connection, but never less than it does.

    A FIN comes behind all other bytes. So while there is no room for these, it is not seen.
    """
    with contextlib.suppress(OSError):  # the connection is gone
        # tcp(7)'s receive buffer grows with SO_RCVLOWAT, and does not shrink. SO_RCVBUF would end its own growth.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class Transport:
    """One peer's connection: a connected, non-blocking stream socket, watched by the running event loop.

    Nothing blocks: what cannot be done now raises BlockingIOError. All methods except `is_gone`,
    `is_broken`, `make_room`, `peek`, `unacknowledged`, `keep_unsent` and the `watch_` ones may raise OSError: the
    connection is then broken.
    """

    __slots__ = ("_descriptor", "_loop", "connection", "tells_again")

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.connection = connection
        self._descriptor = connection.fileno()  # the loop takes a socket too, but writes its name each time
        # libuv stops watching a socket after a reset, although bytes may be left to read.
        self.tells_again = isinstance(self._loop, asyncio.SelectorEventLoop)
        """Whether a watcher is called again for bytes that it left unread. If not, it has to read until none are left.
        """

    def receive_into(self, buffer: memoryview, /) -> int:
        """Read as many bytes as fit. Returns how many came; 0 at the end of the stream."""
        raise NotImplementedError

    def send(self, data: Buffer, /) -> int:
        """Send the first bytes of `data`. Returns how many."""
        raise NotImplementedError

    def send_many(self, data: Sequence[Buffer], /) -> int:
        """Send the first bytes of all these, one after the other. Returns how many."""
        raise NotImplementedError

    @property
    def ahead(self) -> int:
        """The bytes that `peek` keeps in this process."""
        return 0

    def unacknowledged(self) -> int:
        """Return how many bytes were sent that the peer has not acknowledged. It raises nothing."""
        return unacknowledged(self._descriptor)

    def keep_unsent(self, most: int) -> bool:
        """Take no more than about `most` bytes that the peer has no room for; 0: as many as fit. It raises nothing.

        Returns whether that is possible, and bytes that were not taken need not come next.
        """
        return False

    def finish(self) -> None:
        """Send no more, and tell the peer."""
        self.connection.shutdown(socket.SHUT_WR)

    def is_gone(self) -> bool:
        """Return whether the peer has sent its last byte, or broken the connection. Bytes may be left to be read."""
        return has_hung_up(self._descriptor)

    def is_broken(self) -> bool:
        """Return whether the peer has sent a reset, or both ends have sent their last byte."""
        return is_broken(self._descriptor)

    def make_room(self, size: int) -> None:
        """Have the kernel take up to `size` bytes of the peer that are not read. It raises nothing."""
        make_room(self.connection, size)

    def peek(self, most: int) -> bytes:
        """Return up to `most` bytes that the peer has sent, and leave them to be read. It raises nothing."""
        try:
            return self.connection.recv(most, socket.MSG_PEEK)
        except OSError:
            return b""

    def watch_reads(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there may be something to read, until `unwatch_reads`."""
        self._loop.add_reader(self._descriptor, callback)

    def unwatch_reads(self) -> None:
        """Stop the calls of `watch_reads`. Does nothing where there are none."""
        self._loop.remove_reader(self._descriptor)

    def watch_sends(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever something may be sent, until `unwatch_sends`."""
        self._loop.add_writer(self._descriptor, callback)

    def unwatch_sends(self) -> None:
        """Stop the calls of `watch_sends`. Does nothing where there are none."""
        self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        """Close the connection at once. It must not be watched any more.

        The peer gets a reset if something that it sent was not read.
        """
        self.connection.close()


class TcpTransport(Transport):
    """Plain TCP."""

    __slots__ = ("receive_into", "send", "send_many")

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        # The socket's own methods: wrapping each in a method of this class would cost throughput.
        self.receive_into: Callable[[memoryview], int] = connection.recv_into
        self.send: Callable[[Buffer], int] = connection.send
        self.send_many: Callable[[Sequence[Buffer]], int] = connection.sendmsg

    def keep_unsent(self, most: int) -> bool:
        """Set TCP_NOTSENT_LOWAT."""
        with contextlib.suppress(OSError):  # the connection is gone
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, most)
        return True
