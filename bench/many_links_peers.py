"""A leader and followers that cost next to nothing, for `bench.many_links`: each a process.

The leader has endless logs of equal batches. It answers as Kafka does: partitions in their order, at least one whole
batch from the first with data, fetch sessions from v7 on with an order of their own. Topics go by name (v3 to v12).
"""

from __future__ import annotations

import contextlib
import json
import math
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise

from weir.protocol.fetch import (
    NO_LEADER_EPOCH,
    FetchRequest,
    FetchVersion,
    RequestTopic,
    decode_fetch_request,
    encode_fetch_request,
    fetch_version,
)
from weir.protocol.fetch_session import FIRST_SESSION_VERSION, INITIAL_EPOCH, next_epoch
from weir.protocol.header import FETCH, SIZE, RequestHeader
from weir.protocol.primitives import CLASSIC, COMPACT
from weir.protocol.response_scanner import FetchResponseScanner
from weir.proxy.event_loop import raise_descriptor_limit

TOPIC = b"t"
PARTITIONS = 50
BATCH_SIZE = 10_000
FIRST_REPLICA = 1_000

_HIGH_WATERMARK = 10**9
_MAX_WAIT_MS = 500  # replica.fetch.wait.max.ms
_RESPONSE_MAX_BYTES = 10 * 2**20
_PARTITION_MAX_BYTES = 2**20
_CHUNK = 2**18


@dataclass(slots=True)
class _Asked:
    """One partition of a fetch, or of a session."""

    max_bytes: int
    is_new: bool = True  # the session has told nothing of it yet


class _Served:
    """One connection of the leader, whose batches have `batch_size` bytes."""

    def __init__(self, connection: socket.socket, batch_size: int) -> None:
        self.connection = connection
        self._batch_size = batch_size
        batch = struct.pack(">qiib", 0, batch_size - 12, 0, 2) + bytes(batch_size - 17)
        self._batches = batch * (1 + _PARTITION_MAX_BYTES // batch_size)
        self._unread = bytearray()
        self._unsent = bytearray()
        self._session: dict[int, _Asked] = {}
        self._session_id = 0

    @property
    def wants(self) -> int:
        """What to wait for."""
        return selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ

    def go_on(self, new_id: int) -> bool:
        """Send, or receive and answer; False when the other end is gone. `new_id` is for a session that begins now."""
        if not self._unsent:
            received = self.connection.recv(_CHUNK)
            if not received:
                return False
            self._unread += received
            while len(self._unread) >= SIZE.size:
                end = SIZE.size + SIZE.unpack_from(self._unread)[0]
                if len(self._unread) < end:
                    break
                if struct.unpack_from(">h", self._unread, SIZE.size)[0] != FETCH:
                    return False  # the sidecar looks whether its leader is there
                self._answer(decode_fetch_request(bytes(self._unread[SIZE.size : end])), new_id)
                del self._unread[:end]
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self.connection.send(self._unsent)]
        return True

    def _answer(self, request: FetchRequest, new_id: int) -> None:
        row = fetch_version(request.header.api_version)
        listed = {
            partition: _Asked(max_bytes)
            for _, entries, stride, _ in request.topics
            for partition, _, max_bytes in row.requested(stride).iter_unpack(entries)
        }
        is_incremental = row.api_version >= FIRST_SESSION_VERSION and request.session_epoch > INITIAL_EPOCH
        if is_incremental:
            for partition, asked in listed.items():
                asked.is_new = partition not in self._session
            for _, partitions, _ in request.forgotten:
                for partition in partitions:
                    self._session.pop(partition, None)
            self._session.update(listed)
        elif row.api_version >= FIRST_SESSION_VERSION:
            self._session = listed
            self._session_id = new_id if request.session_epoch == INITIAL_EPOCH else 0
            listed = dict(listed)
        else:
            self._session = listed
        found = self._read(row, request.max_bytes, is_incremental=is_incremental)
        encoding = COMPACT if row.is_flexible else CLASSIC
        head = {"throttle_time_ms": 0, "error_code": 0, "session_id": self._session_id}
        parts = [
            b"",
            SIZE.pack(request.header.correlation_id),
            encoding.tags(b""),
            row.response_head.layout.pack(*[head[name] for name in row.response_head.names]),
            encoding.count(1 if found else 0),
        ]
        if found:
            parts += [encoding.string(TOPIC), encoding.count(len(found)), *found, encoding.tags(b"")]
        parts.append(encoding.tags(b""))
        parts[0] = SIZE.pack(sum(map(len, parts)))
        self._unsent += b"".join(parts)

    def _read(self, row: FetchVersion, left: int, *, is_incremental: bool) -> list[bytes]:
        """The entries of an answer with at most `left` bytes, or one batch."""
        found: list[bytes] = []
        has_data = False
        for partition, asked in list(self._session.items()):
            size = min(asked.max_bytes, left, len(self._batches))
            if size < self._batch_size:
                size = 0 if has_data else self._batch_size
            if size:
                has_data = True
                left = max(0, left - size)
                self._session[partition] = self._session.pop(partition)
            if size or asked.is_new or not is_incremental:
                found.append(_entry(row, partition, self._batches[:size]))
            asked.is_new = False
        return found


def _entry(row: FetchVersion, partition: int, records: bytes) -> bytes:
    encoding = COMPACT if row.is_flexible else CLASSIC
    values = {"partition": partition, "error_code": 0, "log_start_offset": 0}
    fixed = row.response_partition.layout.pack(
        *[values.get(name, _HIGH_WATERMARK) for name in row.response_partition.names]
    )
    transactions = encoding.count(-1) if row.has_aborted_transactions else b""
    replica = SIZE.pack(-1) if row.has_preferred_read_replica else b""
    return b"".join((fixed, transactions, replica, encoding.count(len(records)), records, encoding.tags(b"")))


def serve() -> None:
    """Print a free port and be a leader on it until killed. An argument is the size of its batches in bytes."""
    batch_size = int(sys.argv[1]) if len(sys.argv) > 1 else BATCH_SIZE
    raise_descriptor_limit()
    selector = selectors.EpollSelector()
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    selector.register(listening, selectors.EVENT_READ, None)
    print(listening.getsockname()[1], flush=True)
    new_id = 0
    while True:
        for key, _ in selector.select():
            if key.data is None:
                connection, _ = listening.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, _Served(connection, batch_size))
                continue
            served: _Served = key.data
            new_id += 1
            wanted = served.wants
            try:
                goes_on = served.go_on(new_id)
            except OSError:
                goes_on = False
            if not goes_on:
                selector.unregister(served.connection)
                served.connection.close()
            elif served.wants != wanted:
                selector.modify(served.connection, served.wants, served)


@dataclass(slots=True)
class Followed:
    """What all followers saw while they were watched; bytes and seconds."""

    seconds: float
    received: list[int]
    """By link."""
    longest_waits: list[float]
    """By link: the longest time without data."""
    worst_second: int
    answers: int
    errors: int
    begun_seconds: float
    """From the first connection on until every link had its first data of a grant."""


class Follower:
    """One link's follower: it asks again as soon as it has its answer."""

    def __init__(self, port: int, replica_id: int, version: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.setblocking(False)
        self.received: list[tuple[float, int]] = []  # when, and how many bytes of records
        self.answers = self.errors = 0
        self.begun_at = math.inf  # its first answer with data: an offset probe brings none
        self._replica_id = replica_id
        self._row = fetch_version(version)
        self._correlation_id = 0
        self._entries = {partition: self._entry(partition, 0) for partition in range(PARTITIONS)}
        self._offsets = dict.fromkeys(range(PARTITIONS), 0)
        self._session_id, self._epoch = 0, INITIAL_EPOCH
        self._ask(self._entries.values())

    def go_on(self, now: float, most: int = _CHUNK) -> int:
        """Take what arrived, up to `most` bytes, and return how many; raises ConnectionError when the other end is
        gone.
        """
        view = memoryview(self.connection.recv(most))
        if not view:
            raise ConnectionError("the sidecar closed a follower's connection")
        self._scanner.receive(view)
        if self._scanner.done:
            self._take(now)
        return len(view)

    def _take(self, now: float) -> None:
        changed: list[bytes] = []
        size = 0
        self.answers += 1
        for _, _, records, _ in self._scanner.topics:
            for seen in records:
                size += seen.size
                self._offsets[seen.partition] += seen.batches
                entry = self._entry(seen.partition, self._offsets[seen.partition])
                self._entries.pop(seen.partition)  # what returned data goes to the end
                self._entries[seen.partition] = entry
                changed.append(entry)
        if size:
            self.received.append((now, size))
            self.begun_at = min(self.begun_at, now)
        head = self._scanner.head
        self.errors += head.error_code != 0
        if head.error_code or not head.session_id:
            self._session_id, self._epoch = 0, INITIAL_EPOCH
            self._ask(self._entries.values())
        else:
            self._session_id, self._epoch = head.session_id, next_epoch(self._epoch)
            self._ask(changed)

    def _entry(self, partition: int, fetch_offset: int) -> bytes:
        values = {
            "partition": partition,
            "current_leader_epoch": NO_LEADER_EPOCH,
            "fetch_offset": fetch_offset,
            "last_fetched_epoch": NO_LEADER_EPOCH,
            "log_start_offset": 0,
            "partition_max_bytes": _PARTITION_MAX_BYTES,
        }
        fields = self._row.request_partition
        packed = fields.layout.pack(*[values[name] for name in fields.names])
        return packed + (COMPACT if self._row.is_flexible else CLASSIC).tags(b"")

    def _ask(self, entries: Iterable[bytes]) -> None:
        self._correlation_id += 1
        version, joined = self._row.api_version, b"".join(entries)
        topics = [RequestTopic(TOPIC, joined, len(self._entries[0]))] if joined else []
        header = RequestHeader(FETCH, version, self._correlation_id, b"replica")
        request = FetchRequest(header, self._replica_id, _MAX_WAIT_MS, 1, _RESPONSE_MAX_BYTES, topics)
        self.connection.send(
            encode_fetch_request(request.with_(session_id=self._session_id, session_epoch=self._epoch))
        )
        self._scanner = FetchResponseScanner(version, self._correlation_id, walk=(TOPIC,))


def follow() -> None:
    """Follow as the arguments say (port, links, version, seconds of warm-up, seconds), and print what was seen.

    A line is printed when the warm-up is over, and then the figures as JSON.
    """
    raise_descriptor_limit()
    port, links, version = (int(argument) for argument in sys.argv[1:4])
    warm_up, seconds = float(sys.argv[4]), float(sys.argv[5])
    selector = selectors.EpollSelector()
    connected_at = time.monotonic()
    followers = [Follower(port, FIRST_REPLICA + number, version) for number in range(links)]
    for follower in followers:
        selector.register(follower.connection, selectors.EVENT_READ, follower)
    start = time.monotonic() + warm_up
    _run(selector, start)
    for follower in followers:
        follower.received.clear()
        follower.answers = 0
    print("warm", flush=True)
    start = time.monotonic()
    _run(selector, start + seconds)
    print(json.dumps(asdict(_figures(followers, connected_at, start, time.monotonic()))), flush=True)


def _run(selector: selectors.EpollSelector, end: float) -> None:
    while (now := time.monotonic()) < end:
        for key, _ in selector.select(end - now):
            key.data.go_on(time.monotonic())


def _figures(followers: list[Follower], connected_at: float, start: float, end: float) -> Followed:
    waits = []
    for follower in followers:
        times = [start, *(at for at, _ in follower.received), end]
        waits.append(max(later - earlier for earlier, later in pairwise(times)))
    return Followed(
        seconds=end - start,
        received=[sum(size for _, size in follower.received) for follower in followers],
        longest_waits=waits,
        worst_second=worst_second(sorted(one for follower in followers for one in follower.received)),
        answers=sum(follower.answers for follower in followers),
        errors=sum(follower.errors for follower in followers),
        begun_seconds=max(follower.begun_at for follower in followers) - connected_at,
    )


def worst_second(received: list[tuple[float, int]]) -> int:
    """The most bytes in any sliding second."""
    worst = total = first = 0
    for at, size in received:
        total += size
        while received[first][0] <= at - 1.0:
            total -= received[first][1]
            first += 1
        worst = max(worst, total)
    return worst
