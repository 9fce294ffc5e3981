"""Clients that send more than anyone should, and the broker that they reach, for `bench.attacks`: each a process."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from bench.peers import metadata_request
from weir.protocol.errors import ProtocolError
from weir.protocol.fetch import (
    FetchRequest,
    RequestTopic,
    ResponseTopic,
    decode_fetch_request,
    encode_fetch_request,
    encode_fetch_response,
    made_up_entries,
)
from weir.protocol.header import FETCH, PRODUCE, RequestHeader

VERSION = 3
THROTTLED, UNTHROTTLED = b"t", b"u"
NICENESS = 10  # below the sidecar and what measures it: the machine's cores are few

_PARTITION = struct.Struct(">iqi")
_HEAD = struct.Struct(">ihhi")
_HIGH_WATERMARK = 10**9
_CHUNK = 2**16
_MOST_UNSENT = 2**20
_METADATA = 3
_SIZE = struct.Struct(">i")
_SIZED = len(metadata_request(0, 8)) - 4  # such a request says how large its answer is to be
_CONNECTS_EACH_TURN = 20
_SCRAPED_PARTITIONS = 20_000


def fetch_frame(correlation_id: int, topic: bytes, partitions: int, replica_id: int, max_wait_ms: int = 500) -> bytes:
    """A replica's whole Fetch request, far behind the high watermark."""
    entries = b"".join(_PARTITION.pack(number, 7, 2**20) for number in range(partitions))
    header = RequestHeader(FETCH, VERSION, correlation_id, b"replica")
    topics = [RequestTopic(topic, entries, _PARTITION.size)]
    return encode_fetch_request(FetchRequest(header, replica_id, max_wait_ms, 1, 2**30, topics))


def tiny_request(correlation_id: int) -> bytes:
    """The smallest request there is: its response has 8 bytes."""
    return _HEAD.pack(10, 3, 0, correlation_id) + b"\xff\xff"


def unanswered_request(correlation_id: int) -> bytes:
    """A Produce request v0 with acks=0 and nothing in it."""
    return _HEAD.pack(20, PRODUCE, 0, correlation_id) + struct.pack(">hhii", -1, 0, 1000, 0)


def serve(niceness: int = 0) -> None:
    """Print a free port and answer on it until killed. A client that does not read is not read from either."""
    os.nice(niceness)
    selector = selectors.EpollSelector()
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listening.setblocking(False)
    selector.register(listening, selectors.EVENT_READ, None)
    print(listening.getsockname()[1], flush=True)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                connection, _ = listening.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, _Served(connection))
                continue
            served: _Served = key.data
            try:
                goes_on = served.go_on()
            except (OSError, ProtocolError):
                goes_on = False
            if goes_on:
                selector.modify(served.connection, served.wants(), served)
            else:
                selector.unregister(served.connection)
                served.connection.close()


class _Served:
    """One connection of the broker."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unread = bytearray()
        self.unsent = bytearray()

    def wants(self) -> int:
        """What to wait for."""
        return selectors.EVENT_WRITE if self.unsent else selectors.EVENT_READ

    def go_on(self) -> bool:
        """Send, or receive and answer; False when the other end is gone."""
        if not self.unsent:
            received = self.connection.recv(_CHUNK)
            if not received:
                return False
            self.unread += received
            self._answer()
        if self.unsent:
            with contextlib.suppress(BlockingIOError):
                del self.unsent[: self.connection.send(self.unsent)]
                self._answer()
        return True

    def _answer(self) -> None:
        at, data = 0, self.unread
        while at + _HEAD.size <= len(data) and len(self.unsent) < _MOST_UNSENT:
            size, api_key, _, correlation_id = _HEAD.unpack_from(data, at)
            end = at + 4 + size
            if end > len(data):
                break
            if api_key == FETCH:
                self.unsent += _fetched(bytes(data[at + 4 : end]))
            elif api_key != PRODUCE:
                is_sized = api_key == _METADATA and size == _SIZED
                wanted = _SIZE.unpack_from(data, end - _SIZE.size)[0] if is_sized else 8
                self.unsent += struct.pack(">ii", wanted - 4, correlation_id) + bytes(wanted - 8)
            at = end
        del data[:at]


def _fetched(frame: bytes) -> bytes:
    asked = decode_fetch_request(frame)
    topics = [
        ResponseTopic(
            topic.name,
            made_up_entries(
                VERSION, [(partition, _HIGH_WATERMARK) for partition, *_ in _PARTITION.iter_unpack(topic.entries)]
            ),
        )
        for topic in asked.topics
    ]
    return encode_fetch_response(VERSION, asked.header.correlation_id, 0, topics)


class _Flooder:
    """A client that sends the same bytes again and again as fast as they are taken."""

    def __init__(self, port: int, data: bytes, *, reads: bool) -> None:
        self.data = data
        self.at = 0
        self.reads = reads
        self.moved_at = time.monotonic()
        self.connection = socket.socket()
        self.connection.setblocking(False)
        self.connection.connect_ex(("127.0.0.1", port))

    def go_on(self, mask: int) -> None:
        """Send what is taken, read what is there."""
        if mask & selectors.EVENT_READ and self.reads and not self.connection.recv(_CHUNK):
            raise ConnectionError
        if mask & selectors.EVENT_WRITE:
            sent = self.connection.send(memoryview(self.data)[self.at :])
            self.at = (self.at + sent) % len(self.data)
            self.moved_at = time.monotonic()


def _flood(port: int, data: bytes, clients: int, *, reads: bool) -> None:
    """Keep `clients` flooding; one of which nothing was taken for a while is closed, and another comes."""
    selector = selectors.EpollSelector()
    flooders: set[_Flooder] = set()
    wanted = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
    is_ready = False
    while True:
        for _ in range(min(_CONNECTS_EACH_TURN, clients - len(flooders))):
            flooder = _Flooder(port, data, reads=reads)
            flooders.add(flooder)
            selector.register(flooder.connection, wanted, flooder)
        if len(flooders) == clients and not is_ready:
            is_ready = True
            print("ready", flush=True)
        for key, mask in selector.select(0.05):
            try:
                key.data.go_on(mask)
            except BlockingIOError:
                pass
            except OSError:
                key.data.moved_at = 0.0
        for flooder in [one for one in flooders if time.monotonic() - one.moved_at > 0.3]:
            selector.unregister(flooder.connection)
            flooder.connection.close()
            flooders.remove(flooder)


def _hold(port: int, clients: int) -> None:
    """`clients` fakes whose fetches are held, and one fetcher whose every answer has them planned again."""
    fakes = []
    for number in range(clients):
        fake = socket.create_connection(("127.0.0.1", port))
        fake.sendall(fetch_frame(1, THROTTLED, 20, 1000 + number, 2**31 - 1))
        fakes.append(fake)
    for fake in fakes:  # the first brings the high watermark, the second is held
        _receive_frame(fake)
        fake.sendall(fetch_frame(2, THROTTLED, 20, 7, 2**31 - 1))
    fetcher = socket.create_connection(("127.0.0.1", port))
    print("ready", flush=True)
    for number in itertools.count():
        fetcher.sendall(fetch_frame(number % 2**31, UNTHROTTLED, 5, 2))
        _receive_frame(fetcher)
        time.sleep(0.002)


def _send_halves(port: int, clients: int, size: int) -> None:
    """`clients` that send the first `size` bytes of a fetch each, and then nothing."""
    half = fetch_frame(1, THROTTLED, 25_000, 7)[:size]
    halves = []
    for _ in range(clients):
        connection = socket.create_connection(("127.0.0.1", port))
        halves.append(connection)
        try:
            connection.sendall(half)
        except OSError:  # this one was given up already
            continue
    print("ready", flush=True)
    time.sleep(3600)


def _never_read(port: int, clients: int) -> None:
    """`clients` that ask for answers of 1 MB each, more than kernels keep, and read nothing."""
    asked = b"".join(metadata_request(number, 10**6) for number in range(100))
    stuck = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    for connection in stuck:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(asked)
    time.sleep(2.0)  # until the sidecar's buffers are as full as they get
    print("ready", flush=True)
    time.sleep(3600)


def _scrape(port: int, admin: int, scrapers: int) -> None:
    """`scrapers` that get the metrics again and again, of which 20,000 partitions have one or two each."""
    follower = socket.create_connection(("127.0.0.1", port))
    for correlation_id in range(2):
        follower.sendall(fetch_frame(correlation_id, UNTHROTTLED, _SCRAPED_PARTITIONS, 3))
        _receive_frame(follower)
    threads = [threading.Thread(target=_scrape_on, args=(admin,), daemon=True) for _ in range(scrapers)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    print("ready", flush=True)
    time.sleep(3600)


def _scrape_on(admin: int) -> None:
    while True:
        with socket.create_connection(("127.0.0.1", admin)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            while connection.recv(2**18):
                pass


def _receive_frame(connection: socket.socket) -> bytes:
    head = _receive(connection, 4)
    return head + _receive(connection, struct.unpack(">i", head)[0])


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("The connection ended in the middle of a frame.")
        received += chunk
    return bytes(received)


def fetch_once(port: int, partitions: int) -> bool:
    """Whether a real full fetch on a connection of its own is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        try:
            connection.sendall(fetch_frame(1, UNTHROTTLED, partitions, 3))
            _receive_frame(connection)
        except OSError:
            return False
    return True


def _blob(make: Callable[[int], bytes]) -> bytes:
    return b"".join(make(number) for number in range(_CHUNK // len(make(0))))


HALVES = "699 halves of 150 KB"
NEVER_READ = "60 clients, answers of 1 MB, never read"
SCRAPERS = "20 scrapers, 20,000 partitions"

ATTACKS: dict[str, Callable[[int, int], None]] = {
    "100 clients, tiny requests, never read": lambda port, _: _flood(port, _blob(tiny_request), 100, reads=False),
    "100 clients, tiny requests, read": lambda port, _: _flood(port, _blob(tiny_request), 100, reads=True),
    "100 clients, acks=0": lambda port, _: _flood(port, _blob(unanswered_request), 100, reads=False),
    "20 clients, pipelined replica fetches": lambda port, _: _flood(
        port, _blob(lambda number: fetch_frame(number, UNTHROTTLED, 5, 9)), 20, reads=False
    ),
    "1,000 held fakes": lambda port, _: _hold(port, 1000),
    HALVES: lambda port, _: _send_halves(port, 699, 150_000),
    NEVER_READ: lambda port, _: _never_read(port, 60),
    SCRAPERS: lambda port, admin: _scrape(port, admin, 20),
}


def attack() -> None:
    """Attack as the arguments say (name, port, admin server's port), print `ready` when it is under way, go on."""
    os.nice(NICENESS)
    ATTACKS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    attack()
