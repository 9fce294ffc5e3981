# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.tls_hop`: a hop with TLS on both ends, by a sidecar alone, with worker processes, and by HAProxy.

One connection, 1 MB answers, all ways in turn, again and again, with small requests beside it. The figures that count
are what a GB costs of processors: client and server take the rest of a small machine, and other programs disturb what
the clock shows. HAProxy missing is said, and is no failure.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import Leader, fetch_request
from bench.processes import Sidecar, Way, calling, haproxy, next_line, serving, sidecar
from bench.sockets import Broker, connect, metadata_request, throughput
from bench.table import Report, begin, parser, run, turned
from tests.fakes.pki import Authority
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys

MB = 10**6
LEAST_OF_HAPROXY = 0.8
MOST_OF_PLAINTEXT, MOST_OF_ONE_PROCESS, MOST_LATER = 1.15, 1.1, 1.2
SMALL_A_SECOND = 100
_DEPTH = 8
WHAT = {"1 MB answers": metadata_request, "1 MB replica fetches": fetch_request}


def serve(certificate: str, ca: str) -> None:
    """Print a free port, and be a broker there until killed; with TLS where there is a `ca`."""
    context = load_server_keys(KeyFiles(certificate=certificate, ca=ca), "required").context if ca else None
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        accepted, _ = listening.accept()
        threading.Thread(target=_answer, args=(accepted, context), daemon=True).start()


def small(port: int, certificate: str, ca: str) -> None:
    """Ask for 100 bytes a hundred times a second, and print the p99 of a second, ms, for each line that is read."""
    with opened(port, certificate, ca) as connection:
        for _ in sys.stdin:
            found, began = [], time.perf_counter()
            for number in range(SMALL_A_SECOND):
                due = began + number / SMALL_A_SECOND
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.sendall(metadata_request(number, 100))
                left = 100
                while left:
                    left -= len(connection.recv(left)) or sys.exit("The connection ended.")
                found.append(time.perf_counter() - due)
            print(sorted(found)[-2] * 1000, flush=True)


def opened(port: int, certificate: str, ca: str) -> socket.socket:
    """A client's connection, with TLS where there is a `ca`."""
    connection = connect(port)
    if not ca:
        return connection
    context = load_client_keys(KeyFiles(certificate=certificate, ca=ca), checks_name=True).context
    return context.wrap_socket(connection, server_hostname="localhost")


def _answer(accepted: socket.socket, context: ssl.SSLContext | None) -> None:
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer, unread = Broker(Leader(1000)), bytearray()
    with (
        contextlib.suppress(OSError),
        accepted if context is None else context.wrap_socket(accepted, server_side=True) as connection,
    ):
        while received := connection.recv(2**16):
            unread += received
            while answers := answer(unread):
                connection.sendall(answers)


@dataclass(slots=True)
class Measured:
    """A way, and what was measured of it: a figure for each round."""

    way: Way
    keys: tuple[str, str]
    small: subprocess.Popen[bytes]
    rate: list[float] = field(default_factory=list)
    """MB/s."""
    own: list[float] = field(default_factory=list)
    """CPU seconds of the process, for a GB."""
    workers: list[float] = field(default_factory=list)
    """CPU seconds of its worker processes, for a GB."""
    p99: list[float] = field(default_factory=list)
    """ms, of small requests beside it."""

    def measure(self, what: str, seconds: float, *, counts: bool) -> None:
        """Measure one round."""
        with opened(self.way.port, *self.keys) as connection:
            assert self.small.stdin is not None
            self.small.stdin.write(b"\n" * max(1, int(seconds)))
            self.small.stdin.flush()
            own, workers = self.way.cpu_seconds(), self._by_workers()
            rate = throughput(connection, WHAT[what], MB, _DEPTH, seconds) / MB
            gigabytes = rate * seconds / 1000
            own, workers = self.way.cpu_seconds() - own, self._by_workers() - workers
            p99 = max(float(next_line(self.small)) for _ in range(max(1, int(seconds))))
        if counts:  # the first one only warms up
            self.rate.append(rate)
            self.own.append(own / gigabytes)
            self.workers.append(workers / gigabytes)
            self.p99.append(p99)

    def row(self) -> tuple[str, float, float, float, float]:
        """Its row in the table."""
        figures = self.rate, self.own, self.workers, self.p99
        return self.way.name, *(statistics.median(one) for one in figures)  # type: ignore[return-value]

    def _by_workers(self) -> float:
        is_sidecar = isinstance(self.way, Sidecar) and self.way.admin
        return self.way.metric("weir_tls_worker_cpu_seconds_total") if is_sidecar else 0.0  # type: ignore[attr-defined]


@contextlib.contextmanager
def ways(workers: Sequence[int], loops: Sequence[str]) -> Iterator[list[Measured]]:
    """All ways to a broker, with their processes running: without TLS, and with TLS on both ends."""
    with contextlib.ExitStack() as stack:
        authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        both, ca = authority.issue("localhost").together, authority.ca
        plain, upstream = (stack.enter_context(serving("tls_hop.serve", *keys)) for keys in (("", ""), (both, ca)))
        found = [(Way("directly, TLS", upstream), (both, ca))]
        found.append((stack.enter_context(sidecar(plain, name="weir, plaintext")), ("", "")))
        tables = (
            f'[ingress.tls]\ncertificate = "{both}"\nca = "{ca}"\nclient_auth = "required"\n'
            'allowed_names = ["localhost"]\n[ingress.upstream_tls]\n'
        )
        for loop in loops:
            for count in workers:
                name = f"weir, {loop}, {count} workers"
                text = f"{tables}[tls]\nworkers = {count}\n"
                found.append((stack.enter_context(sidecar(upstream, tables=text, loop=loop, name=name)), (both, ca)))
        keys = f"ssl crt {both} ca-file {ca} verify required"
        server = f"{keys} verifyhost localhost sni str(localhost)"
        found += [(way, (both, ca)) for way in stack.enter_context(haproxy(upstream, bind=keys, server=server))]
        time.sleep(3)  # workers load their keys
        yield [
            Measured(way, keys, stack.enter_context(calling("tls_hop.small", way.port, *keys))) for way, keys in found
        ]


def measure(report: Report, what: str, found: Sequence[Measured], rounds: int, seconds: float) -> None:
    """Measure all ways in turn, print a table, and compare."""
    for number in range(rounds + 1):
        for one in turned(found, number):
            one.measure(what, seconds, counts=number > 0)
    rows = {one.way.name: one.row() for one in found}
    report.table(
        f"{what}, medians of {rounds} rounds of {seconds:g} s",
        "way | MB/s | CPU s for a GB .2 | its workers' .2 | p99 of small requests, ms .2",
        rows.values(),
    )
    _, _, plain, _, _ = rows["weir, plaintext"]
    alone = next((row for name, row in rows.items() if name.endswith(", 0 workers")), None)
    for name, (_, _, own, its, p99) in rows.items():
        if not its or alone is None:
            continue
        report.bound(f"{what}: {name}, the sidecar's CPU beside plaintext's", own / plain, most=MOST_OF_PLAINTEXT)
        report.bound(f"{what}: {name}, workers' CPU beside one process'", its / alone[2], most=MOST_OF_ONE_PROCESS)
        report.bound(f"{what}: {name}, p99 beside one process'", p99 / alone[4], most=MOST_LATER)
    if "HAProxy" not in rows or alone is None:
        report.say("HAProxy is not installed: there is nothing to compare with.")
        return
    report.bound(f"{what}: weir beside HAProxy", rows["HAProxy"][2] / alone[2], least=LEAST_OF_HAPROXY)


def main() -> int:
    """Measure and print. Returns the exit status."""
    options = parser("tls_hop", "Measure a hop with TLS on both ends.")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=2.0, help="of each round")
    options.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="[tls] workers, by turns")
    options.add_argument("--loop", nargs="+", default=["asyncio"], help="event loops: asyncio, uvloop")
    options.add_argument("--what", nargs="+", choices=WHAT, default=[*WHAT])
    chosen, report = begin(options)
    for what in chosen.what:
        with ways(chosen.workers, chosen.loop) as found:
            measure(report, what, found, chosen.rounds, chosen.seconds)
    return report.status


if __name__ == "__main__":
    run(main)
