# SPDX-License-Identifier: Apache-2.0
"""What clients that break the rules cost those that do not: `python -m bench.attacks`.

A well-behaved client asks through a sidecar while others attack: another sidecar on the same machine, or the same one.
Both take the same part of the machine's cores, so what differs is what the sidecar makes its clients wait. The
attackers' broker is not the one that the well-behaved client asks. What a turn of the sidecar's event loop takes of the
CPU is measured too: on a busy machine that says more than round trips do.

Last, the same of 10,000 connections of one address, and how long new connections of another one take: all are let in,
or the sidecar has its default bounds, and most are sent away and come again each second.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from bench.attack_peers import ATTACKS, HALVES, HOSTILE, NEVER_READ, NICENESS, SCRAPERS, fetch_once
from bench.processes import Sidecar, calling, next_line, serving, sidecar, throttled
from bench.sockets import connect, latencies, metadata_request, throughput
from bench.table import Report, begin, by_round, parser, run, turned, with_trees
from weir.proxy.event_loop import raise_descriptor_limit
from weir.proxy.relay.admission import connections_with

CONNECTIONS = 40  # each has one request under way, as Kafka's own clients mostly have
REQUESTS_A_SECOND = 400
RESPONSE_SIZE = 8
REAL_PARTITIONS = 25_000  # a full fetch of 400 KB
REAL_FETCHES = 5
NEW_CONNECTIONS = 40
MOST_SLOWER = 2.0
MOST_P99_MS = 20.0  # beside scrapers
LEAST_THROUGHPUT = 0.9
MOST_TURN_MS = 20.0  # on a machine with ten times as much to do as it has cores; hundreds where nothing is bounded
CROWD = "connections of one address"
_OTHERS = 100  # connections beside the crowd, with those that are not closed yet

TABLES = throttled(0) + f'[[limits.client]]\nclient_id = "{HOSTILE.decode()}"\n"record.rate.limit" = 1_000_000_000\n'
COLUMNS = (
    "attack | p50 beside, ms .2 | p99 beside, ms .2 | p50 under, ms .2 | p99 under, ms .2 | "
    "p99 turn, ms of CPU .2 | longest turn .1 | p99, x .2"
)
CROWD_COLUMNS = (
    "crowd | let in | sent away/s | p50 with, ms .2 | p50 without .2 | p99 with .2 | p99 without .2 | "
    "new, p99 with .2 | new, p99 without .2 | p99, x .2 | new, x .2"
)


class Figures(NamedTuple):
    """Milliseconds: round trips beside the attack and under it, and turns of the loop under it."""

    beside_p50: float
    beside_p99: float
    under_p50: float
    under_p99: float
    turn_p99: float
    longest_turn: float


def main() -> int:
    """Measure and print; 1 when a well-behaved client has to wait too long, or is cut off."""
    description = "Measure a well-behaved client's round trips while others attack the sidecar."
    options = parser("attacks", description, trees=True)
    options.add_argument("--rounds", type=int, default=2, help="of each attack (2)")
    options.add_argument("--seconds", type=float, default=1.5, help="of each measurement (1.5)")
    options.add_argument("--only", default="", help=f"attacks whose name has this; the last is '{CROWD}'")
    options.add_argument("--crowd", type=int, default=10_000, help="connections of one address (10,000)")
    chosen, report = begin(options)
    names = [name for name in ATTACKS if chosen.only in name]
    if names:
        _attacks(report, chosen.tree, names, chosen.rounds, chosen.seconds)
    if chosen.only in CROWD:
        _crowds(report, chosen.tree, chosen.crowd, chosen.rounds, chosen.seconds)
    return report.status


def _attacks(report: Report, trees: Sequence[Path], names: Sequence[str], rounds: int, seconds: float) -> None:
    with contextlib.ExitStack() as stack:
        quiet = stack.enter_context(serving("sockets.serve"))
        noisy = stack.enter_context(serving("sockets.serve", 0, NICENESS))

        def new_sidecar(tree: Path) -> Sidecar:
            return stack.enter_context(sidecar(quiet, noisy, tables=TABLES, tree=tree, watched=True))

        pairs = {tree: (new_sidecar(tree), new_sidecar(tree)) for tree in trees}

        def measured() -> Iterator[Sequence[object]]:
            for name, tree, label in with_trees(names, trees):
                figures = [_round(name, *pairs[tree], seconds) for _ in range(rounds)]
                row = Figures._make(map(statistics.median, zip(*figures, strict=True)))
                slower, shown = row.under_p99 / row.beside_p99, f"{name}{label}"
                report.bound(f"p99 turn under {shown}, ms of CPU", row.turn_p99, most=MOST_TURN_MS)
                if name == SCRAPERS:
                    report.bound(f"p99 under {shown}, ms", row.under_p99, most=MOST_P99_MS)
                else:
                    report.bound(f"p99 under {shown}, x that beside it", slower, most=MOST_SLOWER)
                yield shown, *row, slower

        title = f"Round trips of a well-behaved client, medians of {rounds} rounds of {seconds:g} s"
        report.table(title, COLUMNS, measured())
        for name, tree, label in with_trees([one for one in names if one in (NEVER_READ, HALVES)], trees):
            first, second = pairs[tree]
            if name == NEVER_READ:
                rates = list(zip(*[_throughputs(first, second, seconds) for _ in range(rounds)], strict=True))
                times = by_round(rates[1], rates[0])
                columns = "MB/s beside | MB/s under | x .2"
                title = f"1 MB answers to one client, {name}{label}"
                report.table(title, columns, [(*map(statistics.median, rates), times)])
                report.bound(f"throughput under {name}{label}, x that beside it", times, least=LEAST_THROUGHPUT)
            else:
                with _attack(HALVES, first):
                    answered = sum(fetch_once(first.ports[1], REAL_PARTITIONS) for _ in range(REAL_FETCHES))
                what = f"real full fetches of 400 KB answered beside {name}{label}"
                report.bound(what, answered, least=REAL_FETCHES)


def _round(name: str, first: Sidecar, second: Sidecar, seconds: float) -> Figures:
    """Round trips while the second is attacked, then while the first is, and the first's turns then."""
    found: list[float] = []
    for attacked in (second, first):
        with _attack(name, attacked):
            first.turns()
            percentile = latencies(first.port, CONNECTIONS, REQUESTS_A_SECOND, seconds, RESPONSE_SIZE)
            found += map(percentile, (50, 99))
            turns = first.turns()
    return Figures._make((*found, *turns))


def _throughputs(first: Sidecar, second: Sidecar, seconds: float) -> list[float]:
    """MB/s of one client while the second is attacked, then while the first is."""
    found = []
    for attacked in (second, first):
        with _attack(NEVER_READ, attacked), connect(first.port) as connection:
            found.append(throughput(connection, metadata_request, 10**6, 8, seconds) / 10**6)
    return found


def _attack(name: str, attacked: Sidecar) -> AbstractContextManager[None]:
    return _ready("attack_peers.attack", name, attacked.ports[1], attacked.admin)


@contextlib.contextmanager
def _ready(function: str, *arguments: object) -> Iterator[None]:
    with calling(function, *arguments) as attackers:
        next_line(attackers)
        yield


def _crowds(report: Report, trees: Sequence[Path], crowd: int, rounds: int, seconds: float) -> None:
    standing = min(crowd, connections_with(raise_descriptor_limit()) - 2 * _OTHERS)
    if standing < crowd:
        report.say(f"This process may open files for {standing} connections only (ulimit -n): so many stand at most.")
    roomy = f"[limits]\nmax_connections = {standing + 2 * _OTHERS}\nmax_connections_per_address = {standing}\n"
    cases = ((f"{standing:,} {CROWD}, all let in", standing, roomy), (f"{crowd:,}, at the default bounds", crowd, ""))

    def measured() -> Iterator[Sequence[object]]:
        for (name, size, limits), tree, label in with_trees(cases, trees):
            found: tuple[list[list[float]], list[list[float]]] = ([], [])
            with contextlib.ExitStack() as stack:
                upstream = stack.enter_context(serving("sockets.serve"))
                pair = [stack.enter_context(sidecar(upstream, tables=limits, tree=tree)) for _ in range(2)]
                stack.enter_context(_ready("attack_peers.crowd", pair[0].port, size))
                began, refused = time.monotonic(), pair[0].metric("weir_connections_refused_total")
                for number in range(rounds):
                    for one in turned((0, 1), number):
                        found[one].append(_beside_the_crowd(pair[one].port, seconds))
                sent_away = pair[0].metric("weir_connections_refused_total") - refused
                sent_away /= time.monotonic() - began
                let_in = int(pair[0].metric("weir_connections{"))
            columns = [list(zip(*one, strict=True)) for one in found]
            times = [by_round(columns[0][one], columns[1][one]) for one in (1, 2)]
            for what, ratio in zip(("others", "new connections"), times, strict=True):
                report.bound(f"p99 of {what} beside {name}{label}, x without", ratio, most=MOST_SLOWER)
            medians = [statistics.median(columns[which][one]) for one in range(3) for which in range(2)]
            yield f"{name}{label}", let_in, sent_away, *medians, *times

    report.table(f"Beside a crowd, medians of {rounds} rounds of {seconds:g} s", CROWD_COLUMNS, measured())


def _beside_the_crowd(port: int, seconds: float) -> list[float]:
    """Milliseconds: p50 and p99 of round trips, and p99 of a new connection up to its first answer."""
    percentile = latencies(port, CONNECTIONS // 2, REQUESTS_A_SECOND, seconds, 4096)
    taken = []
    for _ in range(NEW_CONNECTIONS):
        began = time.perf_counter()
        with connect(port) as connection:
            connection.sendall(metadata_request(1, 4096))
            if not connection.recv(4096):
                raise ConnectionError("A client beside the crowd was sent away.")
        taken.append(1000 * (time.perf_counter() - began))
    return [percentile(50), percentile(99), sorted(taken)[int(len(taken) * 0.99)]]


if __name__ == "__main__":
    run(main)
