"""A connection with TLS.

OpenSSL reads from the socket itself, so records are decrypted straight into the relay's buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from weir.protocol.response_scanner import Buffer
from weir.proxy.relay.transport import has_hung_up, unacknowledged

MOST_AHEAD: Final = 2**16
"""The bytes that are decrypted before they are wanted."""

_RECORD_SIZE: Final = 2**14  # the most that one TLS record carries: smaller buffers are sent together


@dataclass(eq=False, repr=False, slots=True)
class TlsTransport:
    """A `Transport` over a TLS connection whose handshake is done.

    - OpenSSL may hold a part of a record that the socket no longer shows, so who watches is called for that, too.
    - A key update (TLS 1.3) may have a read wait until something can be sent, or a send until something is read.
    - A send that could not be finished has to be repeated with the same first bytes, as pumps do.
    - An end without TLS's own farewell counts as an end: Kafka's frames show whether one is cut off.
    """

    connection: ssl.SSLSocket
    _loop: asyncio.AbstractEventLoop = field(init=False, default_factory=asyncio.get_running_loop)
    _read: Callable[[int, memoryview], int] = field(init=False)
    """The connection's own: recv_into takes one call of Python more, for which each record of 16 KB would pay."""
    _descriptor: int = field(init=False)
    _loop_tells_again: bool = field(init=False)
    _is_drained: bool = field(init=False, default=False)  # whether nothing was left to be read, when last seen
    _has_ended: bool = field(init=False, default=False)
    _has_failed: bool = field(init=False, default=False)  # as `peek` met it; the next read meets it again
    _ahead: bytes = field(init=False, default=b"")  # read by `peek`
    _on_read: Callable[[], None] | None = field(init=False, default=None)
    _on_send: Callable[[], None] | None = field(init=False, default=None)
    _read_waits_for_send: bool = field(init=False, default=False)
    _send_waits_for_read: bool = field(init=False, default=False)
    _reread: asyncio.Handle | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._read = cast(Callable[[int, memoryview], int], self.connection.read)
        self._descriptor = self.connection.fileno()
        self._loop_tells_again = isinstance(self._loop, asyncio.SelectorEventLoop)

    @property
    def tells_again(self) -> bool:
        """Only where all was read that OpenSSL had: the loop sees nothing but the socket."""
        return self._loop_tells_again and self._is_drained

    def receive_into(self, buffer: memoryview, size: int = 0, /) -> int:
        """Decrypt as many records as there are and as fit."""
        wanted = size or len(buffer)
        received = 0
        if self._ahead:
            received = min(len(self._ahead), wanted)
            buffer[:received] = self._ahead[:received]
            self._ahead = self._ahead[received:]
        self._is_drained = False
        while received < wanted and not self._has_ended:
            try:
                count = self._read(wanted - received, buffer[received:])
            except ssl.SSLWantReadError:
                self._is_drained = True
                break
            except ssl.SSLWantWriteError:
                self._wait_for_send()
                break
            except OSError:
                if received:
                    break  # what came before is whole; the next call meets the error again
                raise
            if not count:
                self._has_ended = True
            received += count
        if not received and not self._has_ended:
            raise BlockingIOError
        return received

    def send(self, data: Buffer, /) -> int:
        """Encrypt all of `data` and send it, or as much as the socket takes and a record more."""
        try:
            return self.connection.send(data)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self._send_waits_for_read = True
            raise BlockingIOError from None

    def send_many(self, data: Sequence[Buffer], /) -> int:
        """Send the first buffer, or the first few together in one record."""
        if len(data[0]) >= _RECORD_SIZE:
            return self.send(data[0])
        together = bytearray()
        for buffer in data:
            together += buffer
            if len(together) >= _RECORD_SIZE:
                break
        return self.send(memoryview(together))

    def finish(self) -> None:
        """Send TLS's farewell and a FIN. An end without the farewell would be answered with an alert."""
        try:
            self.connection.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # the farewell is sent, and the peer's has not come yet
        else:
            self._has_ended = True
            self._tell_of_ahead()
        socket.socket.shutdown(self.connection, socket.SHUT_WR)

    def is_gone(self) -> bool:
        """Ask the kernel, and read one byte ahead: TLS may have said farewell where TCP has not."""
        return has_hung_up(self._descriptor) or (not self.peek(1) and (self._has_ended or self._has_failed))

    def peek(self, most: int) -> bytes:
        """Read ahead, MOST_AHEAD at most: a TCP connection's bytes are the kernel's, and these take memory here."""
        most = min(most, MOST_AHEAD)
        while len(self._ahead) < most and not self._has_ended:
            try:
                more = self.connection.recv(most - len(self._ahead))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                self._has_failed = True
                break
            self._ahead += more
            self._has_ended = not more
        self._tell_of_ahead()
        return self._ahead[:most]

    def unacknowledged(self) -> int:
        """Ask the kernel. It knows records, which are a little larger than what they carry."""
        return unacknowledged(self._descriptor)

    def keep_unsent(self, most: int) -> bool:
        """Return False: OpenSSL has encrypted a record that it could not send, and goes on with that."""
        return False

    def watch_reads(self, callback: Callable[[], None]) -> None:
        """Watch the socket, and tell at once of what OpenSSL has already."""
        self._on_read = callback
        self._loop.add_reader(self._descriptor, self._readable)
        self._tell_of_ahead()

    def unwatch_reads(self) -> None:
        self._on_read = None
        if self._reread is not None:
            self._reread.cancel()
            self._reread = None
        if self._read_waits_for_send:
            self._read_waits_for_send = False
            if self._on_send is None:
                self._loop.remove_writer(self._descriptor)
        if not self._send_waits_for_read:
            self._loop.remove_reader(self._descriptor)

    def watch_sends(self, callback: Callable[[], None]) -> None:
        """Watch the socket: for room, or for what a key update has a send wait for."""
        self._on_send = callback
        if self._send_waits_for_read:
            self._loop.add_reader(self._descriptor, self._readable)
        else:
            self._loop.add_writer(self._descriptor, self._writable)

    def unwatch_sends(self) -> None:
        self._on_send = None
        if self._send_waits_for_read:
            self._send_waits_for_read = False
            if self._on_read is None:
                self._loop.remove_reader(self._descriptor)
        if not self._read_waits_for_send:
            self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        """Say farewell if that can be done at once, and close the socket."""
        if self._reread is not None:
            self._reread.cancel()
        self._on_read = self._on_send = None
        with contextlib.suppress(OSError, ValueError):
            self.connection.unwrap()
        self.connection.close()

    def _tell_of_ahead(self) -> None:
        """Tell who watches, soon, of what the socket no longer shows."""
        is_there = self._ahead or self._has_ended or self.connection.pending()
        if is_there and self._on_read is not None and self._reread is None:
            self._reread = self._loop.call_soon(self._read_again)

    def _wait_for_send(self) -> None:
        self._is_drained = True
        self._read_waits_for_send = True
        self._loop.add_writer(self._descriptor, self._writable)

    def _readable(self) -> None:
        if self._send_waits_for_read:
            self._send_waits_for_read = False
            if self._on_read is None:
                self._loop.remove_reader(self._descriptor)
            if self._on_send is not None:
                self._loop.add_writer(self._descriptor, self._writable)
                self._on_send()
        if self._on_read is not None:
            self._on_read()

    def _writable(self) -> None:
        if self._read_waits_for_send:
            self._read_waits_for_send = False
            if self._on_send is None:
                self._loop.remove_writer(self._descriptor)
            if self._on_read is not None:
                self._on_read()
        if self._on_send is not None:
            self._on_send()

    def _read_again(self) -> None:
        self._reread = None
        if self._on_read is not None:
            self._on_read()
