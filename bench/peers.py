"""A broker and clients for measuring relays: they do next to nothing, so that the relay is what is measured.

The broker answers Metadata requests (api_key 3) with as many bytes as their body says, and Fetch v3 requests with one
partition of that many record bytes. Anything else, such as a sidecar's ApiVersions, gets a few zeros.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from dataclasses import dataclass

_REQUEST = struct.Struct(">ihhihi")  # size, api_key, api_version, correlation_id, client id's length, first field
_METADATA, _FETCH = 3, 1
_FETCH_BODY = struct.Struct(">iiiiihciiqi")  # replica_id, max_wait_ms, min_bytes, max_bytes, 1 topic "t", 1 partition
_FETCH_RESPONSE = struct.Struct(">iiiihciihqi")


def metadata_request(correlation_id: int, response_size: int) -> bytes:
    """A request whose response frame has `response_size` bytes in all."""
    return _REQUEST.pack(_REQUEST.size - 4, _METADATA, 0, correlation_id, -1, response_size)


def fetch_request(correlation_id: int, response_size: int) -> bytes:
    """A replica's Fetch v3 request whose response frame has `response_size` bytes in all."""
    records = response_size - _FETCH_RESPONSE.size
    body = _FETCH_BODY.pack(2, 500, 1, 2**30, 1, 1, b"t", 1, 0, 7, records)
    return struct.pack(">ihhih", 10 + len(body), _FETCH, 3, correlation_id, -1) + body


def _responses(requests: memoryview) -> tuple[bytearray, int]:
    """The responses to all whole requests, and how many bytes those have."""
    out = bytearray()
    at = 0
    while at + _REQUEST.size <= len(requests):
        size, api_key, _, correlation_id, _, field = _REQUEST.unpack_from(requests, at)
        if at + 4 + size > len(requests):
            break
        if api_key == _FETCH:
            records = struct.unpack_from(">i", requests, at + size)[0]
            out += _FETCH_RESPONSE.pack(
                _FETCH_RESPONSE.size - 4 + records, correlation_id, 0, 1, 1, b"t", 1, 0, 0, 9, records
            )
            out += bytes(records)
        elif api_key == _METADATA:
            out += struct.pack(">ii", field - 4, correlation_id) + bytes(field - 8)
        else:  # a sidecar's own question, whether anybody is there: its body says no size
            out += struct.pack(">ii6x", 10, correlation_id)
        at += 4 + size
    return out, at


def serve() -> None:
    """Print a free port and answer requests on it, one connection at a time, until the process is killed."""
    selector = selectors.EpollSelector()
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    selector.register(listening, selectors.EVENT_READ)
    print(listening.getsockname()[1], flush=True)
    partial: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is listening:
                accepted, _ = listening.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(accepted, selectors.EVENT_READ)
                continue
            try:
                received = connection.recv(2**16)
                if received:
                    data = partial.pop(connection, b"") + received
                    responses, taken = _responses(memoryview(data))
                    if taken < len(data):
                        partial[connection] = data[taken:]
                    connection.sendall(responses)
            except OSError:
                received = b""
            if not received:
                selector.unregister(connection)
                partial.pop(connection, None)
                connection.close()


def connect(port: int) -> socket.socket:
    """A client's connection."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def throughput(port: int, response_size: int, depth: int, seconds: float, *, fetch: bool = False) -> float:
    """Bytes/s that one connection receives while `depth` requests are always under way."""
    make_request = fetch_request if fetch else metadata_request
    buffer = bytearray(2**20)
    with connect(port) as connection:
        sent = received = 0
        started = time.perf_counter()
        end = started + seconds
        while time.perf_counter() < end:
            missing = received // response_size + depth - sent
            if missing > depth // 2:
                connection.sendall(b"".join(make_request(one, response_size) for one in range(sent, sent + missing)))
                sent += missing
            size = connection.recv_into(buffer)
            if not size:
                raise ConnectionError("The connection ended in the middle of a measurement.")
            received += size
        return received / (time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Round trips in seconds, sorted."""

    seconds: list[float]

    def percentile(self, percent: float) -> float:
        """The round trip that `percent` of all are not longer than."""
        return self.seconds[min(len(self.seconds) - 1, int(len(self.seconds) * percent / 100))]


def latencies(connections: list[socket.socket], rate: float, seconds: float, response_size: int) -> Latencies:
    """Round trips of requests sent at `rate` a second in all, by one connection after the other.

    Each is measured from when it was due, so that a stall is not hidden by the requests it kept from being sent.
    """
    poll = selectors.EpollSelector()
    for connection in connections:
        poll.register(connection, selectors.EVENT_READ)
    due: dict[socket.socket, list[float]] = {connection: [] for connection in connections}
    left = dict.fromkeys(connections, 0)
    found: list[float] = []
    started = time.perf_counter()
    total, sent = int(rate * seconds), 0
    while len(found) < total:
        now = time.perf_counter()
        while sent < total and started + sent / rate <= now:
            connection = connections[sent % len(connections)]
            due[connection].append(started + sent / rate)
            connection.sendall(metadata_request(sent, response_size))
            sent += 1
        wait = started + sent / rate - time.perf_counter() if sent < total else 5.0
        ready = poll.select(max(0.0, wait))
        if not ready and sent == total:
            raise TimeoutError(f"{total - len(found)} of {total} responses did not come.")
        for key, _ in ready:
            connection = key.fileobj  # type: ignore[assignment]
            left[connection] += len(connection.recv(2**16))
            while left[connection] >= response_size:
                left[connection] -= response_size
                found.append(time.perf_counter() - due[connection].pop(0))
    return Latencies(sorted(found[len(found) // 10 :]))  # the first tenth warms up
