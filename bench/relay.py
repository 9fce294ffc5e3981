# SPDX-License-Identifier: Apache-2.0
"""How fast one sidecar relays: `python -m bench.relay`, or only the `throughput`, `latency` or `counting` of it.

- `throughput`: of one connection, beside a direct one and HAProxy.
- `latency`: of 200 connections that ask in turn while 2,000 are idle.
- `counting`: what counting the records of limited clients costs. A consumer's connection goes through three sidecars:
  one has no limits, one limits another client, and one this client, by a limit that is never reached.

All ways take turns in short rounds: the machine's other load then falls on all alike.
"""

from __future__ import annotations

import contextlib
import statistics
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from bench.peers import fetch_request
from bench.processes import Way, haproxy, serving, sidecar
from bench.sockets import Same, connect, latencies, metadata_request, serve_with, throughput
from bench.table import SPREAD, Report, add_parts, begin, by_round, parser, run, spread_of, turned

MIB = 2**20
PARTS = ("throughput", "latency", "counting")
SHAPES: tuple[tuple[str, int, int, Callable[[int, int], bytes]], ...] = (
    # name, bytes of a response frame, requests under way, and what asks for it
    ("1 MB frames", 10**6, 8, metadata_request),
    ("4 KB frames", 4096, 64, metadata_request),
    ("1 MB replica fetches, scanned", 10**6, 8, fetch_request),
    ("1 MB frames, one at a time", 10**6, 1, metadata_request),
    ("4 KB frames, one at a time", 4096, 1, metadata_request),
)

CLIENT = "connector-consumer-bench-0"
LIMITED = {"plain": "", "another's": "somebody-else", "counted": CLIENT}
"""Whom each sidecar limits."""
MOST_COST = 0.05
ANSWERS = (  # name, bytes of a batch, records in it, batches in an answer
    ("1 MB: one batch of 1 KB records", 10**6, 1000, 1),
    ("10 MB: batches of 1 MB, records of 1 KB", 10**6, 1000, 10),
    ("1 MB: 16 KB batches of 1 KB records", 16_000, 16, 62),
    ("1 MB: 1 KB batches of one record", 1_000, 1, 1000),
)
_BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
_ANSWER_HEAD = struct.Struct(">iih1siihqqii")  # of Fetch v4 behind the correlation id, up to the records


@contextlib.contextmanager
def ways() -> Iterator[list[Way]]:
    """All ways to a broker, with their processes running."""
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(serving("sockets.serve", 1000))
        loops = [sidecar(upstream, loop=loop, name=f"weir, {loop}") for loop in ("asyncio", "uvloop")]
        found = [Way("direct", upstream), *map(stack.enter_context, loops)]
        yield found + stack.enter_context(haproxy(upstream))


def measure_throughput(report: Report, found: list[Way], rounds: int, seconds: float) -> None:
    """Measure every shape by every way."""

    def measured() -> Iterator[Sequence[object]]:
        for name, size, depth, request in SHAPES:
            rates: dict[str, list[float]] = {way.name: [] for way in found}
            for number in range(rounds):
                for way in turned(found, number):
                    with connect(way.port) as connection:
                        rates[way.name].append(throughput(connection, request, size, depth, seconds) / MIB)
            for way in found:
                yield name, way.name, *spread_of(rates[way.name], rates["direct"])

    title = f"One connection, MiB/s, {rounds} rounds of {seconds:g} s by turns"
    report.table(title, f"what | way | {SPREAD}", measured())


def measure_latency(report: Report, found: list[Way], idle: int, active: int, rate: float, seconds: float) -> None:
    """Measure round trips and memory by every way."""

    def measured() -> Iterator[Sequence[object]]:
        for way in found:
            before = way.resident_mb()
            with contextlib.ExitStack() as stack:
                for _ in range(idle):
                    stack.enter_context(connect(way.port))
                percentile = latencies(way.port, active, rate, seconds, 4096)
                yield way.name, *map(percentile, (50, 99, 99.9)), before, way.resident_mb(most=True)

    title = f"{idle} idle and {active} active connections, {rate:g} requests/s of 4 KB in all, {seconds:g} s each"
    columns = "way | p50, ms .2 | p99, ms .2 | p99.9, ms .2 | RSS before, MB .1 | peak, MB .1"
    report.table(title, columns, measured())


def serve_records(size: int, records: int, batches: int) -> None:
    """Answer every request with Fetch v4: `batches` batches of `size` bytes in one partition."""
    head = _BATCH_HEAD.pack(0, size - 12, 0, 2, 0, 0, records - 1, 0, 0, -1, -1, -1, records)
    data = (head + bytes(size - len(head))) * batches
    body = _ANSWER_HEAD.pack(0, 1, 1, b"t", 1, 0, 0, 9, 9, -1, len(data)) + data
    serve_with(lambda: Same(body))


def consumer_fetch(correlation_id: int, _: int) -> bytes:
    """A consumer's Fetch v4."""
    payload = struct.pack(">hhih", 1, 4, correlation_id, len(CLIENT)) + CLIENT.encode()
    payload += struct.pack(">iiiibi", -1, 500, 1, 2**30, 0, 0)
    return struct.pack(">i", len(payload)) + payload


def measure_counting(report: Report, rounds: int, seconds: float) -> None:
    """Measure each kind of answers through the three sidecars."""

    def measured() -> Iterator[Sequence[object]]:
        for name, size, records, batches in ANSWERS:
            rates: dict[str, list[float]] = {limited: [] for limited in LIMITED}
            by_cpu: dict[str, list[float]] = {limited: [] for limited in LIMITED}
            with contextlib.ExitStack() as stack:
                upstream = stack.enter_context(serving("relay.serve_records", size, records, batches))
                through = []
                for limited, client in LIMITED.items():
                    limit = f'[[limits.client]]\nclient_id = "{client}"\n"record.rate.limit" = 1e12\n' if client else ""
                    through.append(stack.enter_context(sidecar(upstream, tables=limit, name=limited)))
                for number in range(rounds + 1):
                    for way in turned(through, number):
                        used = way.cpu_seconds()
                        with connect(way.port) as connection:
                            answer = 8 + _ANSWER_HEAD.size + size * batches
                            rate = throughput(connection, consumer_fetch, answer, 4, seconds) / MIB
                        if number:  # the first round warms up
                            rates[way.name].append(rate)
                            by_cpu[way.name].append(rate * seconds / (way.cpu_seconds() - used))
            plain, plain_cpu = rates["plain"], by_cpu["plain"]
            times = [by_round(rates[one], plain) for one in ("another's", "counted")]
            times_cpu = [by_round(by_cpu[one], plain_cpu) for one in ("another's", "counted")]
            if size == 10**6:
                report.bound(f"counted / plain, {name}", times[1], least=1 - MOST_COST)
                report.bound(f"another's / plain by CPU, {name}", times_cpu[0], least=1 - MOST_COST)
            yield name, statistics.median(plain), statistics.median(plain_cpu), *chain(times, times_cpu)

    columns = "answers | MiB/s | MiB/CPU s | another's, x .3 | counted, x .3 | another's, x CPU .3 | counted, x CPU .3"
    report.table("A consumer's connection: without limits, and x that with a limit", columns, measured())


def main() -> int:
    """Measure and print; 1 where counting costs too much."""
    options = parser("relay", "Measure how fast one sidecar relays.")
    add_parts(options, PARTS)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=0.5, help="of each round")
    options.add_argument("--idle", type=int, default=2000)
    options.add_argument("--active", type=int, default=200)
    options.add_argument("--rate", type=float, default=2000.0, help="requests a second, all connections together")
    chosen, report = begin(options)
    if {"throughput", "latency"} & {*chosen.parts}:
        with ways() as found:
            if "throughput" in chosen.parts:
                measure_throughput(report, found, chosen.rounds, chosen.seconds)
            if "latency" in chosen.parts:
                measure_latency(report, found, chosen.idle, chosen.active, chosen.rate, 10 * chosen.seconds)
    if "counting" in chosen.parts:
        measure_counting(report, 4 * chosen.rounds, chosen.seconds / 2)
    return report.status


if __name__ == "__main__":
    run(main)
