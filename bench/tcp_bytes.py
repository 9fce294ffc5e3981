"""Bytes that went over TCP on this machine, by the port they were sent from, as the kernel counts them (Linux)."""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from types import TracebackType
from typing import Final, Self

# linux/netlink.h, sock_diag.h, inet_diag.h
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_AND_DUMP: Final = 0x301
_INET_DIAG_INFO: Final = 2
_ESTABLISHED: Final = 1
_MESSAGE_DONE: Final = 3
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence number, port id
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_PORTS = struct.Struct(">HH")  # inet_diag_sockid: source, destination
_PORTS_AT: Final = 4  # of inet_diag_msg
_MESSAGE_SIZE: Final = 72  # of inet_diag_msg; attributes follow
_BYTES_ACKED_AT: Final = 120  # of tcp_info (linux/tcp.h): an unsigned 64-bit integer

_SAMPLE_SECONDS: Final = 0.02


class SentBytes:
    """Samples every connection's count in a thread until the block ends: what goes after the last sample is missed."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], int] = {}  # by source and destination port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sent-bytes", daemon=True)

    def __enter__(self) -> Self:
        self._before = sent_bytes()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def by_port(self) -> dict[int, int]:
        """Bytes sent within the block by the port that they were sent from, and acknowledged."""
        found: dict[int, int] = defaultdict(int)
        for (source, destination), sent in self._sent.items():
            found[source] += sent - self._before.get((source, destination), 0)
        return found

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._sent.update(sent_bytes())


def sent_bytes() -> dict[tuple[int, int], int]:
    """Bytes sent and acknowledged on every open connection, by its source and destination port. Raises OSError."""
    found: dict[tuple[int, int], int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):  # Java's sockets are of the second kind
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
            wanted = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _ESTABLISHED)
            diag.send(_HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 0, 0) + wanted)
            while _take(diag.recv(2**20), found):
                pass
    return found


def _take(data: bytes, found: dict[tuple[int, int], int]) -> bool:
    """Take in one read's messages; whether more will follow."""
    at = 0
    while at < len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if kind != _SOCK_DIAG_BY_FAMILY:
            if kind == _MESSAGE_DONE:
                return False
            raise OSError("The kernel does not tell what its connections sent.")
        message = at + _HEADER.size
        ports = _PORTS.unpack_from(data, message + _PORTS_AT)
        attribute = message + _MESSAGE_SIZE
        while attribute < at + size:
            length, name = _ATTRIBUTE.unpack_from(data, attribute)
            if name == _INET_DIAG_INFO:
                found[ports] = struct.unpack_from("=Q", data, attribute + _ATTRIBUTE.size + _BYTES_ACKED_AT)[0]
            attribute += (length + 3) & ~3
        at += (size + 3) & ~3
    return True
