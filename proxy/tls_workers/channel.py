# SPDX-License-Identifier: Apache-2.0
"""The socket between two processes of a sidecar: messages of any size, with descriptors beside them.

The kernel takes no packet above the size of a socket's buffer, so a large message goes in memory that both can map.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

_MOST_IN_PACKET: Final = 2**16
_IN_MEMORY: Final = (
    b"\xc1"  # a packet of this byte, which begins nothing in MessagePack: the first descriptor is the message
)
_MOST_DESCRIPTORS: Final = 3
_IN_A_ROW: Final = 64

Message = TypeVar("Message")


@dataclass(eq=False)
class ProcessChannel(Generic[Message]):
    """One end of it, a SOCK_SEQPACKET socket. `ended` is called once, when the other process is gone.

    Who is given descriptors owns them. A message that is not understood, as it is of another version, is left out; if
    `needs_all`, it ends the channel.
    """

    _connection: socket.socket
    kinds: InitVar[Any]
    _received: Callable[[Message, list[int]], None]
    _ended: Callable[[], None]
    needs_all: bool = False
    is_open: bool = True
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _unsent: deque[tuple[bytes, list[int]]] = field(default_factory=deque)

    def __post_init__(self, kinds: Any) -> None:
        self._connection.setblocking(False)
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._loop.add_reader(self._connection, self.read)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, later where the other process does not take it now.

        With descriptors it is now or never: BlockingIOError. Raises OSError where the other process is gone.
        """
        if not descriptors:
            self.give(message)
            return
        if self._unsent:
            raise BlockingIOError
        socket.send_fds(self._connection, [msgspec.msgpack.encode(message)], descriptors)

    def give(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message with descriptors, later where need be. They may be closed at once."""
        data, given = msgspec.msgpack.encode(message), [os.dup(one) for one in descriptors]
        if len(data) > _MOST_IN_PACKET:
            data, given = _IN_MEMORY, [_memory_of(data), *given]
        self._unsent.append((data, given))
        self._flush()

    def read(self) -> None:
        """Take the messages that have come, _IN_A_ROW of them at most."""
        for _ in range(_IN_A_ROW):
            if not self.is_open:
                return
            try:
                data, descriptors, _, _ = socket.recv_fds(self._connection, _MOST_IN_PACKET, _MOST_DESCRIPTORS)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._end()
                return
            if data == _IN_MEMORY and descriptors:
                with open(descriptors.pop(0), "rb") as memory:
                    data = memory.read()
            try:
                message = self._decoder.decode(data)
            except msgspec.DecodeError:  # the program was replaced under a sidecar that runs
                _close(descriptors)
                if self.needs_all:
                    self._end()
                continue
            self._received(message, descriptors)

    def close(self) -> None:
        """End it; the other process is told."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()
            self._drop()

    def _end(self) -> None:
        self.close()
        self._ended()

    def _flush(self) -> None:
        while self._unsent and self.is_open:
            data, descriptors = self._unsent[0]
            try:
                socket.send_fds(self._connection, [data], descriptors)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._connection, self._flush)
                return
            except OSError:
                self._drop()  # `read` meets the end
                break
            self._unsent.popleft()
            _close(descriptors)
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_writer(self._connection)

    def _drop(self) -> None:
        while self._unsent:
            _close(self._unsent.popleft()[1])


def _memory_of(data: bytes) -> int:
    """Return a descriptor of memory with `data`, to be read from its beginning."""
    descriptor = os.memfd_create("weir-message")
    with open(descriptor, "wb", closefd=False) as memory:
        memory.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
