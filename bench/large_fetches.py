"""How long a fetch of tens of thousands of topics keeps everything else waiting: `python -m bench.large_fetches`.

The sidecar is a process of its own, so that its garbage collector works as it does in service. A made-up follower sends
whole fetches, and a made-up leader answers each with an entry for every partition. Measured is the longest turn of the
sidecar's event loop, in CPU time.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.processes import running, wait_for
from bench.relay import free_port
from bench.table import Report, parser
from weir.protocol.fetch import (
    FetchRequest,
    RequestTopic,
    ResponseTopic,
    encode_fetch_request,
    encode_fetch_response,
    fetch_version,
    made_up_entries,
)
from weir.protocol.header import FETCH, SIZE, RequestHeader

LONGEST_TURN_MS = 20.0
MOST_GROWTH_MB = 10.0
MEMORY_TOPICS = 10_000
MEMORY_VERSION = 3
SETTLED_AFTER = 15  # connections: by then as much is kept of lag as the bound of its table allows
ROUNDS = 3
FETCHES = 3  # of each connection
_FREED_SECONDS = 0.3  # after a connection, for what it kept
_QUIET_SECONDS = 1.0  # after the last answer, for what is done later
_CHUNK = 2**16
_HIGH_WATERMARK = 7

COLUMNS = {"topics": 0, "Fetch": 0, "throttled": 0, "p99 turn, ms of CPU": 2, "longest turn": 1}


def main() -> int:
    """Measure and print; 1 when a turn is too long."""
    options = parser("bench.large_fetches", "Measure the longest turn of the loop while fetches of many topics pass.")
    options.add_argument("--topics", type=int, nargs="+", default=[10_000, 50_000], help="of a fetch (10000 50000)")
    options.add_argument("--versions", type=int, nargs="+", default=[3, 12], help="of Fetch, 3 to 12 (3 12)")
    options.add_argument("--connections", type=int, default=40, help="opened and closed to measure memory (40)")
    options.add_argument("--tree", type=Path, default=Path.cwd(), help="measure the sidecar of another checkout")
    chosen = options.parse_args()
    report = Report(chosen.json)
    longest: list[tuple[str, float]] = []

    def measured() -> Iterator[Sequence[object]]:
        for topics in chosen.topics:
            for version in chosen.versions:
                for throttled in (False, True):
                    p99, turn = _measure(chosen.tree, topics, version, throttled=throttled)
                    kind = "throttled" if throttled else "not throttled"
                    longest.append((f"{topics} topics, v{version}, {kind}", turn))
                    yield topics, f"v{version}", "all" if throttled else "none", p99, turn

    report.table(f"Longest of all turns in {ROUNDS} rounds of {FETCHES} fetches", COLUMNS, measured())
    for name, turn in longest:
        report.bound(f"longest turn with {name}, ms of CPU", turn, most=LONGEST_TURN_MS)
    resident = _resident_after(chosen.tree, chosen.connections)
    report.table(
        f"Memory after connections of {MEMORY_TOPICS:,} topics that were opened and closed, one after the other",
        {"connections": 0, "RSS, MB": 1},
        [(count, resident[count - 1]) for count in (1, SETTLED_AFTER, chosen.connections)],
    )
    growth = max(resident) - resident[SETTLED_AFTER - 1]
    report.bound(f"growth after the first {SETTLED_AFTER} connections, MB", growth, most=MOST_GROWTH_MB)
    return report.status


def _measure(tree: Path, topics: int, version: int, *, throttled: bool) -> tuple[float, float]:
    """Milliseconds of CPU: the 99th percentile and the longest of the turns."""
    found = []
    with _leader(topics, version) as upstream, _sidecar(tree, upstream, topics if throttled else 0) as (port, process):
        for number in range(ROUNDS):
            _turns(process)
            with socket.create_connection(("127.0.0.1", port)) as follower:
                for correlation_id in range(FETCHES):
                    follower.sendall(_request(topics, version, correlation_id, offset=number))
                    _receive_frame(follower)
                time.sleep(_QUIET_SECONDS)
            time.sleep(_QUIET_SECONDS)  # what the end of the connection takes
            found.append(_turns(process))
    return max(p99 for p99, _ in found), max(longest for _, longest in found)


def _resident_after(tree: Path, connections: int) -> list[float]:
    """Megabytes that a sidecar has after each of several connections, one after the other."""
    resident = []
    with (
        _leader(MEMORY_TOPICS, MEMORY_VERSION) as upstream,
        _sidecar(tree, upstream, 0) as (port, process),
    ):
        for number in range(connections):
            with socket.create_connection(("127.0.0.1", port)) as follower:
                follower.sendall(_request(MEMORY_TOPICS, MEMORY_VERSION, number, offset=0))
                _receive_frame(follower)
            time.sleep(_FREED_SECONDS)
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            resident.append(pages * resource.getpagesize() / 1e6)
    return resident


def _name(number: int) -> bytes:
    return b"topic-%010d" % number


def _request(topics: int, version: int, correlation_id: int, offset: int) -> bytes:
    row = fetch_version(version)
    values = {"fetch_offset": offset, "partition_max_bytes": 2**20}
    fields = row.request_partition
    entry = fields.layout.pack(*[values.get(name, 0) for name in fields.names]) + (b"\0" if row.is_flexible else b"")
    asked = [RequestTopic(_name(number), entry, len(entry)) for number in range(topics)]
    header = RequestHeader(FETCH, version, correlation_id, b"replica")
    return encode_fetch_request(FetchRequest(header, 5, 500, 1, 2**20, asked, session_epoch=0))


@contextlib.contextmanager
def _leader(topics: int, version: int) -> Iterator[int]:
    """A leader's port. Every answer of it has all topics."""
    entries = made_up_entries(version, [(0, _HIGH_WATERMARK)])
    answered = [ResponseTopic(_name(number), entries) for number in range(topics)]
    answer = bytearray(encode_fetch_response(version, 0, 0, answered))
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                while True:
                    frame = _receive_frame(connection)
                    if struct.unpack_from(">h", frame)[0] != FETCH:
                        break
                    answer[4:8] = frame[4:8]  # the correlation id
                    connection.sendall(answer)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()


@contextlib.contextmanager
def _sidecar(tree: Path, upstream: int, throttled: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A sidecar's port and its process. On the leader's side the first `throttled` topics are throttled."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "weir.toml"
        lists = "".join(
            f'[throttle.topics.{_name(number).decode()}]\n"leader.replication.throttled.replicas" = "*"\n'
            for number in range(throttled)
        )
        config.write_text(
            f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
            f'[admin]\nlisten = "127.0.0.1:{free_port()}"\n[log]\nlevel = "error"\n'
            f'[throttle]\n"leader.replication.throttled.rate" = 1000000\n{lists}'
        )
        watched = str(Path(__file__).with_name("watched_sidecar.py"))
        with running("env", f"--chdir={tree}", sys.executable, watched, str(config)) as process:
            _wait_for(port)
            time.sleep(_QUIET_SECONDS)
            yield port, process


def _wait_for(port: int) -> None:
    """Return when the sidecar listens: to read a file of 50,000 topics takes a while."""
    for _ in range(4):
        with contextlib.suppress(ConnectionRefusedError):
            return wait_for(port)
    raise ConnectionRefusedError("The sidecar did not start.")


def _turns(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    p99, longest = process.stdout.readline().split()
    return float(p99), float(longest)


def _receive_frame(connection: socket.socket) -> bytes:
    """Receive a frame, without its size."""
    (size,) = SIZE.unpack(_receive(connection, SIZE.size))
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(_CHUNK, size - len(received)))
        if not chunk:
            raise ConnectionError("The connection ended in the middle of a frame.")
        received += chunk
    return bytes(received)


if __name__ == "__main__":
    sys.exit(main())
