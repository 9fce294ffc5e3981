# SPDX-License-Identifier: Apache-2.0
"""Clients that send more than anyone should, for `bench.attacks`. Each attack is a process that prints `ready`."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from bench.peers import PARTITION_MAX_BYTES, request_frame, requested
from bench.sockets import connect, metadata_request, receive_frame
from weir.protocol.fetch_request import FetchRequest, ForgottenTopic, encode_fetch_request
from weir.protocol.fetch_versions import FETCH_VERSIONS
from weir.protocol.header import FETCH, PRODUCE, RequestHeader
from weir.protocol.request_topics import RequestTopic
from weir.proxy.event_loop import raise_descriptor_limit

THROTTLED, UNTHROTTLED = b"t", b"u"
HOSTILE = b"hostile"  # a client id that has a limit
NICENESS = 10  # below the sidecar and what measures it: the machine's cores are few
CROWD_ADDRESS = "127.0.0.2"

_ROW = FETCH_VERSIONS[3]
_HEAD = struct.Struct(">ihhi")
_CHUNK = 2**16
_FORGOTTEN = 50_000
_CONNECTS_EACH_TURN = 20
_IN_A_ROW = 50  # of a crowd, as programs would connect: none waits for another
_SCRAPED_PARTITIONS = 20_000
_BACKOFF_SECONDS = 1.0  # what Kafka's clients wait at most (reconnect.backoff.max.ms)
_STUCK_SECONDS = 0.3


def fetch_frame(
    correlation_id: int,
    topic: bytes,
    partitions: int,
    replica_id: int,
    max_wait_ms: int = 500,
    max_bytes: int = PARTITION_MAX_BYTES,
) -> bytes:
    """A replica's whole Fetch request, far behind the high watermark."""
    entries = b"".join(requested(_ROW, number, 7, max_bytes) for number in range(partitions))
    topics = [RequestTopic(topic, entries, _ROW.partition_size)]
    return request_frame(_ROW, correlation_id, topics, replica_id=replica_id, max_wait_ms=max_wait_ms)


def tiny_request(correlation_id: int) -> bytes:
    """The smallest request there is."""
    return _HEAD.pack(10, 3, 0, correlation_id) + b"\xff\xff"


def unanswered_request(correlation_id: int) -> bytes:
    """A Produce request v0 with acks=0 and nothing in it."""
    return _HEAD.pack(20, PRODUCE, 0, correlation_id) + struct.pack(">hhii", -1, 0, 1000, 0)


def tagged_produce(_: int) -> bytes:
    """A Produce v9 with acks=0 that announces 2^31 tags, and has some hundred thousand without bytes."""
    head = struct.pack(">hhih", PRODUCE, 9, 1, len(HOSTILE)) + HOSTILE + b"\x00\x00" + struct.pack(">hi", 0, 1000)
    partition = struct.pack(">i", 0) + b"\x01" + b"\xff\xff\xff\xff\x07"
    body = head + b"\x02\x02t\x02" + partition + bytes(10 * _CHUNK)
    return struct.pack(">i", len(body)) + body


def forgetting_fetch(correlation_id: int) -> bytes:
    """A replica's Fetch v7 of 1.6 MB that forgets 50,000 topics of a session that there is not."""
    header = RequestHeader(FETCH, 7, correlation_id, HOSTILE)
    forgotten = tuple(ForgottenTopic(b"%022d" % number, (0,)) for number in range(_FORGOTTEN))
    return encode_fetch_request(FetchRequest(header, 9, 500, 1, 2**20, [], 0, 5, 3, forgotten))


def _ready() -> None:
    print("ready", flush=True)


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


def _flood(port: int, make: Callable[[int], bytes], clients: int, *, reads: bool = False) -> NoReturn:
    """Keep `clients` flooding; one of which nothing was taken for a while is closed, and another comes."""
    data = b"".join(make(number) for number in range(max(1, _CHUNK // len(make(0)))))
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
            _ready()
        for key, mask in selector.select(0.05):
            try:
                key.data.go_on(mask)
            except BlockingIOError:
                pass
            except OSError:
                key.data.moved_at = 0.0
        for flooder in [one for one in flooders if time.monotonic() - one.moved_at > _STUCK_SECONDS]:
            selector.unregister(flooder.connection)
            flooder.connection.close()
            flooders.remove(flooder)


def _hold(port: int, clients: int) -> None:
    """`clients` fakes whose fetches are held, and one fetcher whose every answer has them planned again."""
    fakes = [connect(port) for _ in range(clients)]
    for number, fake in enumerate(fakes):
        fake.sendall(fetch_frame(1, THROTTLED, 20, 1000 + number, 2**31 - 1))
    for fake in fakes:  # the first brings the high watermark, the second is held
        receive_frame(fake)
        fake.sendall(fetch_frame(2, THROTTLED, 20, 7, 2**31 - 1))
    fetcher = connect(port)
    _ready()
    for number in itertools.count():
        fetcher.sendall(fetch_frame(number % 2**31, UNTHROTTLED, 5, 2))
        receive_frame(fetcher)
        time.sleep(0.002)


def _send_halves(port: int, clients: int, size: int) -> None:
    """`clients` that send the first `size` bytes of a fetch each, and then nothing."""
    half = fetch_frame(1, THROTTLED, 25_000, 7)[:size]
    halves = []
    for _ in range(clients):
        halves.append(connect(port))
        with contextlib.suppress(OSError):  # this one was given up already
            halves[-1].sendall(half)
    _ready()
    time.sleep(3600)


def _never_read(port: int, clients: int) -> None:
    """`clients` that ask for answers of 1 MB each, more than kernels keep, and read nothing."""
    asked = b"".join(metadata_request(number, 10**6) for number in range(100))
    stuck = [connect(port) for _ in range(clients)]
    for connection in stuck:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(asked)
    time.sleep(2.0)  # until the sidecar's buffers are as full as they get
    _ready()
    time.sleep(3600)


def _scrape(port: int, admin: int, scrapers: int) -> None:
    """`scrapers` that get the metrics again and again, of which 20,000 partitions have one or two each."""
    follower = connect(port)
    for correlation_id in range(2):
        follower.sendall(fetch_frame(correlation_id, UNTHROTTLED, _SCRAPED_PARTITIONS, 3))
        receive_frame(follower)
    for _ in range(scrapers):
        threading.Thread(target=_scrape_on, args=(admin,), daemon=True).start()
    time.sleep(1.0)
    _ready()
    time.sleep(3600)


def _scrape_on(admin: int) -> NoReturn:
    while True:
        with connect(admin) as connection:
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            while connection.recv(2**18):
                pass


def crowd(port: int, count: int) -> NoReturn:
    """`count` connections from one address: each asks once, and stays. One that is sent away comes again."""
    raise_descriptor_limit()
    poll = selectors.EpollSelector()
    due = [(0.0, number) for number in range(count)]
    unsettled = set(range(count))
    while True:
        now = time.monotonic()
        for _ in range(_IN_A_ROW):
            if not due or due[0][0] > now:
                break
            _, number = heapq.heappop(due)
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((CROWD_ADDRESS, 0))
            connection.connect_ex(("127.0.0.1", port))
            poll.register(connection, selectors.EVENT_WRITE, number)
        for key, ready in poll.select(0.0 if due and due[0][0] <= now else 0.1):
            connection, number = key.fileobj, key.data  # type: ignore[assignment]
            stays = False
            with contextlib.suppress(OSError):
                if ready & selectors.EVENT_WRITE:
                    connection.send(metadata_request(number, 64))
                    poll.modify(connection, selectors.EVENT_READ, number)
                    stays = True
                else:
                    stays = bool(connection.recv(64))
                    unsettled.discard(number)
            if not stays:
                poll.unregister(connection)
                connection.close()
                unsettled.discard(number)
                heapq.heappush(due, (time.monotonic() + _BACKOFF_SECONDS, number))
        if not unsettled:
            _ready()
            unsettled.add(-1)  # said once


def fetch_once(port: int, partitions: int) -> bool:
    """Whether a real full fetch on a connection of its own is answered."""
    with connect(port) as connection, contextlib.suppress(OSError):
        connection.settimeout(10)
        connection.sendall(fetch_frame(1, UNTHROTTLED, partitions, 3))
        receive_frame(connection)
        return True
    return False


HALVES = "699 halves of 150 KB"
NEVER_READ = "60 clients, answers of 1 MB, never read"
SCRAPERS = "20 scrapers, 20,000 partitions"

ATTACKS: dict[str, Callable[[int, int], None]] = {
    "100 clients, tiny requests, never read": lambda port, _: _flood(port, tiny_request, 100),
    "100 clients, tiny requests, read": lambda port, _: _flood(port, tiny_request, 100, reads=True),
    "100 clients, acks=0": lambda port, _: _flood(port, unanswered_request, 100),
    "20 clients, pipelined replica fetches": lambda port, _: _flood(
        port, lambda number: fetch_frame(number, UNTHROTTLED, 5, 9), 20
    ),
    "40 clients, 2^31 tags each": lambda port, _: _flood(port, tagged_produce, 40),
    "8 clients, 50,000 forgotten topics each": lambda port, _: _flood(port, forgetting_fetch, 8, reads=True),
    "1,000 held fakes": lambda port, _: _hold(port, 1000),
    HALVES: lambda port, _: _send_halves(port, 699, 150_000),
    NEVER_READ: lambda port, _: _never_read(port, 60),
    SCRAPERS: lambda port, admin: _scrape(port, admin, 20),
}


def attack(name: str, port: int, admin: int) -> None:
    """Attack, print `ready` when it is under way, go on."""
    os.nice(NICENESS)
    ATTACKS[name](port, admin)
