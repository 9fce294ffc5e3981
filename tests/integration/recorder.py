# SPDX-License-Identifier: Apache-2.0
"""A relay that keeps what passes, so that what sidecars and brokers say on the wire is seen by someone else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tests.integration.relay import Relay

_SIZE = struct.Struct(">i")
_API = struct.Struct(">hhi")
_FETCH = 1
_CHUNK = 256 * 1024


@dataclass(slots=True)
class Recording:
    """One connection's bytes, by direction."""

    requests: bytearray = field(default_factory=bytearray)
    responses: bytearray = field(default_factory=bytearray)


class Recorder(Relay):
    """Keeps what passes."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.connections: list[Recording] = []
        super().__init__(upstream)

    def fetches(self) -> Iterator[tuple[bytes, bytes]]:
        """Every Fetch request with its response, neither with its size."""
        for connection in list(self.connections):
            responses = {_API.unpack(b"\0" * 4 + one[:4])[2]: one for one in _frames(bytes(connection.responses))}
            for request in _frames(bytes(connection.requests)):
                api_key, _, correlation_id = _API.unpack_from(request)
                if api_key == _FETCH and correlation_id in responses:
                    yield request, responses[correlation_id]

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        recording = Recording()
        self.connections.append(recording)
        for way in ((client, server, recording.requests), (server, client, recording.responses)):
            threading.Thread(target=_relay, args=way, daemon=True).start()


def _relay(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            kept += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _frames(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at + _SIZE.size <= len(stream):
        (size,) = _SIZE.unpack_from(stream, at)
        at += _SIZE.size
        if at + size > len(stream):
            return
        yield stream[at : at + size]
        at += size
