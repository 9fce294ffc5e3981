# SPDX-License-Identifier: Apache-2.0
"""A connection with TLS.

OpenSSL reads from the socket itself, so records are decrypted straight into the relay's buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from weir.protocol.response_scanner import Buffer
from weir.proxy.relay.transport import Transport

MOST_AHEAD: Final = 2**16
"""The bytes that are decrypted before they are wanted."""

_RECORD_SIZE: Final = 2**14  # the most that one TLS record carries: smaller buffers are sent together


class TlsTransport(Transport):
    """A TLS connection whose handshake is done.

    - OpenSSL may hold a part of a record that the socket no longer shows, so who watches is called for that, too.
    - A key update (TLS 1.3) may have a read wait until something can be sent, or a send until something is read.
    - A send that could not be finished has to be repeated with the same first bytes, as pumps do.
    - So `keep_unsent` is not possible. What is not acknowledged is counted in records, which are a little larger.
    - An end without TLS's own farewell counts as an end: Kafka's frames show whether one is cut off.
    - `tells_again` is so only where all was read that OpenSSL had: the loop sees nothing but the socket.
    """

    __slots__ = (
        "_ahead",
        "_has_ended",
        "_has_failed",
        "_loop_tells_again",
        "_on_read",
        "_on_send",
        "_read",
        "_read_waits_for_send",
        "_reread",
        "_send_waits_for_read",
    )
    connection: ssl.SSLSocket

    def __init__(self, connection: ssl.SSLSocket) -> None:
        super().__init__(connection)
        self._loop_tells_again, self.tells_again = self.tells_again, False
        # the connection's own: recv_into takes one call of Python more, for which each record of 16 KB would pay
        self._read = cast(Callable[[int, memoryview], int], connection.read)
        self._has_ended = False
        self._has_failed = False  # as `peek` met it; the next read meets it again
        self._ahead = b""  # read by `peek`
        self._on_read: Callable[[], None] | None = None
        self._on_send: Callable[[], None] | None = None
        self._read_waits_for_send = False
        self._send_waits_for_read = False
        self._reread: asyncio.Handle | None = None

    def receive_into(self, buffer: memoryview, /) -> int:
        """Decrypt as many records as there are and as fit."""
        wanted, received = len(buffer), 0
        if self._ahead:
            received = min(len(self._ahead), wanted)
            buffer[:received] = self._ahead[:received]
            self._ahead = self._ahead[received:]
        self.tells_again = False
        while received < wanted and not self._has_ended:
            try:
                count = self._read(wanted - received, buffer[received:])
            except ssl.SSLWantReadError:
                self.tells_again = self._loop_tells_again
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
        return super().is_gone() or (not self.peek(1) and (self._has_ended or self._has_failed))

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

    @property
    def ahead(self) -> int:
        return len(self._ahead)

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
        self.tells_again = self._loop_tells_again
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
