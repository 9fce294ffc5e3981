"""What counting records costs the relay: `python -m bench.count_cost`.

One connection of a consumer fetches batches through three sidecars in turn, again and again: one has no limits, one has
a limit for another client, and one has a limit for this client that is never reached. Compared are the medians of the
bytes per second of the sidecar's own CPU time, which the machine's other load changes least, and of the throughput.
Rounds are short, so that other load meets all three alike.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.processes import running, wait_for
from bench.relay import free_port
from bench.table import Report, parser

CLIENT = b"connector-consumer-bench-0"
LIMIT = '"record.rate.limit" = 1e12\n'
WAYS = {"plain": "", "another's": "somebody-else", "counted": CLIENT.decode()}
"""Whom each sidecar limits."""

MOST_COST = 0.05
SHAPES = (  # name, bytes of a batch, records in it, batches in an answer
    ("1 MB: one batch of 1 KB records", 10**6, 1000, 1),
    ("10 MB: batches of 1 MB, records of 1 KB", 10**6, 1000, 10),
    ("1 MB: 16 KB batches of 1 KB records", 16_000, 16, 62),
    ("1 MB: 1 KB batches of one record", 1_000, 1, 1000),
)
_HEAD = struct.Struct(">qiibIhiqqqhii")
_ANSWER = struct.Struct(">iii")


def answer_body(size: int, records: int, batches: int) -> bytes:
    """A Fetch v4 answer behind its correlation id: `batches` batches of `size` bytes in one partition."""
    batch = _HEAD.pack(0, size - 12, 0, 2, 0, 0, records - 1, 0, 0, -1, -1, -1, records) + bytes(size - _HEAD.size)
    data = batch * batches
    return struct.pack(">iih1siihqqii", 0, 1, 1, b"t", 1, 0, 0, 9, 9, -1, len(data)) + data


def serve(size: int, records: int, batches: int) -> None:
    """Print a port, and answer every request on it with records, one connection at a time."""
    body = answer_body(size, records, batches)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                reader = connection.makefile("rb")
                while head := reader.read(12):
                    (frame_size, _, _, correlation_id) = struct.unpack(">ihhi", head)
                    reader.read(frame_size - 8)
                    connection.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)


def request(correlation_id: int) -> bytes:
    """A consumer's Fetch v4."""
    payload = struct.pack(">hhih", 1, 4, correlation_id, len(CLIENT)) + CLIENT
    payload += struct.pack(">iiiibi", -1, 500, 1, 2**30, 0, 0)
    return struct.pack(">i", len(payload)) + payload


def throughput(port: int, seconds: float, depth: int = 4) -> float:
    """Bytes/s that one connection receives."""
    buffer = bytearray(2**20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"".join(map(request, range(depth))))
        asked, received, frame = depth, 0, 0
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds:
            size = connection.recv_into(buffer)
            if not size:
                raise ConnectionError("The connection ended in the middle of a measurement.")
            frame = frame or 4 + int.from_bytes(buffer[:4], "big")
            received += size
            while received // frame + depth > asked:
                connection.sendall(request(asked))
                asked += 1
        return received / (time.perf_counter() - begin)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process's one thread so far: in nanoseconds, as rounds are shorter than many clock ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextlib.contextmanager
def sidecars(size: int, records: int, batches: int) -> Iterator[dict[str, tuple[int, int]]]:
    """Run a broker and both sidecars; gives (port, process id) by name."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        code = f"from bench.count_cost import serve; serve({size}, {records}, {batches})"
        found = {}
        for name, client_id in WAYS.items():
            rule = f'[[limits.client]]\nclient_id = "{client_id}"\n{LIMIT}' if client_id else ""
            broker = stack.enter_context(running(sys.executable, "-c", code))
            assert broker.stdout is not None
            upstream = int(broker.stdout.readline())
            port, config = free_port(), folder / f"{name}.toml"
            config.write_text(
                f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
                f'[admin]\nlisten = "127.0.0.1:{free_port()}"\n[log]\nlevel = "warning"\n{rule}'
            )
            command = (sys.executable, "-m", "weir", "run", "--config", str(config))
            process = stack.enter_context(running(*command))
            wait_for(port)
            found[name] = port, process.pid
        yield found


def main() -> int:
    """Measure and print; 1 where counting costs too much."""
    options = parser("bench.count_cost", "Measure what counting records costs the relay.")
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--seconds", type=float, default=0.25, help="of each round")
    chosen = options.parse_args()
    report = Report(chosen.json)
    rows: list[tuple[object, ...]] = []
    every: list[list[float]] = []
    for name, size, records, batches in SHAPES:
        speed: dict[str, list[float]] = {way: [] for way in WAYS}
        by_cpu: dict[str, list[float]] = {way: [] for way in WAYS}
        with sidecars(size, records, batches) as found:
            for number in range(chosen.rounds + 1):
                for way in list(found)[:: 1 if number % 2 else -1]:
                    port, pid = found[way]
                    before = cpu_seconds(pid)
                    rate = throughput(port, chosen.seconds)
                    if number:  # the first round warms up
                        speed[way].append(rate / 2**20)
                        by_cpu[way].append(rate * chosen.seconds / (cpu_seconds(pid) - before) / 2**20)
        (plain, _, _), (cpu, _, _) = medians = [list(map(statistics.median, one.values())) for one in (speed, by_cpu)]
        ratios = [one / first for first, others in zip((plain, cpu), medians, strict=True) for one in others[1:]]
        rows.append((name, plain, cpu, *ratios))
        every.append(ratios)
    columns = {"answers": 0, "MiB/s": 0, "MiB/CPU s": 0}
    columns |= {"another's, x": 3, "counted, x": 3, "another's, x CPU": 3, "counted, x CPU": 3}
    report.table("One connection's throughput: no limits, and x it with a limit", columns, rows)
    for (name, *_), (_, counted, another, _) in zip(SHAPES[:2], every[:2], strict=True):
        report.bound(f"counted / plain, {name}", counted, least=1 - MOST_COST)
        report.bound(f"another's / plain by CPU, {name}", another, least=1 - MOST_COST)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
