# SPDX-License-Identifier: Apache-2.0
"""The sockets of peers: a broker's process, a follower's connection, and clients that measure."""

from __future__ import annotations

import gc
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from bench.peers import BATCH_BYTES, Follower, Leader
from weir.protocol.errors import ProtocolError
from weir.protocol.header import FETCH, PRODUCE, SIZE
from weir.protocol.response_scanner import Expected, FetchResponseScanner
from weir.proxy.event_loop import raise_descriptor_limit

_METADATA = 3
_HEAD = struct.Struct(">ihhi")  # size, api_key, api_version, correlation_id
_SIZED = struct.Struct(">ihhihi")  # a Metadata v0 request whose body is the size of the answer
_CHUNK = 2**18
_MOST_UNSENT = 2**20

Answer = Callable[[bytearray], bytearray]
"""Takes whole requests from the front of what came, and returns their answers."""


def metadata_request(correlation_id: int, response_size: int) -> bytes:
    """A request whose response frame has `response_size` bytes in all."""
    return _SIZED.pack(_SIZED.size - SIZE.size, _METADATA, 0, correlation_id, -1, response_size)


class Broker:
    """Answers what one connection sends: Fetch as a leader, and Metadata with as many bytes as its body says.

    All else, such as a sidecar's ApiVersions, gets a few zeros, and Produce nothing.
    """

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def __call__(self, unread: bytearray) -> bytearray:
        """Take whole requests from the front of `unread`, and return the answers."""
        out = bytearray()
        at, end = 0, len(unread)
        while at + _HEAD.size <= end and len(out) < _MOST_UNSENT:
            size, api_key, _, correlation_id = _HEAD.unpack_from(unread, at)
            behind = at + SIZE.size + size
            if behind > end:
                break
            if api_key == _METADATA and size == _SIZED.size - SIZE.size:
                (wanted,) = SIZE.unpack_from(unread, behind - SIZE.size)
                out += struct.pack(">ii", wanted - SIZE.size, correlation_id)
                out += bytes(wanted - 8)
            elif api_key == FETCH:
                out += self._leader.answer(bytes(unread[at + SIZE.size : behind]))
            elif api_key != PRODUCE:
                out += struct.pack(">ii6x", 10, correlation_id)
            at = behind
        del unread[:at]
        return out


class Same:
    """Answers every request of one connection with the same body behind its correlation id."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __call__(self, unread: bytearray) -> bytearray:
        """Take whole requests from the front of `unread`, and return the answers."""
        out = bytearray()
        while len(unread) >= _HEAD.size and len(out) < _MOST_UNSENT:
            size, _, _, correlation_id = _HEAD.unpack_from(unread)
            if len(unread) < SIZE.size + size:
                break
            out += struct.pack(">ii", SIZE.size + len(self._body), correlation_id)
            out += self._body
            del unread[: SIZE.size + size]
        return out


class _Served:
    """One connection of a broker. A client that does not read is not read from either."""

    def __init__(self, connection: socket.socket, answer: Answer) -> None:
        self.connection = connection
        self._answer = answer
        self._unread = bytearray()
        self._unsent = bytearray()

    @property
    def wants(self) -> int:
        """What to wait for."""
        return selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ

    def go_on(self) -> bool:
        """Receive or send; False when the other end is gone."""
        if not self._unsent:
            received = self.connection.recv(_CHUNK)
            if not received:
                return False
            self._unread += received
            self._unsent = self._answer(self._unread)
        if self._unsent:
            with suppress(BlockingIOError):
                del self._unsent[: self.connection.send(self._unsent)]
            self._unsent = self._unsent or self._answer(self._unread)
        return True


def serve(batch_bytes: int = BATCH_BYTES, niceness: int = 0) -> None:
    """Print a free port, and be a broker there until killed; all its partitions are behind (see Leader)."""
    serve_with(lambda: Broker(Leader(batch_bytes)), niceness)


def serve_with(new_answer: Callable[[], Answer], niceness: int = 0) -> None:
    """Print a free port, and answer each connection there until killed."""
    os.nice(niceness)
    raise_descriptor_limit()
    selector = selectors.EpollSelector()
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    selector.register(listening, selectors.EVENT_READ, None)
    print(listening.getsockname()[1], flush=True)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                connection, _ = listening.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, _Served(connection, new_answer()))
                continue
            served: _Served = key.data
            wanted = served.wants
            try:
                goes_on = served.go_on()
            except (OSError, ProtocolError):
                goes_on = False
            if not goes_on:
                selector.unregister(served.connection)
                served.connection.close()
            elif served.wants != wanted:
                selector.modify(served.connection, served.wants, served)


def connect(port: int) -> socket.socket:
    """A client's connection."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Fetcher:
    """A follower's connection, which asks again as soon as it has its answer. `received`: when how much came."""

    def __init__(self, port: int, follower: Follower) -> None:
        self.connection = connect(port)
        self.connection.setblocking(False)
        self.received: list[tuple[float, int]] = []
        self.first_at: float | None = None  # its first answer with data: an offset probe brings none
        self.answers = self.errors = 0
        self._follower = follower
        self._ask()

    def go_on(self, now: float, most: int = _CHUNK) -> int:
        """Take up to `most` bytes of what arrived, and return how many. Raises ConnectionError at the end of it."""
        view = memoryview(self.connection.recv(most))
        if not view:
            raise ConnectionError("The sidecar closed a follower's connection.")
        self._scanner.receive(view)
        if self._scanner.done:
            self.answers += 1
            self.errors += self._scanner.head.error_code != 0
            if size := self._follower.take(self._scanner.topics, self._scanner.head):
                self.received.append((now, size))
                self.first_at = self.first_at or now
            self._ask()
        return len(view)

    def _ask(self) -> None:
        self.connection.send(self._follower.request())
        asking = self._follower
        self._scanner = FetchResponseScanner(asking.version, asking.correlation_id, Expected(walk=asking.topics))


def worst_second(received: Sequence[tuple[float, int]]) -> int:
    """The most in any sliding second of (when, how much), in order of time."""
    worst = total = first = 0
    for at, size in received:
        total += size
        while received[first][0] <= at - 1.0:
            total -= received[first][1]
            first += 1
        worst = max(worst, total)
    return worst


def throughput(
    connection: socket.socket, request: Callable[[int, int], bytes], size: int, depth: int, seconds: float
) -> float:
    """Bytes/s that a connection receives while `depth` requests, each for `size` bytes, are always under way."""
    buffer = bytearray(2**20)
    sent = received = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        missing = received // size + depth - sent
        if missing > depth // 2:
            connection.sendall(b"".join([request(one, size) for one in range(sent, sent + missing)]))
            sent += missing
        count = connection.recv_into(buffer)
        if not count:
            raise ConnectionError("The connection ended in the middle of a measurement.")
        received += count
    return received / (time.perf_counter() - started)


def latencies(port: int, connections: int, rate: float, seconds: float, size: int) -> Callable[[float], float]:
    """Round trips of requests sent at `rate` a second in all, by one connection after the other.

    Each is measured from when it was due, so that a stall is not hidden by the requests it kept from being sent.
    Returns what tells how many milliseconds so many percent of them are not longer than.
    """
    poll = selectors.EpollSelector()
    due: list[list[float]] = [[] for _ in range(connections)]
    left = [0] * connections
    found: list[float] = []
    total, sent = int(rate * seconds), 0
    with ExitStack() as stack:
        asking = [stack.enter_context(connect(port)) for _ in due]
        for number, connection in enumerate(asking):
            poll.register(connection, selectors.EVENT_READ, number)
        gc.collect()
        gc.disable()  # the client's own pauses are not what is measured
        stack.callback(gc.enable)
        started = time.perf_counter()
        while len(found) < total:
            while sent < total and started + sent / rate <= time.perf_counter():
                due[sent % connections].append(started + sent / rate)
                asking[sent % connections].sendall(metadata_request(sent, size))
                sent += 1
            ready = poll.select(max(0.0, started + sent / rate - time.perf_counter()) if sent < total else 5.0)
            if not ready and sent == total:
                raise TimeoutError(f"{total - len(found)} of {total} responses did not come.")
            for key, _ in ready:
                number = key.data
                if not (count := len(asking[number].recv(2**16))):
                    raise ConnectionError("A connection ended in the middle of a measurement.")
                left[number] += count
                while left[number] >= size:
                    left[number] -= size
                    found.append(time.perf_counter() - due[number].pop(0))
    measured = sorted(found[len(found) // 10 :])  # the first tenth warms up
    return lambda percent: 1000 * measured[min(len(measured) - 1, int(len(measured) * percent / 100))]


def receive_frame(connection: socket.socket) -> bytearray:
    """Receive a frame, without its size."""
    (size,) = SIZE.unpack(_receive(connection, SIZE.size))
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytearray:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(_CHUNK, size - len(received)))
        if not chunk:
            raise ConnectionError("The connection ended in the middle of a frame.")
        received += chunk
    return received
