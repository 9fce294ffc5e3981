# SPDX-License-Identifier: Apache-2.0
"""What followers that read slowly leave to others: `python -m bench.slow_ends`.

One leader's sidecar, a process of its own, with a quota of 1 MB/s. Behind it are followers that read as fast as they
can, others that read 20 KB/s, and others that read nothing for 3 s in 6. All are made up and have an endless backlog.
Measured is what the fast ones get of what the others leave, and the most that all of them have read in any second.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench.many_links import new_fetcher
from bench.peers import BATCH_BYTES
from bench.processes import serving, sidecar, throttled
from bench.sockets import Fetcher, worst_second
from bench.table import begin, parser, run, with_trees

QUOTA: Final = 1_000_000
SLOW_RATE: Final = 20_000
PAUSE_SECONDS: Final = 3.0
WARM_UP_SECONDS: Final = 5.0
TICK_SECONDS: Final = 0.05
LEAST_OF_THE_REST: Final = 0.95
MOST_IN_A_SECOND: Final = 1.04
LARGE_BATCH: Final = 100_000
SMALL_WINDOW: Final = 8_192
"""Bytes of a receive buffer that an end has which reads slowly: else it takes 64 KB at once, and reads them later."""

COLUMNS = (
    "fast | at 20 KB/s | with pauses | batch, KB | change | Fetch | fast, x the rest .3 | all, x quota .3 | "
    "worst second .3 | of a core .2"
)


class _Case(NamedTuple):
    """How many followers of which kind, and the size of the leader's batches (KB)."""

    fast: int
    slow: int
    pausing: int
    batch_kb: int = BATCH_BYTES // 1000
    change: str = ""
    """Where there is one, the slow ones read as fast as they can, all at once, for a second in five."""


CASES: Final = (
    _Case(2, 0, 0),
    _Case(1, 8, 0),
    _Case(1, 8, 0, LARGE_BATCH // 1000),
    _Case(1, 0, 1),
    _Case(1, 0, 1, LARGE_BATCH // 1000),
    _Case(1, 8, 0, change="all fast for 1 s in 5"),
    _Case(1, 8, 0, LARGE_BATCH // 1000, change="all fast for 1 s in 5"),
)


def main() -> int:
    """Measure and print; 1 when an aim is missed."""
    options = parser("slow_ends", "Measure what followers that read slowly leave to others.", trees=True)
    options.add_argument("--versions", type=int, nargs="+", default=[3, 12], help="of Fetch, 3 to 12 (3 12)")
    options.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="which, by number (all)")
    options.add_argument("--seconds", type=float, default=20.0, help="of each measurement (20)")
    chosen, report = begin(options)

    def measured() -> Iterator[Sequence[object]]:
        runs = itertools.product(chosen.cases, chosen.versions)
        for (number, version), tree, label in with_trees(runs, chosen.tree):
            case = CASES[number]
            fast, mean, worst, core = _measure(tree, case, version, chosen.seconds)
            most = MOST_IN_A_SECOND + 1000 * case.batch_kb / QUOTA
            name = f"case {number}, v{version}{label}"
            report.bound(f"the fast ones of {name}, x the rest", fast, least=LEAST_OF_THE_REST)
            report.bound(f"worst second of {name}, x quota", worst, most=most)
            yield *case, f"v{version}{label}", fast, mean, worst, core

    report.table(f"1 MB/s for all, {chosen.seconds:g} s each", COLUMNS, measured())
    return report.status


def _measure(tree: Path, case: _Case, version: int, seconds: float) -> tuple[float, float, float, float]:
    with (
        serving("sockets.serve", 1000 * case.batch_kb) as leader,
        sidecar(leader, tables=throttled(QUOTA), tree=tree) as between,
    ):
        watch = _Watch(between.port, case, version)
        watch.run(WARM_UP_SECONDS)
        before = between.cpu_seconds()
        watch.forget()
        watch.run(seconds)
        return *watch.figures(seconds), (between.cpu_seconds() - before) / seconds


class _Watch:
    """The followers of one case, and what each has read."""

    def __init__(self, port: int, case: _Case, version: int) -> None:
        self._read: list[tuple[float, int, bool]] = []
        """When, how many bytes, and whether by a fast one."""
        self._case = case
        self._selector = selectors.EpollSelector()
        self._all = [new_fetcher(port, number, version) for number in range(case.fast + case.slow + case.pausing)]
        self._slow = self._all[case.fast : case.fast + case.slow]
        self._pausing = self._all[case.fast + case.slow :]
        self._start = time.monotonic()
        for fetcher in self._all[: case.fast]:
            self._selector.register(fetcher.connection, selectors.EVENT_READ, fetcher)
        for fetcher in self._slow + self._pausing:
            fetcher.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)

    def run(self, seconds: float) -> None:
        """Let all of them read for so long."""
        ticks_at = time.monotonic()
        end = ticks_at + seconds
        while (now := time.monotonic()) < end:
            for key, _ in self._selector.select(max(0.0, ticks_at - now)):
                now = time.monotonic()
                self._read.append((now, key.data.go_on(now), True))
            if now >= ticks_at:
                ticks_at += TICK_SECONDS
                self._tick(now)

    def forget(self) -> None:
        """Count from now on."""
        self._read.clear()
        for fetcher in self._all:
            fetcher.received.clear()

    def _tick(self, now: float) -> None:
        is_fast = self._case.change and (now - self._start) % 5 < 1
        for fetcher in self._slow:
            self._take(fetcher, now, 2**20 if is_fast else round(SLOW_RATE * TICK_SECONDS))
        if (now - self._start) % (2 * PAUSE_SECONDS) < PAUSE_SECONDS:
            for fetcher in self._pausing:
                self._take(fetcher, now, 2**20)

    def _take(self, fetcher: Fetcher, now: float, most: int) -> None:
        """Read up to `most` bytes."""
        with suppress(BlockingIOError):
            while most > 0:
                size = fetcher.go_on(now, most)
                most -= size
                self._read.append((now, size, False))

    def figures(self, seconds: float) -> tuple[float, float, float]:
        """What the fast ones got of what the others left, what all got, and the worst second, both x quota."""
        total = max(1, sum(size for _, size, _ in self._read))
        fast = sum(size for _, size, is_fast in self._read if is_fast)
        rest = QUOTA * seconds - (total - fast)
        # of what was read some is not records, such as the entries of all partitions in v3
        records = sum(size for one in self._all for _, size in one.received) / total
        worst = worst_second([(at, size) for at, size, _ in self._read]) * min(1.0, records)
        return fast / rest, total / seconds / QUOTA, worst / QUOTA


if __name__ == "__main__":
    run(main)
