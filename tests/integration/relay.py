# SPDX-License-Identifier: Apache-2.0
"""A relay before a broker, for what is to be seen or slowed down on the wire."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Listens on loopback, and connects to `upstream` for whoever comes; `carry` says how bytes pass."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect to."""
        host, port = self._listening.getsockname()
        return host, port

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        """Carry what each of them sends to the other, in threads."""
        raise NotImplementedError

    def close(self) -> None:
        """Break every connection; the threads end with them."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listening socket is closed
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                try:
                    server = socket.create_connection(self._upstream)
                except OSError:  # not up yet
                    client.close()
                    continue
                self._sockets.append(server)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.carry(client, server)
