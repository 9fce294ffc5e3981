"""`python -m bench.tls_hop`: a hop with TLS on both ends, of one sidecar beside HAProxy.

One connection, 1 MB answers, all ways in turn, again and again. Each is one process with one thread. The figure that
counts is what a second of its processor moves: client and server take the rest of a small machine, and other programs
disturb what the clock shows. HAProxy missing is said, and is no failure.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import statistics
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.peers import Leader, fetch_request
from bench.processes import Way, haproxy, serving, sidecar
from bench.sockets import Broker, connect, metadata_request, throughput
from bench.table import Report, begin, parser, run, turned
from tests.fakes.pki import Authority
from weir.proxy.tls.keys import KeyFiles, load_client_keys, load_server_keys

MB = 10**6
LEAST_OF_HAPROXY = 0.8
_DEPTH = 8
WHAT = {"1 MB answers": metadata_request, "1 MB replica fetches": fetch_request}


def serve(certificate: str, ca: str) -> None:
    """Print a free port, and be a broker with TLS there until killed."""
    context = load_server_keys(KeyFiles(certificate=certificate, ca=ca), "required").context
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        accepted, _ = listening.accept()
        threading.Thread(target=_answer, args=(accepted, context), daemon=True).start()


def _answer(accepted: socket.socket, context: ssl.SSLContext) -> None:
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answer, unread = Broker(Leader(1000)), bytearray()
    with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
        while received := connection.recv(2**16):
            unread += received
            while answers := answer(unread):
                connection.sendall(answers)


@contextlib.contextmanager
def ways() -> Iterator[tuple[list[Way], ssl.SSLContext]]:
    """All ways to a broker with TLS, with their processes running, and what a client needs."""
    with contextlib.ExitStack() as stack:
        authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        both, ca = authority.issue("localhost").together, authority.ca
        upstream = stack.enter_context(serving("tls_hop.serve", both, ca))
        found = [Way("direct", upstream)]
        tables = (
            f'[ingress.tls]\ncertificate = "{both}"\nca = "{ca}"\nclient_auth = "required"\n'
            'allowed_names = ["localhost"]\n[ingress.upstream_tls]\n'
        )
        for loop in ("asyncio", "uvloop"):
            name = f"weir, {loop}"
            found.append(stack.enter_context(sidecar(upstream, tables=tables, loop=loop, name=name)))
        keys = f"ssl crt {both} ca-file {ca} verify required"
        server = f"{keys} verifyhost localhost sni str(localhost)"
        found += stack.enter_context(haproxy(upstream, bind=keys, server=server))
        yield found, load_client_keys(KeyFiles(certificate=both, ca=ca), checks_name=True).context


def measure(report: Report, what: str, rounds: int, seconds: float) -> None:
    """Measure all ways in turn, print a table, and compare with HAProxy."""
    with ways() as (found, context):
        rates: dict[str, list[float]] = {way.name: [] for way in found}
        by_processor: dict[str, list[float]] = {way.name: [] for way in found}
        for number in range(rounds + 1):
            for way in turned(found, number):
                with context.wrap_socket(connect(way.port), server_hostname="localhost") as connection:
                    used = way.cpu_seconds()
                    rate = throughput(connection, WHAT[what], MB, _DEPTH, seconds) / MB
                    used = way.cpu_seconds() - used
                if number:  # the first one only warms up
                    rates[way.name].append(rate)
                    by_processor[way.name] += [rate * seconds / used] if used else []
    medians = {name: statistics.median(some) if some else None for name, some in by_processor.items()}
    report.table(
        f"{what}, TLS on both ends, medians of {rounds} rounds of {seconds:g} s",
        "way | MB/s | MB for each second of its processor",
        [(way, statistics.median(some), medians[way]) for way, some in rates.items()],
    )
    if not by_processor.get("HAProxy"):
        report.say("HAProxy is not installed: there is nothing to compare with.")
        return
    beside = statistics.median(by_processor["HAProxy"])
    for way in found[1:-1]:
        ratio = statistics.median(by_processor[way.name]) / beside
        report.bound(f"{what}: {way.name} beside HAProxy", ratio, least=LEAST_OF_HAPROXY)


def main() -> int:
    """Measure and print. Returns the exit status."""
    options = parser("tls_hop", "Measure a hop with TLS on both ends.")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=2.0, help="of each round")
    chosen, report = begin(options)
    for what in WHAT:
        measure(report, what, chosen.rounds, chosen.seconds)
    return report.status


if __name__ == "__main__":
    run(main)
