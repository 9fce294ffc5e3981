# SPDX-License-Identifier: Apache-2.0
"""A connection whose TLS a worker has: plaintext over a socketpair, and a second descriptor of the connection itself.

The kernel is asked about the connection by that one, as of TLS in this process: what its peer has not acknowledged, and
whether it is gone.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.protocol.response_scanner import Buffer
from weir.proxy.relay.transport import Transport, has_hung_up, is_broken, make_room, unacknowledged


@dataclass(slots=True)
class Handed:
    """What is known of a connection that a worker has. `shaken` is set when the handshake ended."""

    number: int
    shaken: asyncio.Future[None]
    broken: str | None = None
    """Why TLS failed after the handshake."""
    worker_ended: bool = False


class WorkerTransport(Transport):
    """A connection over `plain`, this end of the socketpair, of TLS on `tls`.

    `taken` returns how many of the bytes sent TLS has taken; `hear` takes what the worker has said, now.
    """

    __slots__ = ("_handed", "_has_finished", "_hear", "_sent", "_taken", "_tls")

    def __init__(
        self,
        plain: socket.socket,
        tls: socket.socket,
        handed: Handed,
        taken: Callable[[int], int],
        hear: Callable[[], None],
    ) -> None:
        super().__init__(plain)
        self._tls = tls
        self._handed = handed
        self._taken = taken
        self._hear = hear
        self._sent = 0
        self._has_finished = False

    def receive_into(self, buffer: memoryview, /) -> int:
        """Read what the worker has decrypted."""
        try:
            received = self.connection.recv_into(buffer)
        except ConnectionResetError as error:
            raise self._failure() or error from None
        if not received and (failure := self._failure()) is not None:
            raise failure
        return received

    def send(self, data: Buffer, /) -> int:
        """Give bytes to the worker, which encrypts and sends them. Returns how many it took."""
        return self.send_many((data,))

    def send_many(self, data: Sequence[Buffer], /) -> int:
        """Give several buffers to the worker. Returns how many bytes it took."""
        try:
            sent = self.connection.sendmsg(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._failure() or error from None
        self._sent += sent
        return sent

    def finish(self) -> None:
        """Have the worker say farewell."""
        self._has_finished = True
        super().finish()

    def is_gone(self) -> bool:
        """Ask the kernel: TLS may have said farewell where TCP has not."""
        return has_hung_up(self._tls.fileno()) or super().is_gone()

    def is_broken(self) -> bool:
        """Ask the kernel of both connections."""
        return is_broken(self._tls.fileno()) or super().is_broken()

    def make_room(self, size: int) -> None:
        """Have the kernel take more of the TLS connection."""
        make_room(self._tls, size)

    def unacknowledged(self) -> int:
        """Return what is on its way to TLS, and what the kernel has of the connection.

        In this order: what moves meanwhile counts twice, not never.
        """
        return self._sent - self._taken(self._handed.number) + unacknowledged(self._tls.fileno())

    def close(self) -> None:
        """Let go. The worker delivers what it has, and closes the connection."""
        super().close()
        self._tls.close()

    def _failure(self) -> OSError | None:
        """Return what ended the connection; None where its peer did, in an orderly way."""
        self._hear()
        if self._handed.broken is not None:
            return ssl.SSLError(1, self._handed.broken)
        if self._handed.worker_ended:
            return ConnectionResetError("the worker with its TLS ended")
        poll = select.poll()
        poll.register(self._descriptor, 0)
        has_let_go = any(events & select.POLLHUP for _, events in poll.poll(0))
        return ConnectionResetError("the connection broke") if has_let_go and not self._has_finished else None
