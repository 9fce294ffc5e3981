"""`python -m bench.relay`: how fast one sidecar relays, beside a direct connection and HAProxy.

Throughput is that of one connection; all ways are measured in turn, again and again, and medians are compared: the
machine's other load then falls on all alike. Latency is that of 200 connections that ask in turn while 2,000 are idle.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peers import connect, latencies, throughput
from bench.processes import haproxy, running, wait_for

MIB = 2**20
SHAPES = (  # name, bytes of a response frame, requests under way, whether it is a replica's Fetch
    ("1 MB frames", 10**6, 8, False),
    ("4 KB frames", 4096, 64, False),
    ("1 MB replica fetches, scanned", 10**6, 8, True),
    ("1 MB frames, one at a time", 10**6, 1, False),
    ("4 KB frames, one at a time", 4096, 1, False),
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the broker: the port to connect to, and the process in between, if any."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None

    def memory(self, field: str) -> float:
        """MiB of the process by /proc/PID/status: VmRSS (now) or VmHWM (the most there was)."""
        if self.process is None:
            return 0.0
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(field + ":")[1].split()[0]) / 1024


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextlib.contextmanager
def ways() -> Iterator[list[Way]]:
    """All ways to a broker, with their processes running."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(running(sys.executable, "-c", "from bench.peers import serve; serve()"))
        assert broker.stdout is not None
        upstream = int(broker.stdout.readline())
        found = [Way("direct", upstream, None)]
        for loop in ("asyncio", "uvloop"):
            port, config = free_port(), folder / f"{loop}.toml"
            config.write_text(
                f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
                f'[admin]\nlisten = "127.0.0.1:{free_port()}"\n[log]\nlevel = "warning"\n\n'
            )
            command = (sys.executable, "-m", "weir", "run", "--config", str(config))
            found.append(Way(f"weir, {loop}", port, stack.enter_context(running(*command, WEIR_EVENT_LOOP=loop))))
        port = free_port()
        if process := stack.enter_context(haproxy(port, upstream)):
            found.append(Way("HAProxy", port, process))
        for way in found:
            wait_for(way.port)
        yield found


def measure_throughput(found: list[Way], rounds: int, seconds: float) -> None:
    """Print the median throughput of every shape by every way."""
    width = max(len(shape[0]) for shape in SHAPES)
    print(f"\nMiB/s on one connection: medians of {rounds} alternating rounds of {seconds:g} s, lowest to highest")
    print(" " * width, *(f"{way.name:>24}" for way in found))
    for name, size, depth, fetch in SHAPES:
        results: dict[str, list[float]] = {way.name: [] for way in found}
        for round_number in range(rounds):
            for way in found[:: 1 if round_number % 2 else -1]:
                results[way.name].append(throughput(way.port, size, depth, seconds, fetch=fetch) / MIB)
        cells = [f"{statistics.median(one):8.1f} ({min(one):.0f} to {max(one):.0f})" for one in results.values()]
        print(f"{name:<{width}}", *(f"{cell:>24}" for cell in cells), flush=True)


def measure_latency(found: list[Way], idle: int, active: int, rate: float, seconds: float) -> None:
    """Print round trips and memory by every way."""
    print(f"\n{idle} idle and {active} active connections, {rate:g} requests/s of 4 KB in all, {seconds:g} s each")
    print(f"{'':<16} {'p50 ms':>8} {'p99 ms':>8} {'p99.9 ms':>8} {'RSS MiB':>8} {'peak':>8}")
    for way in found:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(connect(way.port)) for _ in range(idle)]
            asking = [stack.enter_context(connect(way.port)) for _ in range(active)]
            gc.collect()
            gc.disable()  # the client's own pauses are not what is measured
            result = latencies(asking, rate, seconds, 4096)
            gc.enable()
            memory = (way.memory("VmRSS"), way.memory("VmHWM"))
            del silent
        milliseconds = [1000 * result.percentile(percent) for percent in (50, 99, 99.9)]
        print(
            f"{way.name:<16}", *(f"{one:8.2f}" for one in milliseconds), *(f"{one:8.1f}" for one in memory), flush=True
        )


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(prog="python -m bench.relay", description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each round")
    options.add_argument("--idle", type=int, default=2000)
    options.add_argument("--active", type=int, default=200)
    options.add_argument("--rate", type=float, default=2000.0, help="requests a second, all connections together")
    chosen = options.parse_args()
    with ways() as found:
        memory = ", ".join(f"{way.name} {way.memory('VmRSS'):.1f}" for way in found if way.process is not None)
        print(f"RSS after the start, MiB: {memory}")
        measure_throughput(found, chosen.rounds, chosen.seconds)
        print(
            "\nPeak RSS then, MiB:", ", ".join(f"{way.name} {way.memory('VmHWM'):.1f}" for way in found if way.process)
        )
        measure_latency(found, chosen.idle, chosen.active, chosen.rate, 5 * chosen.seconds)


if __name__ == "__main__":
    main()
