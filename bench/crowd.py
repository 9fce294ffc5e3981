"""10,000 connections from one address, and what they cost all others: `python -m bench.crowd`.

Two sidecars run beside each other in front of one broker: one has the crowd, the other one has not. Clients of another
address measure the two in turn, again and again, so that the machine's other load falls on both alike. Measured are
round trips on connections that stand, from when each request was due, and new connections up to their first answer.

The crowd stands, all let in; or the sidecar has its default bounds, and most are sent away and come again each second.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import connect, latencies, metadata_request
from bench.processes import running, wait_for
from bench.relay import free_port
from bench.table import Report, parser
from weir.proxy.event_loop import raise_descriptor_limit
from weir.proxy.relay.admission import connections_with

CROWD_ADDRESS = "127.0.0.2"
ASKING = 20
RATE = 400.0
NEW_CONNECTIONS = 40
ANSWER_SIZE = 4096
_OTHERS = 100  # connections beside the crowd, with those that are not closed yet
MOST_TIMES = 2.0

COLUMNS = {
    "crowd": 0,
    "let in": 0,
    "sent away/s": 0,
    "p50 with, ms": 2,
    "without": 2,
    "p99 with, ms": 2,
    "without ": 2,
    "p99, x": 2,
    "new, p99 with, ms": 2,
    "without  ": 2,
    "new, x": 2,
}


@dataclass(slots=True)
class Measured:
    """Round trips and new connections by one sidecar, in milliseconds, by round."""

    port: int
    median: list[float] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> None:
        """One round."""
        with contextlib.ExitStack() as stack:
            asking = [stack.enter_context(connect(self.port)) for _ in range(ASKING)]
            found = latencies(asking, RATE, seconds, ANSWER_SIZE)
        self.median.append(1000 * found.percentile(50))
        self.slowest.append(1000 * found.percentile(99))
        taken = sorted(_first_answer(self.port) for _ in range(NEW_CONNECTIONS))
        self.new.append(1000 * taken[int(len(taken) * 0.99)])


def main() -> int:
    """Measure and print; 1 when an aim is missed."""
    options = parser("bench.crowd", "Measure what a crowd of connections from one address costs all others.")
    options.add_argument("--crowd", type=int, default=10_000, help="connections (10,000)")
    options.add_argument("--rounds", type=int, default=7, help="with the crowd and without it in turn (7)")
    options.add_argument("--seconds", type=float, default=3.0, help="of each round (3)")
    chosen = options.parse_args()
    report = Report(chosen.json)
    fits = connections_with(raise_descriptor_limit()) - 2 * _OTHERS
    if fits < chosen.crowd:
        report.say(f"This process may open files for {fits} connections only (ulimit -n): so many stand at most.")
    standing = min(fits, chosen.crowd)
    roomy = f"max_connections = {standing + 2 * _OTHERS}\nmax_connections_per_address = {standing}\n"
    ratios: list[tuple[str, float, float]] = []

    def measured() -> Iterator[Sequence[object]]:
        for name, size, limits in (("stands", standing, roomy), ("meets the default bounds", chosen.crowd, "")):
            with_crowd, without, let_in, sent_away = _measure(size, limits, chosen.rounds, chosen.seconds)
            slowest, new = _times(with_crowd.slowest, without.slowest), _times(with_crowd.new, without.new)
            ratios.append((name, slowest, new))
            row: list[object] = [f"{size:,}, {name}", let_in, sent_away]
            for one in ("median", "slowest", "new"):
                row += [statistics.median(getattr(with_crowd, one)), statistics.median(getattr(without, one))]
                row += [] if one == "median" else [slowest if one == "slowest" else new]
            yield row

    report.table(f"medians of {chosen.rounds} rounds of {chosen.seconds:g} s", COLUMNS, measured())
    for name, slowest, new in ratios:
        report.bound(f"p99 of others beside a crowd that {name}, x without it", slowest, most=MOST_TIMES)
        report.bound(f"p99 of new connections beside a crowd that {name}, x without it", new, most=MOST_TIMES)
    return report.status


def _times(one: Sequence[float], other: Sequence[float]) -> float:
    """The median of the rounds' ratios: each compares two measurements of the same moment."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def _measure(crowd: int, limits: str, rounds: int, seconds: float) -> tuple[Measured, Measured, int, float]:
    """What is measured with the crowd and without it, how many were let in, and how many were sent away a second."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(running(sys.executable, "-c", "from bench.peers import serve; serve()"))
        assert broker.stdout is not None
        upstream = int(broker.stdout.readline())
        ports, admin = [free_port(), free_port()], free_port()
        for number, (port, admin_port) in enumerate(zip(ports, (admin, free_port()), strict=True)):
            config = folder / f"{number}.toml"
            config.write_text(
                f'broker_id = 1\n[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
                f'[admin]\nlisten = "127.0.0.1:{admin_port}"\n[log]\nlevel = "error"\n[limits]\n{limits}'
            )
            stack.enter_context(running(sys.executable, "-m", "weir", "run", "--config", str(config)))
            wait_for(port)
        come = (sys.executable, "-m", "bench.crowd_peers", str(ports[0]), str(crowd), CROWD_ADDRESS)
        coming = stack.enter_context(running(*come))
        assert coming.stdout is not None
        if not coming.stdout.readline():
            raise ConnectionError("The crowd ended early.")
        with_crowd, without = Measured(ports[0]), Measured(ports[1])
        began, refused = time.monotonic(), _metric(admin, "weir_connections_refused_total")
        for number in range(rounds):
            for one in (with_crowd, without) if number % 2 else (without, with_crowd):
                one.measure(seconds)
        sent_away = (_metric(admin, "weir_connections_refused_total") - refused) / (time.monotonic() - began)
        return with_crowd, without, int(_metric(admin, "weir_connections{")), sent_away


def _first_answer(port: int) -> float:
    """The seconds from a connection's begin to its first answer."""
    began = time.perf_counter()
    with connect(port) as connection:
        connection.sendall(metadata_request(1, ANSWER_SIZE))
        if not connection.recv(ANSWER_SIZE):
            raise ConnectionError("A client beside the crowd was sent away.")
    return time.perf_counter() - began


def _metric(admin: int, name: str) -> float:
    """The sum of a metric's series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    sys.exit(main())
