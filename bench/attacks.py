"""What clients that break the rules cost those that do not: `python -m bench.attacks`.

A well-behaved client asks through a sidecar while others attack: first another sidecar on the same machine, then the
same one. Both take the same part of the machine's cores, so what differs is what the sidecar makes its clients wait.
The attackers' broker is not the one that the well-behaved client asks. What a turn of the sidecar's event loop takes of
the CPU is measured too: on a busy machine that says more than round trips do.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.attack_peers import ATTACKS, HALVES, NEVER_READ, SCRAPERS, fetch_once
from bench.peers import connect, latencies, throughput
from bench.processes import running, wait_for
from bench.relay import free_port
from bench.table import Report, parser

CONNECTIONS = 40  # each has one request under way, as Kafka's own clients mostly have
REQUESTS_A_SECOND = 400
RESPONSE_SIZE = 8
REAL_PARTITIONS = 25_000  # a full fetch of 400 KB
REAL_FETCHES = 5
MOST_SLOWER = 2.0
MOST_P99_MS = 20.0  # beside scrapers
LEAST_THROUGHPUT = 0.9

MOST_TURN_MS = 20.0  # on a machine with ten times as much to do as it has cores; hundreds where nothing is bounded

COLUMNS = {
    "attack": 0,
    "p50 beside, ms": 2,
    "p99 beside, ms": 2,
    "p50 under, ms": 2,
    "p99 under, ms": 2,
    "p99 turn, ms of CPU": 2,
    "longest turn": 1,
    "p99, x": 2,
}


class Sidecar(NamedTuple):
    """A sidecar's ports: of the listener that leads to the quiet broker, and of that which the attackers use."""

    quiet: int
    attacked: int
    admin: int
    process: subprocess.Popen[bytes]

    def turns(self) -> tuple[float, float]:
        """Milliseconds of CPU that turns of its loop took since the last call: the 99th percentile and the longest."""
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        p99, longest = self.process.stdout.readline().split()
        return float(p99), float(longest)


class Row(NamedTuple):
    """One attack: milliseconds of a round trip beside and under it."""

    attack: str
    beside_p50: float
    beside_p99: float
    under_p50: float
    under_p99: float
    turn_p99: float
    longest_turn: float

    @property
    def slower(self) -> float:
        """How many times as long the slowest hundredth takes under attack."""
        return self.under_p99 / self.beside_p99


def main() -> int:
    """Measure and print; 1 when a well-behaved client has to wait too long, or is cut off."""
    options = parser("bench.attacks", "Measure a well-behaved client's round trips while others attack the sidecar.")
    options.add_argument("--rounds", type=int, default=2, help="of each attack (2)")
    options.add_argument("--seconds", type=float, default=1.5, help="of each measurement (1.5)")
    options.add_argument("--tree", type=Path, default=Path.cwd(), help="measure the sidecar of another checkout")
    options.add_argument("--only", default="", help="attacks whose name has this")
    chosen = options.parse_args()
    report = Report(chosen.json)
    rows: list[Row] = []
    with (
        _brokers() as (quiet, noisy),
        _sidecar(chosen.tree, quiet, noisy) as first,
        _sidecar(chosen.tree, quiet, noisy) as second,
    ):

        def measured() -> Iterator[Sequence[object]]:
            for name in ATTACKS:
                if chosen.only in name:
                    found = [_round(name, first, second, chosen.seconds) for _ in range(chosen.rounds)]
                    row = Row(name, *(statistics.median(column) for column in zip(*found, strict=True)))
                    rows.append(row)
                    yield *row, row.slower

        report.table(
            f"Round trips of a well-behaved client, medians of {chosen.rounds} rounds of {chosen.seconds:g} s",
            COLUMNS,
            measured(),
        )
        if chosen.only in NEVER_READ:
            moved = [_throughputs(first, second, chosen.seconds) for _ in range(chosen.rounds)]
            columns = {"MB/s beside": 0, "MB/s under": 0, "x": 2}
            report.table(f"1 MB answers to one client, {NEVER_READ}", columns, moved)
            least = statistics.median(times for _, _, times in moved)
            report.bound(f"throughput under {NEVER_READ}, x that beside it", least, least=LEAST_THROUGHPUT)
        if chosen.only in HALVES:
            with _attack(HALVES, first):
                answered = sum(fetch_once(first.attacked, REAL_PARTITIONS) for _ in range(REAL_FETCHES))
            report.bound("real full fetches of 400 KB answered beside 699 halves", answered, least=REAL_FETCHES)
    for row in rows:
        report.bound(f"p99 turn under {row.attack}, ms of CPU", row.turn_p99, most=MOST_TURN_MS)
        if row.attack == SCRAPERS:
            report.bound(f"p99 under {row.attack}, ms", row.under_p99, most=MOST_P99_MS)
        else:
            report.bound(f"p99 under {row.attack}, x that beside it", row.slower, most=MOST_SLOWER)
    return report.status


def _round(name: str, first: Sidecar, second: Sidecar, seconds: float) -> tuple[float, ...]:
    """Milliseconds: p50 and p99 while the second is attacked, then while the first is, and the first's turns then."""
    found: list[float] = []
    for attacked in (second, first):
        with _attack(name, attacked):
            first.turns()
            found += _measure(first.quiet, seconds)
            turns = first.turns()
    return (*found, *turns)


def _throughputs(first: Sidecar, second: Sidecar, seconds: float) -> tuple[float, float, float]:
    """MB/s of one client while the second is attacked, then while the first is, and the ratio."""
    found = []
    for attacked in (second, first):
        with _attack(NEVER_READ, attacked):
            found.append(throughput(first.quiet, 10**6, 8, seconds) / 10**6)
    return found[0], found[1], found[1] / found[0]


def _measure(port: int, seconds: float) -> tuple[float, float]:
    with contextlib.ExitStack() as stack:
        asking = [stack.enter_context(connect(port)) for _ in range(CONNECTIONS)]
        gc.collect()
        gc.disable()  # the client's own pauses are not what is measured
        try:
            result = latencies(asking, REQUESTS_A_SECOND, seconds, RESPONSE_SIZE)
        finally:
            gc.enable()
    return 1000 * result.percentile(50), 1000 * result.percentile(99)


@contextlib.contextmanager
def _attack(name: str, sidecar: Sidecar) -> Iterator[None]:
    ports = str(sidecar.attacked), str(sidecar.admin)
    with running(sys.executable, "-m", "bench.attack_peers", name, *ports) as attackers:
        assert attackers.stdout is not None
        if attackers.stdout.readline() != b"ready\n":
            raise ConnectionError(f"The attack did not begin: {name}.")
        yield


@contextlib.contextmanager
def _brokers() -> Iterator[tuple[int, int]]:
    quiet = (sys.executable, "-c", "from bench.peers import serve; serve()")
    noisy = (sys.executable, "-c", "from bench.attack_peers import NICENESS, serve; serve(NICENESS)")
    with running(*quiet) as first, running(*noisy) as second:
        assert first.stdout is not None
        assert second.stdout is not None
        yield int(first.stdout.readline()), int(second.stdout.readline())


@contextlib.contextmanager
def _sidecar(tree: Path, quiet: int, noisy: int) -> Iterator[Sidecar]:
    """A sidecar of its own process; on the leader's side no byte of topic t is granted."""
    ports, admin = (free_port(), free_port()), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "weir.toml"
        listeners = "".join(
            f'[[ingress]]\nlisten = "127.0.0.1:{port}"\nupstream = "127.0.0.1:{upstream}"\n'
            for port, upstream in zip(ports, (quiet, noisy), strict=True)
        )
        config.write_text(
            f'broker_id = 1\n{listeners}[admin]\nlisten = "127.0.0.1:{admin}"\n[log]\nlevel = "error"\n'
            '[throttle]\n"leader.replication.throttled.rate" = 0\n'
            '[throttle.topics.t]\n"leader.replication.throttled.replicas" = "*"\n'
        )
        watched = str(Path(__file__).with_name("watched_sidecar.py"))
        with running("env", f"--chdir={tree}", sys.executable, watched, str(config)) as process:
            for port in ports:
                wait_for(port)
            yield Sidecar(*ports, admin, process)


if __name__ == "__main__":
    sys.exit(main())
